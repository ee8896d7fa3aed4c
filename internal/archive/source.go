package archive

import (
	"errors"
	"io"
)

// source returns the bytes of a decompressed stream, without copies where
// possible. What some and block return is valid until the next call.
type source struct {
	// refill returns the next chunk, never empty, valid until it is called
	// again; io.EOF after the last.
	refill  func() ([]byte, error)
	chunk   []byte
	scratch [blockSize]byte
	at      int64 // bytes returned so far
}

// some returns between one and limit bytes, or io.EOF.
func (s *source) some(limit int64) ([]byte, error) {
	if len(s.chunk) == 0 {
		var err error
		if s.chunk, err = s.refill(); err != nil {
			return nil, err
		}
	}
	n := min(limit, int64(len(s.chunk)))
	b := s.chunk[:n]
	s.chunk = s.chunk[n:]
	s.at += n
	return b, nil
}

// block returns the next block, or io.EOF.
func (s *source) block() ([]byte, error) {
	if len(s.chunk) >= blockSize {
		return s.some(blockSize)
	}
	b := s.scratch[:0]
	for len(b) < blockSize {
		part, err := s.some(int64(blockSize - len(b)))
		if len(b) > 0 {
			err = cutShort(err)
		}
		if err != nil {
			return nil, err
		}
		b = append(b, part...)
	}
	return b, nil
}

// appendTo appends the next n bytes to b. It allocates no more than the stream has.
func (s *source) appendTo(b []byte, n int64) ([]byte, error) {
	for n > 0 {
		part, err := s.some(n)
		if err != nil {
			return nil, cutShort(err)
		}
		b, n = append(b, part...), n-int64(len(part))
	}
	return b, nil
}

func (s *source) skip(n int64) error {
	for n > 0 {
		b, err := s.some(n)
		if err != nil {
			return cutShort(err)
		}
		n -= int64(len(b))
	}
	return nil
}

// cutShort replaces io.EOF where a tar has to go on.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return corrupted("tar is cut short")
	}
	return err
}
