package agent

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Process is a command that runs in a workspace. Both Stdout and Stderr must be
// read, concurrently; with a terminal Stderr is empty.
type Process struct {
	Stdout, Stderr io.Reader
	Stdin          io.WriteCloser // a write after Close is an error

	conn   *Conn
	frames *FrameWriter
	done   chan struct{}
	exit   Exit
	err    error
}

func newProcess(conn *Conn) *Process {
	outReader, out := io.Pipe()
	errReader, errs := io.Pipe()
	p := &Process{Stdout: outReader, Stderr: errReader, conn: conn, frames: NewFrameWriter(conn), done: make(chan struct{})}
	p.Stdin = &stdin{to: p.frames}
	go func() {
		defer close(p.done)
		p.exit, p.err = readOutput(conn, out, errs)
		out.CloseWithError(p.err)
		errs.CloseWithError(p.err)
		conn.Close()
	}()
	return p
}

// readOutput distributes the frames of a command until it exits.
func readOutput(from io.Reader, stdout, stderr io.Writer) (Exit, error) {
	for frames := NewFrameReader(from); ; {
		f, err := frames.Read()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return Exit{}, fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
		switch f.Kind {
		case FrameStdout:
			_, err = stdout.Write(f.Payload)
		case FrameStderr:
			_, err = stderr.Write(f.Payload)
		case FrameExit:
			var e Exit
			if err := json.Unmarshal(f.Payload, &e); err != nil {
				return Exit{}, fmt.Errorf("%w: %w", ErrUnreachable, err)
			}
			return e.checked(), nil
		}
		if err != nil {
			return Exit{}, err // the reader was closed
		}
	}
}

// Wait waits for the end of the command and of its output. An error means that the
// connection to the workspace broke: whether the command goes on is not known.
func (p *Process) Wait() (Exit, error) {
	<-p.done
	return p.exit, p.err
}

// Done is closed at the end of the command.
func (p *Process) Done() <-chan struct{} { return p.done }

// Resize changes the size of the command's terminal.
func (p *Process) Resize(rows, cols uint16) error {
	return p.frames.Write(FrameResize, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, rows), cols))
}

// Signal sends a signal to the command's process group. The name has no SIG, as in
// "TERM"; an unknown one has no effect.
func (p *Process) Signal(name string) error { return p.frames.Write(FrameSignal, []byte(name)) }

// Close ends the connection: a command with a terminal is hung up, another one
// loses its input and output. It may be called at any time.
func (p *Process) Close() error {
	err := p.conn.Close()
	for _, r := range []io.Reader{p.Stdout, p.Stderr} {
		_ = r.(*io.PipeReader).CloseWithError(io.ErrClosedPipe)
	}
	return err
}

// stdin sends a command's input.
type stdin struct {
	to     *FrameWriter
	mu     sync.Mutex
	closed bool
}

func (s *stdin) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, io.ErrClosedPipe
	}
	if len(b) == 0 {
		return 0, nil
	}
	if err := s.to.Write(FrameStdin, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (s *stdin) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.to.Write(FrameStdinEnd, nil)
}
