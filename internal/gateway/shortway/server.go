package shortway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"codehub/internal/gateway/front"
	"codehub/internal/gateway/inbound"
)

// Server serves the plain requests of HTTP/1.1 connections. A plain request is a GET or
// HEAD that has no body and asks for no upgrade; see plainHead. Nearly all requests of an
// IDE are plain. Server does less for them than net/http, which starts a goroutine for
// each request. A connection whose next request is not plain is handed to net/http, with
// the bytes that were read, and stays there.
//
// Handlers see the same as with net/http, but cannot hijack the connection.
type Server struct {
	// HTTP serves the listener that Listen returns. Its Handler, BaseContext, ConnState,
	// ErrorLog and timeouts apply.
	HTTP *http.Server
	// Serves reports whether requests for this host and target are served; others are
	// handed over.
	Serves func(host, target string) bool
	// Off leaves all requests to net/http.
	Off bool

	mu     sync.Mutex
	open   map[*plainConn]struct{}
	closed chan struct{} // closed when closing is set and no connection is open
	once   sync.Once     // closes closed
	first  turns         // of first requests

	closing atomic.Bool
}

// Listen returns a listener for HTTP on l; see inbound.Strict.
func (s *Server) Listen(l net.Listener) net.Listener {
	s.open, s.closed, s.first = map[*plainConn]struct{}{}, make(chan struct{}), newTurns()
	if s.Off {
		return inbound.Strict(l, nil)
	}
	base := context.Background()
	if s.HTTP.BaseContext != nil {
		base = s.HTTP.BaseContext(l)
	}
	return inbound.Strict(l, func(c net.Conn) net.Conn { return s.serve(base, c) })
}

// Shutdown closes the connections without a request and waits for the others until ctx
// ends, then closes those and returns ctx's error. The Server is to be shut down, too.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closing.Store(true)
	s.signal()
	for c := range s.open {
		if c.idle.Load() {
			c.sever()
		}
	}
	s.mu.Unlock()
	select {
	case <-s.closed:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		c.sever()
	}
	return ctx.Err()
}

func (s *Server) track(c *plainConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[c] = struct{}{}
}

func (s *Server) forget(c *plainConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
	s.signal()
}

func (s *Server) signal() {
	if s.closing.Load() && len(s.open) == 0 {
		s.once.Do(func() { close(s.closed) })
	}
}

// plainBuffer is the largest head of a plain request.
const plainBuffer = 4 << 10

// watchAfter is how long a request may take until its client is watched, so that it can
// be ended when the client leaves. Most are answered before.
const watchAfter = 50 * time.Millisecond

// plainConn is a connection of a client, served by one goroutine.
type plainConn struct {
	net.Conn
	// out is for writing: the TCP connection below if there is no TLS, because only that
	// writes several buffers at once. Deadlines are those of Conn.
	out    net.Conn
	server *Server
	secure *tls.ConnectionState // nil without TLS
	remote string
	in     *bufio.Reader
	ctx    context.Context
	leave  context.CancelFunc

	host   string // if served is set: the last host, of which Server.Serves accepts every target
	served bool
	readBy time.Time // the deadline for reading
	idle   atomic.Bool

	// See Repeat.
	handled []byte   // the head of the request that the handler serves
	repeat  Repeated // or nil
	fields  []byte   // of the request that called Repeat, if repeat is set
	answer  Answer   // to the last request that repeat was given

	watcher *time.Timer
	watched chan struct{} // gets one value when the watcher has ended

	mu       sync.Mutex
	watching bool      // a request is served
	severed  bool      // nothing more is written or read
	up       net.Conn  // see Answer.Hold; or nil
	writeBy  time.Time // the deadline for writing
}

