package archive

import (
	"errors"
	"io"
)

// source hands out the bytes of a decompressed stream without copying them
// where it can: what take and some return is valid until the next call.
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

// take returns exactly n bytes, n small. io.EOF means that there were none;
// fewer are corruption.
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

// must is take where the stream may not end.
func (s *source) must(n int) ([]byte, error) {
	b, err := s.take(n)
	if errors.Is(err, io.EOF) {
		err = corrupted("tar is cut short")
	}
	return b, err
}

// copy returns the next n bytes, for the caller to keep. It takes no memory
// for what the stream does not hold.
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

// discard passes over n bytes.
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
