package shortway

import (
	"bytes"
	"net"
	"net/http"
)

// Replay returns conn with some bytes that were read from it before, which it copies.
func Replay(conn net.Conn, read []byte) net.Conn { return &replayedConn{conn, bytes.Clone(read)} }

// replayedConn is a connection of which some bytes were read before.
type replayedConn struct {
	net.Conn
	rest []byte
}

func (c *replayedConn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.rest = nil
	}
	return n, nil
}

// NetConn returns the connection below.
func (c *replayedConn) NetConn() net.Conn { return c.Conn }

// Direct returns the connection below if all bytes that were read before have been
// returned.
func (c *replayedConn) Direct() (net.Conn, bool) { return c.Conn, len(c.rest) == 0 }

// CloseWrite closes the connection for writing.
func (c *replayedConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}