// serve serves a connection until it ends, and returns nil, or until its next request is not
// plain, and returns what continues it.
func (s *Server) serve(base context.Context, conn net.Conn) net.Conn {
	c := &plainConn{Conn: conn, out: conn, server: s, remote: conn.RemoteAddr().String(), in: bufio.NewReaderSize(conn, plainBuffer), watched: make(chan struct{}, 1)}
	if secure, ok := conn.(*tls.Conn); ok {
		state := secure.ConnectionState()
		c.secure = &state
	} else if tcp, ok := front.TCP(conn); ok {
		c.out = tcp
	}
	ctx := context.WithValue(context.WithValue(base, http.ServerContextKey, s.HTTP), http.LocalAddrContextKey, conn.LocalAddr())
	c.ctx, c.leave = context.WithCancel(ctx)
	defer context.AfterFunc(c.ctx, c.interrupt)()
	c.watcher = time.AfterFunc(time.Hour, c.watch)
	c.watcher.Stop()
	s.track(c)
	mine := c.requests()
	s.forget(c)
	c.leave()
	if mine || !c.setReadBy(time.Time{}) {
		_ = conn.Close() // a client that has left or was answered, or the connection was severed
		return nil
	}
	rest, _ := c.in.Peek(c.in.Buffered())
	return Replay(conn, rest)
}

// requests serves plain requests. It returns true when the connection has to be closed,
// and false when the next request is not plain.
func (c *plainConn) requests() (end bool) {
	srv := c.server.HTTP
	timeout, endTurn := srv.ReadHeaderTimeout, func() {}
	defer func() { endTurn() }()
	for first := true; ; first = false {
		head, err := c.head(timeout)
		if err != nil {
			return true
		}
		if first {
			endTurn = c.server.first.begin(c.ctx)
		}
		target, repeated := c.repeatedTarget(head)
		if !repeated {
			host, target, ok := plainHead(head)
			if !ok || !c.serves(host, target) {
				return false
			}
		}
		if srv.ConnState != nil {
			srv.ConnState(c.Conn, http.StateActive)
		}
		if !c.respond(head, target, repeated) || c.server.closing.Load() {
			return true
		}
		endTurn()
		if srv.ConnState != nil {
			srv.ConnState(c.Conn, http.StateIdle)
		}
		timeout = srv.IdleTimeout
	}
}

// serves is Server.Serves, remembered for the host of the last request.
func (c *plainConn) serves(host, target []byte) bool {
	if c.served && string(host) == c.host {
		return true
	}
	name := string(host)
	if !c.server.Serves(name, string(target)) {
		return false
	}
	// A host is remembered if all its targets are served.
	c.host, c.served = name, c.server.Serves(name, "/")
	return true
}

// head waits for the next request and returns its head, as long as it stays in the
// buffer. A head that does not fit is cut off.
func (c *plainConn) head(timeout time.Duration) ([]byte, error) {
	if c.in.Buffered() == 0 {
		c.idle.Store(true)
		defer c.idle.Store(false)
		if c.server.closing.Load() {
			return nil, http.ErrServerClosed
		}
		// The deadline is not renewed for each of many requests.
		switch until := time.Now().Add(timeout); {
		case timeout == 0 && !c.readBy.IsZero():
			c.setReadBy(time.Time{})
		case timeout != 0 && until.Sub(c.readBy).Abs() > timeout/8:
			c.setReadBy(until)
		}
		if _, err := c.in.Peek(1); err != nil {
			return nil, err
		}
	}
	begun := false
	for {
		head, _ := c.in.Peek(c.in.Buffered())
		if end := bytes.Index(head, []byte("\r\n\r\n")); end >= 0 {
			return head[:end+4], nil
		}
		if len(head) == plainBuffer {
			return head, nil
		}
		if limit := c.server.HTTP.ReadHeaderTimeout; !begun && limit != 0 {
			begun = true
			if until := time.Now().Add(limit); c.readBy.IsZero() || until.Before(c.readBy) {
				c.setReadBy(until)
			}
		}
		if _, err := c.in.Peek(len(head) + 1); err != nil {
			return nil, err
		}
	}
}

// setReadBy sets the deadline for reading; zero: none. It returns false if the connection
// was severed.
func (c *plainConn) setReadBy(t time.Time) bool {
	c.readBy = t
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.severed {
		return false
	}
	_ = c.SetReadDeadline(t)
	return true
}

