package shortway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Errors of Send. Errors of Dial are returned as they are.
var (
	errHeaderTooLarge = errors.New("the header of the response is too large")
	errSwitched       = errors.New("the response switches protocols unasked")
	errInvalidRequest = errors.New("the request cannot be sent")
)

// Sends reports whether Send can send a client's request, with its Upgrade and without the
// other fields of its connection: a GET or HEAD without a body and trailers, or a GET over
// HTTP/1.1 that asks for a WebSocket.
func Sends(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.ContentLength != 0 || len(r.Trailer) != 0 ||
		r.Header["Te"] != nil || r.Header["Trailer"] != nil || r.Header["Expect"] != nil {
		return false
	}
	protocols, upgrade := r.Header["Upgrade"], false
	for _, line := range r.Header["Connection"] {
		for token := range strings.SplitSeq(line, ",") {
			switch token = strings.TrimSpace(token); {
			case strings.EqualFold(token, "Upgrade"):
				upgrade = true
			case !strings.EqualFold(token, "keep-alive") && (protocols != nil || !strings.EqualFold(token, "close")):
				return false
			}
		}
	}
	if protocols == nil {
		return !upgrade
	}
	return upgrade && len(protocols) == 1 && strings.EqualFold(protocols[0], "websocket") && r.Method == http.MethodGet && r.ProtoMajor == 1 && r.ProtoMinor == 1
}

// Send sends a request that Sends accepts, with its header, its Host and its URL, and
// returns the response. Fields of the header that frame a message are an error. If a
// connection that was used before was closed meanwhile, the request is repeated on another
// one. The body has to be closed; the connection is used again if it was read to its end.
// early receives each informational response; its error ends the request. When the
// request's context ends, the connection is closed.
//
// A request with an Upgrade has a connection of its own. If the response has status 101, its
// Body is a net.Conn, on which the context has no effect; whether that is the protocol that
// was asked for is up to the caller.
func (p *Pool) Send(r *http.Request, early func(code int, h http.Header) error) (*http.Response, error) {
	ctx := r.Context()
	upgrade := r.Header["Upgrade"] != nil
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var c *conn
		if !upgrade {
			c = p.take()
		}
		if c == nil {
			opened, err := p.Dial(ctx)
			if err != nil {
				return nil, err
			}
			c = newConn(opened)
			c.upgrade = upgrade
		}
		res, err := p.exchange(c, r, early)
		if err == nil {
			return res, nil
		}
		failed, stale := c.abandon(ctx, err)
		if !stale || !c.reused {
			return nil, failed
		}
	}
}

// abandon closes a connection on which a request has failed with err. It returns the error
// of the request, and whether the connection failed before a byte of the response.
func (c *conn) abandon(ctx context.Context, err error) (failed error, stale bool) {
	_ = c.Close()
	if ctx.Err() != nil {
		return context.Cause(ctx), false
	}
	var s staleError
	if errors.As(err, &s) {
		return s.error, true
	}
	return err, false
}

// staleError is the failure of a connection before a byte of the response.
type staleError struct{ error }

