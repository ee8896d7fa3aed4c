package agent

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// The kinds of frames of a command's conversation. The server sends the first
// four, the agent the others.
const (
	FrameStdin    = 'i' // bytes for the command's standard input
	FrameStdinEnd = 'e' // the end of the standard input
	FrameResize   = 'r' // rows and columns of the terminal, each 2 bytes, big-endian
	FrameSignal   = 's' // the name of a signal without SIG

	FrameStdout = 'o'
	FrameStderr = 'x'
	FrameExit   = 'q' // Exit as JSON; the last frame
	FrameEvent  = 'a' // Listening or Accepted as JSON
)

// MaxFrame is the longest payload of a frame, in bytes.
const MaxFrame = 64 << 10

const frameHeader = 5

// Frame is a message of a conversation: its kind in 1 byte, the length of the
// payload in 4, big-endian, and the payload.
type Frame struct {
	Kind    byte
	Payload []byte // valid until the next call of Read
}

// FrameReader reads frames. It is not safe for concurrent use.
type FrameReader struct {
	from   io.Reader
	header [frameHeader]byte
	buf    []byte
}

// NewFrameReader returns a reader of frames.
func NewFrameReader(from io.Reader) *FrameReader { return &FrameReader{from: from} }

// Read returns the next frame. Its payload is valid until the next call. The error
// is io.EOF at the end of the connection between two frames.
func (r *FrameReader) Read() (Frame, error) {
	if _, err := io.ReadFull(r.from, r.header[:]); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(r.header[1:])
	if n > MaxFrame {
		return Frame{}, fmt.Errorf("a frame of %d bytes is too long", n)
	}
	if int(n) > len(r.buf) {
		r.buf = make([]byte, max(int(n), 4<<10))
	}
	payload := r.buf[:n]
	if _, err := io.ReadFull(r.from, payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return Frame{Kind: r.header[0], Payload: payload}, nil
}

// FrameWriter writes frames. It is safe for concurrent use.
type FrameWriter struct {
	mu  sync.Mutex
	to  io.Writer
	buf []byte
}

// NewFrameWriter returns a writer of frames.
func NewFrameWriter(to io.Writer) *FrameWriter { return &FrameWriter{to: to} }

// Write writes the payload as one frame, or as several if it is longer than
// MaxFrame.
func (w *FrameWriter) Write(kind byte, payload []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		part := payload[:min(len(payload), MaxFrame)]
		payload = payload[len(part):]
		w.buf = append(w.buf[:0], kind, 0, 0, 0, 0)
		binary.BigEndian.PutUint32(w.buf[1:], uint32(len(part)))
		w.buf = append(w.buf, part...)
		if _, err := w.to.Write(w.buf); err != nil {
			return err
		}
		if len(payload) == 0 {
			return nil
		}
	}
}

// Stream returns a writer whose bytes become frames of this kind.
func (w *FrameWriter) Stream(kind byte) io.Writer { return frameStream{w, kind} }

type frameStream struct {
	to   *FrameWriter
	kind byte
}

func (s frameStream) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := s.to.Write(s.kind, p); err != nil {
		return 0, err
	}
	return len(p), nil
}
