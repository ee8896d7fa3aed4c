package archive

import (
	"errors"
	"io"
)

// source returns the bytes of a decompressed stream, without copies where
// possible. The results of take and some are valid until the next call.
type source struct {
	// refill returns the next chunk, never empty, valid until it is called
	// again; io.EOF after the last.
	refill  func() ([]byte, error)
	chunk   []byte
	scratch []byte
}

// some returns between one and limit bytes, or io.EOF.
func (s *source) some(limit int) ([]byte, error) {
	if len(s.chunk) == 0 {
		var err error
		if s.chunk, err = s.refill(); err != nil {
			return nil, err
		}
	}
	n := min(limit, len(s.chunk))
	b := s.chunk[:n]
	s.chunk = s.chunk[n:]
	return b, nil
}

// take returns exactly n bytes; n must be small. io.EOF means that the stream
// has ended; fewer bytes are ErrCorrupted.
func (s *source) take(n int) ([]byte, error) {
	if len(s.chunk) >= n {
		return s.some(n)
	}
	if cap(s.scratch) < n {
		s.scratch = make([]byte, n)
	}
	got := 0
	for got < n {
		b, err := s.some(n - got)
		if errors.Is(err, io.EOF) && got > 0 {
			return nil, corrupted("tar is cut short")
		}
		if err != nil {
			return nil, err
		}
		got += copy(s.scratch[got:n], b)
	}
	return s.scratch[:n], nil
}

// must is take, with the end of the stream as ErrCorrupted.
func (s *source) must(n int) ([]byte, error) {
	b, err := s.take(n)
	if errors.Is(err, io.EOF) {
		err = corrupted("tar is cut short")
	}
	return b, err
}

// copy returns a copy of the next n bytes. It allocates no more than the stream
// has.
func (s *source) copy(n int) ([]byte, error) {
	b := make([]byte, 0, min(n, 64<<10))
	for len(b) < n {
		part, err := s.some(n - len(b))
		if errors.Is(err, io.EOF) {
			err = corrupted("tar is cut short")
		}
		if err != nil {
			return nil, err
		}
		b = append(b, part...)
	}
	return b, nil
}

// discard skips n bytes.
func (s *source) discard(n int64) error {
	for n > 0 {
		b, err := s.some(int(min(n, 1<<30)))
		if errors.Is(err, io.EOF) {
			err = corrupted("tar is cut short")
		}
		if err != nil {
			return err
		}
		n -= int64(len(b))
	}
	return nil
}
