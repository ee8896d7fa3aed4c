package shortway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// errNoConnection says that no open connection gave a byte of a response. The request may be
// repeated by Send.
var errNoConnection = errors.New("no connection is open")

// reply is the response to a request of sendHead, of which some bytes have come. It ends
// with end, abandon, or the body of response.
type reply struct {
	pool *Pool
	conn *conn
}

// sendHead sends a GET request without a body, whose head is given, over a connection that is
// open. It repeats it on another one if the connection was closed meanwhile. hold gets the
// connection before anything is sent; the caller interrupts it by a deadline in the past. If
// hold returns false, or no connection is left, the error is errNoConnection.
func (p *Pool) sendHead(head []byte, hold func(net.Conn) bool) (reply, error) {
	for {
		c := p.take()
		if c == nil {
			return reply{}, errNoConnection
		}
		if !hold(c.Conn) {
			_ = c.Close() // it is abandoned
			return reply{}, errNoConnection
		}
		err := c.begin(p, head)
		if err == nil {
			return reply{p, c}, nil
		}
		failed, stale := c.abandon(context.Background(), err)
		if !stale || !c.reused {
			return reply{}, failed
		}
	}
}

// begin sends the head of a request and waits for the response.
func (c *conn) begin(p *Pool, head []byte) error {
	if _, err := c.Write(head); err != nil {
		return staleError{err}
	}
	c.in = readers.Get().(*bufio.Reader)
	c.in.Reset(c)
	c.headLeft = p.MaxHeader
	if _, err := c.in.Peek(1); err != nil {
		c.in = nil
		return staleError{err}
	}
	return nil
}

// head returns the head of the response, with the empty line, or nil if it is larger than
// the buffer or has a line that does not end with CRLF. It is valid until skip.
func (y reply) head() ([]byte, error) {
	for in, line := y.conn.in, 0; ; {
		ready, _ := in.Peek(in.Buffered())
		for {
			n := bytes.IndexByte(ready[line:], '\n')
			if n < 0 {
				break
			}
			if n == 0 || ready[line+n-1] != '\r' {
				return nil, nil
			}
			if line += n + 1; n == 1 {
				return ready[:line], nil
			}
		}
		if len(ready) == in.Size() {
			return nil, nil
		}
		if _, err := in.Peek(len(ready) + 1); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

// skip passes over a head, and returns what has come of the body, up to n bytes.
func (y reply) skip(head []byte, n int) []byte {
	_, _ = y.conn.in.Discard(len(head)) // it is in the buffer
	y.conn.headLeft = -1
	ready, _ := y.conn.in.Peek(min(n, y.conn.in.Buffered()))
	return ready
}

// read reads the body after skipping what skip has returned, of the given length.
func (y reply) read(p []byte) (int, error) { return y.conn.Conn.Read(p) }

// end gives the connection back after a whole response, of whose body skip has returned
// ready. keep is the value of Keep-Alive, or empty.
func (y reply) end(ready int, keep string) {
	c := y.conn
	_, _ = c.in.Discard(ready) // it is in the buffer
	// What comes unasked after a response is no response to the next request.
	if c.in.Buffered() > 0 {
		_ = c.Close() // it is abandoned
		return
	}
	c.keep = y.pool.IdleTimeout
	if keep != "" {
		c.keep = y.pool.keep(http.Header{"Keep-Alive": {keep}})
	}
	y.pool.put(c)
}

// abandon closes the connection.
func (y reply) abandon() { _ = y.conn.Close() }

// response reads the response as Send does. r is the request.
func (y reply) response(r *http.Request, early func(code int, h http.Header) error) (*http.Response, error) {
	ctx := r.Context()
	stop := context.AfterFunc(ctx, func() { _ = y.conn.SetDeadline(time.Unix(1, 0)) })
	res, err := y.pool.finish(y.conn, r, early, stop)
	if err != nil {
		failed, _ := y.conn.abandon(ctx, err)
		return nil, failed
	}
	return res, nil
}
