package agent

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestFrames(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := NewFrameWriter(&b)
	long := bytes.Repeat([]byte("x"), MaxFrame+10)
	for _, payload := range [][]byte{nil, []byte("a"), long} {
		if err := w.Write(FrameStdin, payload); err != nil {
			t.Fatal(err)
		}
	}
	r := NewFrameReader(&b)
	for _, want := range []int{0, 1, MaxFrame, 10} {
		f, err := r.Read()
		if err != nil || f.Kind != FrameStdin || len(f.Payload) != want {
			t.Errorf("kind %c, %d bytes, %v; want %d bytes", f.Kind, len(f.Payload), err, want)
		}
	}
	if _, err := r.Read(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// For any input, the reader returns without a panic and allocates at most MaxFrame bytes for a
// frame.
func FuzzFrameReader(f *testing.F) {
	f.Add([]byte{FrameStdout, 0, 0, 0, 1, 'a'})
	f.Add([]byte{FrameStdout, 255, 255, 255, 255})
	f.Add([]byte{FrameStdout, 0, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := NewFrameReader(bytes.NewReader(raw))
		for {
			frame, err := r.Read()
			if err != nil {
				return
			}
			if len(frame.Payload) > MaxFrame {
				t.Fatal("too long")
			}
		}
	})
}
