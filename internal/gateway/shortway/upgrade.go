package shortway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// Switched is a connection to the address after a switch of protocols: the Body of the
// response with status 101. The context of the request has no effect on it.
type Switched struct {
	net.Conn
	// Rest is what came after the header of the response. Read does not return it.
	Rest []byte
}

// CloseWrite closes the connection for writing.
func (s *Switched) CloseWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

// Upgrade is Send for a request that asks for another protocol. It uses a new connection,
// which is not used again. If the response has status 101, its Body is a *Switched;
// whether that is the protocol that was asked for is up to the caller.
func (p *Pool) Upgrade(r *http.Request, early func(code int, h http.Header) error) (*http.Response, error) {
	ctx := r.Context()
	opened, err := p.Dial(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: opened, upgrade: true, headLeft: p.MaxHeader}
	res, err := p.upgrade(c, r, early)
	if err == nil {
		return res, nil
	}
	failed, _ := c.abandon(ctx, err)
	return nil, failed
}

func (p *Pool) upgrade(c *conn, r *http.Request, early func(code int, h http.Header) error) (*http.Response, error) {
	stop := context.AfterFunc(r.Context(), func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	if err := c.send(r); err != nil {
		stop()
		return nil, err
	}
	c.in = readers.Get().(*bufio.Reader)
	c.in.Reset(c)
	res, err := c.receive(r, early)
	switch {
	case err == nil:
		c.headLeft = -1
		res.Body = &body{ReadCloser: res.Body, pool: p, conn: c, stop: stop, ctx: r.Context(), chunked: len(res.TransferEncoding) > 0}
		return res, nil
	case !errors.Is(err, ErrSwitched):
		stop()
		return nil, err
	case !stop(): // the context has ended
		return nil, err
	}
	s := &Switched{Conn: c.Conn}
	if rest, _ := c.in.Peek(c.in.Buffered()); len(rest) > 0 {
		s.Rest = bytes.Clone(rest)
	}
	c.in.Reset(nil)
	readers.Put(c.in)
	res.Body = s
	return res, nil
}