// respond serves one request, whose head is the next in c.in. It returns false when the
// connection has to be closed.
func (c *plainConn) respond(head, target []byte, repeated bool) (open bool) {
	// What was read into c.in may be overwritten by what comes next.
	held := heads.Get().(*[]byte)
	defer heads.Put(held)
	*held = append((*held)[:0], head...)
	from := c.in
	if repeated && !c.server.closing.Load() {
		_, _ = c.in.Discard(len(head)) // it was peeked at
		answered, open := c.again(*held, target)
		if answered {
			return open
		}
		from = bufio.NewReader(bytes.NewReader(*held))
	}
	c.repeat, c.handled = nil, *held
	defer func() { c.handled = nil }()
	return c.serveNext(from)
}

// read reads a request.
func (c *plainConn) read(from *bufio.Reader) (*http.Request, error) {
	r, err := http.ReadRequest(from)
	if err != nil {
		return nil, err
	}
	r.RemoteAddr, r.TLS = c.remote, c.secure
	return r, nil
}

// serveNext serves the next request of from by the handler. It returns false when the
// connection has to be closed.
func (c *plainConn) serveNext(from *bufio.Reader) bool {
	r, err := c.read(from)
	if err != nil {
		if timeout := c.server.HTTP.WriteTimeout; timeout > 0 {
			c.setWriteBy(time.Now().Add(timeout))
		}
		_, _ = c.out.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request"))
		return false
	}
	w := newPlainWriter(c, r)
	defer w.release()
	c.mu.Lock()
	c.watching = true
	c.mu.Unlock()
	c.watcher.Reset(watchAfter)
	ctx, end := context.WithCancel(c.ctx)
	ok := c.handle(w, r.WithContext(ctx))
	c.unwatch()
	if !ok {
		w.abort()
		end()
		return false
	}
	whole := w.finish()
	end()
	return whole
}

// handle calls the handler. It returns false if that panicked.
func (c *plainConn) handle(w *plainWriter, r *http.Request) (ok bool) {
	defer c.recovered()
	c.server.HTTP.Handler.ServeHTTP(w, r)
	return true
}

// recovered is deferred. It logs a panic.
func (c *plainConn) recovered() {
	if v := recover(); v != nil && v != http.ErrAbortHandler && c.server.HTTP.ErrorLog != nil {
		c.server.HTTP.ErrorLog.Printf("panic serving %s: %v", c.remote, v)
	}
}

// interrupt interrupts reads and writes of the connection that is held. It runs when c.ctx
// has ended.
func (c *plainConn) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.up != nil {
		_ = c.up.SetDeadline(time.Unix(1, 0))
		c.up = nil
	}
}

// watch ends the request when its client leaves.
func (c *plainConn) watch() {
	defer func() { c.watched <- struct{}{} }()
	c.mu.Lock()
	watching := c.watching && !c.severed
	if watching {
		_ = c.SetReadDeadline(time.Time{})
	}
	c.mu.Unlock()
	if !watching {
		return
	}
	if _, err := c.in.Peek(1); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.leave()
	}
}

// unwatch ends the watcher.
func (c *plainConn) unwatch() {
	stopped := c.watcher.Stop()
	c.mu.Lock()
	c.watching = false
	if !stopped {
		_ = c.SetReadDeadline(time.Unix(1, 0))
	}
	c.mu.Unlock()
	if !stopped {
		<-c.watched
		c.setReadBy(time.Time{})
	}
}

// sever ends the request, and reads and writes, also those that are blocked.
func (c *plainConn) sever() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.severed = true
	_ = c.SetDeadline(time.Unix(1, 0))
	c.leave()
}

// setWriteBy sets the deadline of the following writes. It returns false if the
// connection was severed.
func (c *plainConn) setWriteBy(t time.Time) bool {
	if t.Equal(c.writeBy) {
		return true // a write on a severed connection fails by itself
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.severed {
		return false
	}
	c.writeBy = t
	_ = c.SetWriteDeadline(t)
	return true
}