// exchange sends the request and reads the response's header.
func (p *Pool) exchange(c *conn, r *http.Request, early func(code int, h http.Header) error) (*http.Response, error) {
	stop := context.AfterFunc(r.Context(), func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	if err := c.send(r); err != nil {
		stop()
		return nil, err
	}
	c.in = readers.Get().(*bufio.Reader)
	c.in.Reset(c)
	c.headLeft = p.MaxHeader
	return p.finish(c, r, early, stop)
}

// finish reads the response's header. stop undoes what ends the request.
func (p *Pool) finish(c *conn, r *http.Request, early func(code int, h http.Header) error, stop func() bool) (*http.Response, error) {
	res, err := c.receive(r, early)
	if err == nil && res.StatusCode == http.StatusSwitchingProtocols {
		err = errSwitched
		if c.upgrade && stop() { // the context has not ended
			res.Body = c.switched()
			return res, nil
		}
	}
	if err != nil {
		stop()
		c.in = nil // the reader may hold a part of the response
		return nil, err
	}
	c.headLeft, c.keep = -1, p.keep(res.Header)
	res.Body = &body{ReadCloser: res.Body, pool: p, conn: c, stop: stop, ctx: r.Context(), reusable: !res.Close && !c.upgrade, chunked: len(res.TransferEncoding) > 0}
	if res.Body.(*body).ReadCloser == http.NoBody {
		res.Body.(*body).end(true)
	}
	return res, nil
}

// switched returns the connection after a switch of protocols.
func (c *conn) switched() net.Conn {
	rest, _ := c.in.Peek(c.in.Buffered())
	s := Replay(c.Conn, rest)
	c.in.Reset(nil)
	readers.Put(c.in)
	return s
}

// keep returns how long the connection of a response with this header may be idle. The
// other side closes it when the time that it announces is over, so it is not used in the
// last second.
func (p *Pool) keep(h http.Header) time.Duration {
	for _, line := range h["Keep-Alive"] {
		for part := range strings.SplitSeq(line, ",") {
			if v, ok := strings.CutPrefix(strings.TrimSpace(part), "timeout="); ok {
				if n, err := strconv.ParseUint(v, 10, 16); err == nil {
					return min(p.IdleTimeout, time.Duration(n)*time.Second-time.Second)
				}
			}
		}
	}
	return p.IdleTimeout
}

// heads are buffers for heads of requests.
var heads = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// maxKept limits the buffers that are used again.
const maxKept = 16 << 10

// send writes the request.
func (c *conn) send(r *http.Request) error {
	kept := heads.Get().(*[]byte)
	head, err := appendHead((*kept)[:0], r, c.upgrade)
	if err != nil {
		return err
	}
	_, err = c.Write(head)
	if cap(head) <= maxKept {
		*kept = head[:0]
		heads.Put(kept)
	}
	if err != nil {
		return staleError{fmt.Errorf("send the request: %w", err)}
	}
	return nil
}

// receive reads the response's header, and passes informational responses to early.
func (c *conn) receive(r *http.Request, early func(code int, h http.Header) error) (*http.Response, error) {
	if _, err := c.in.Peek(1); err != nil {
		return nil, staleError{fmt.Errorf("wait for the response: %w", err)}
	}
	for {
		res, err := http.ReadResponse(c.in, r)
		switch {
		case err != nil:
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("read the response: %w", err)
		case res.StatusCode < 100 || res.StatusCode > 199 || res.StatusCode == http.StatusSwitchingProtocols:
			return res, nil
		case res.StatusCode != http.StatusContinue:
			if err := early(res.StatusCode, res.Header); err != nil {
				return nil, err
			}
		}
	}
}

// appendHead appends the head of the request. Only one with upgrade may ask for another
// protocol.
func appendHead(b []byte, r *http.Request, upgrade bool) ([]byte, error) {
	uri := r.URL.RequestURI()
	if !httpguts.ValidHeaderFieldName(r.Method) || !httpguts.ValidHeaderFieldValue(uri+r.Host) || strings.ContainsAny(uri+r.Host, " \t") {
		return nil, fmt.Errorf("%w: its request line or host is not valid", errInvalidRequest)
	}
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, uri...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, r.Host...)
	b = append(b, "\r\n"...)
	for name, values := range r.Header {
		if framing[name] && !(upgrade && (name == "Connection" || name == "Upgrade")) {
			return nil, fmt.Errorf("%w: it has the header field %q", errInvalidRequest, name)
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return nil, fmt.Errorf("%w: the header field %q is not valid", errInvalidRequest, name)
			}
			b = append(b, name...)
			b = append(b, ": "...)
			b = append(b, value...)
			b = append(b, "\r\n"...)
		}
	}
	return append(b, "\r\n"...), nil
}

// framing are header fields that say where a message ends or how its connection is used,
// and Host, which has a place of its own.
var framing = map[string]bool{"Connection": true, "Content-Length": true, "Host": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true}

// body is the body of a response.
type body struct {
	io.ReadCloser
	pool     *Pool
	conn     *conn // nil when the response has ended
	ctx      context.Context
	stop     func() bool
	reusable bool
	chunked  bool
}

// Waits reports whether the next Read may have to wait for the network. Before that the
// caller passes on what it has read.
func (b *body) Waits() bool {
	if b.conn == nil {
		return false
	}
	ready, _ := b.conn.in.Peek(b.conn.in.Buffered())
	if !b.chunked {
		return len(ready) == 0
	}
	// The end of a chunk and a size are no data. Within a chunk this may say that it
	// waits although it does not.
	_, after, found := bytes.Cut(bytes.TrimPrefix(ready, []byte("\r\n")), []byte("\n"))
	return !found || len(after) == 0
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil {
		return n, nil
	}
	b.end(errors.Is(err, io.EOF))
	if !errors.Is(err, io.EOF) && b.ctx.Err() != nil {
		err = context.Cause(b.ctx)
	}
	return n, err
}

func (b *body) Close() error {
	b.end(false)
	return nil
}

// end gives the connection back, or closes it.
func (b *body) end(whole bool) {
	c := b.conn
	if c == nil {
		return
	}
	b.conn = nil
	// What comes unasked after a response is no response to the next request.
	if b.stop() && whole && b.reusable && c.in.Buffered() == 0 {
		b.pool.put(c)
		return
	}
	_ = c.Close() // it is abandoned
}
