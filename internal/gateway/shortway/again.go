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

// ErrNoConnection says that no open connection gave a byte of a response. Send may repeat the
// request, as it does after a connection that was closed meanwhile.
var ErrNoConnection = errors.New("no connection is open")

// Fields returns the head of a request that Send accepts, without its first line.
func Fields(r *http.Request) ([]byte, error) {
	head, err := appendHead(nil, r, false)
	if err != nil {
		return nil, err
	}
	_, fields, _ := bytes.Cut(head, []byte("\r\n"))
	return fields, nil
}

// Reply is the response to a request of SendHead, of which some bytes have come. It ends
// with End, Abandon, or the body of Response.
type Reply struct {
	pool *Pool
	conn *conn
}

// SendHead sends a GET request without a body, whose head is given, over a connection that is
// open. It repeats it on another one if the connection was closed meanwhile. hold gets the
// connection before anything is sent; the caller interrupts it by a deadline in the past. If
// hold returns false, or no connection is left, the error is ErrNoConnection.
func (p *Pool) SendHead(head []byte, hold func(net.Conn) bool) (Reply, error) {
	for {
		c := p.take()
		if c == nil {
			return Reply{}, ErrNoConnection
		}
		if !hold(c.Conn) {
			_ = c.Close() // it is abandoned
			return Reply{}, ErrNoConnection
		}
		err := c.begin(p, head)
		if err == nil {
			return Reply{p, c}, nil
		}
		failed, stale := c.abandon(context.Background(), err)
		if !stale || !c.reused {
			return Reply{}, failed
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

// Head returns the head of the response, with the empty line, or nil if it is larger than
// the buffer or has a line that does not end with CRLF. It is valid until Skip.
func (y Reply) Head() ([]byte, error) {
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

// Skip passes over a head, and returns what has come of the body, up to n bytes.
func (y Reply) Skip(head []byte, n int) []byte {
	_, _ = y.conn.in.Discard(len(head)) // it is in the buffer
	y.conn.headLeft = -1
	ready, _ := y.conn.in.Peek(min(n, y.conn.in.Buffered()))
	return ready
}

// Read reads the body after skipping what Skip has returned, of the given length.
func (y Reply) Read(p []byte) (int, error) { return y.conn.Conn.Read(p) }

// End gives the connection back after a whole response, of whose body Skip has returned
// ready. keep is the value of Keep-Alive, or empty.
func (y Reply) End(ready int, keep string) {
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

// Abandon closes the connection.
func (y Reply) Abandon() { _ = y.conn.Close() }

// Response reads the response as Send does. r is the request.
func (y Reply) Response(r *http.Request, early func(code int, h http.Header) error) (*http.Response, error) {
	ctx := r.Context()
	stop := context.AfterFunc(ctx, func() { _ = y.conn.SetDeadline(time.Unix(1, 0)) })
	res, err := y.pool.finish(y.conn, r, early, stop)
	if err != nil {
		failed, _ := y.conn.abandon(ctx, err)
		return nil, failed
	}
	return res, nil
}
