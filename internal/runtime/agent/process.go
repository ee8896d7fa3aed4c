package agent

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Process is a command that runs in a workspace.
type Process struct {
	Stdin io.WriteCloser // a write after Close is an error

	conn   *Conn
	frames *FrameWriter
}

func newProcess(conn *Conn) *Process {
	p := &Process{conn: conn, frames: NewFrameWriter(conn)}
	p.Stdin = &stdin{to: p.frames}
	return p
}

// Run writes the command's output until its end, and returns how the command ended. With a
// terminal, nothing is written to stderr. ErrUnreachable means that the connection to the
// workspace broke: whether the command goes on is not known. It must be called once.
func (p *Process) Run(stdout, stderr io.Writer) (Exit, error) {
	defer p.conn.Close()
	for frames := NewFrameReader(p.conn); ; {
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
			return Exit{}, err
		}
	}
}

// Resize changes the size of the command's terminal.
func (p *Process) Resize(rows, cols uint16) error {
	return p.frames.Write(FrameResize, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, rows), cols))
}

// Signal sends a signal to the command's process group. The name has no SIG, as in
// "TERM"; an unknown one has no effect.
func (p *Process) Signal(name string) error { return p.frames.Write(FrameSignal, []byte(name)) }

// Close ends the connection: a command with a terminal is hung up, another one
// loses its input and output. It may be called at any time.
func (p *Process) Close() error { return p.conn.Close() }

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
