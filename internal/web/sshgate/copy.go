package sshgate

import (
	"io"
	"sync"
)

// bufferSize is that of a copy. A packet of SSH carries at most half of it.
const bufferSize = 64 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// copy copies until the end of from, and calls seen with the bytes of each read; nil:
// not needed.
func (c *connection) copy(to io.Writer, from io.Reader, seen func(n int)) (copied int64, err error) {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	for {
		n, err := from.Read(buf[:])
		if n > 0 {
			if seen != nil {
				seen(n)
			}
			written, werr := to.Write(buf[:n])
			copied += int64(written)
			if werr != nil {
				return copied, werr
			}
		}
		if err == io.EOF {
			return copied, nil
		}
		if err != nil {
			return copied, err
		}
	}
}
