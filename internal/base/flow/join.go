package flow

import (
	"io"
	"sync"
)

// Conn is a connection that can be closed in one direction.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Join copies between two connections until both directions have ended, or one has failed, and
// closes both. seen is called with the bytes of each read from a; nil: not needed.
func Join(a, b Conn, seen func(n int)) {
	pass := func(to, from Conn, seen func(n int)) {
		err := Copy(to, from, seen)
		if err == nil {
			err = to.CloseWrite()
		}
		if err != nil {
			_, _ = a.Close(), b.Close() // so the other direction ends
		}
	}
	var other sync.WaitGroup
	other.Go(func() { pass(a, b, nil) })
	pass(b, a, seen)
	other.Wait()
	_, _ = a.Close(), b.Close()
}

// bufferSize is that of a copy. A packet of SSH carries at most half of it.
const bufferSize = 64 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// Copy copies until the end of from, and calls seen with the bytes of each read; nil: not
// needed, and the kernel may copy from socket to socket.
func Copy(to io.Writer, from io.Reader, seen func(n int)) error {
	_, reads := to.(io.ReaderFrom)
	_, writes := from.(io.WriterTo)
	if seen == nil && (reads || writes) {
		_, err := io.Copy(to, from)
		return err
	}
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	for {
		n, err := from.Read(buf[:])
		if n > 0 {
			if seen != nil {
				seen(n)
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
