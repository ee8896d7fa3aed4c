package shortway

import (
	"bufio"
	"context"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Pool keeps connections to one address. The exported fields are set before it is used.
type Pool struct {
	// Dial connects to the address.
	Dial func(ctx context.Context) (net.Conn, error)
	// IdleTimeout is how long a connection stays open without a request, unless the other
	// side announces a shorter time (Keep-Alive: timeout=5).
	IdleTimeout time.Duration
	// MaxIdle limits the connections without a request.
	MaxIdle int
	// MaxHeader limits the bytes before the body of a response, informational
	// responses included.
	MaxHeader int

	mu     sync.Mutex
	closed bool
	idle   []*conn     // the one that was used last is the last
	sweeps *time.Timer // nil until a connection is idle
}

// conn is a connection to the address. One goroutine at a time uses it.
type conn struct {
	net.Conn
	raw       syscall.RawConn // of Conn; nil if it has none
	upgrade   bool            // its only request asks for another protocol
	reused    bool
	keep      time.Duration // how long it may be idle
	idleSince time.Time
	in        *bufio.Reader // nil while it is idle
	headLeft  int           // bytes that may still come before the body; -1: no limit
}

func (c *conn) Read(p []byte) (int, error) {
	if c.headLeft < 0 {
		return c.Conn.Read(p)
	}
	if c.headLeft == 0 {
		return 0, errHeaderTooLarge
	}
	n, err := c.Conn.Read(p[:min(len(p), c.headLeft)])
	c.headLeft -= n
	return n, err
}

// take returns the idle connection that was used last, or nil.
func (p *Pool) take() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) > 0 {
		c := p.idle[len(p.idle)-1]
		p.idle[len(p.idle)-1] = nil
		p.idle = p.idle[:len(p.idle)-1]
		if c.usable() && c.quiet() {
			return c
		}
		_ = c.Close() // it is abandoned
	}
	return nil
}

func newConn(opened net.Conn) *conn {
	c := &conn{Conn: opened}
	if s, ok := opened.(syscall.Conn); ok {
		c.raw, _ = s.SyscallConn() // without it nothing is checked
	}
	return c
}

// quiet reports whether the other side has neither sent anything since the last response
// nor closed the connection. What comes unasked is no response to the next request.
func (c *conn) quiet() (is bool) {
	if c.raw == nil {
		return true
	}
	err := c.raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		is = err == unix.EAGAIN
		return true
	})
	return is && err == nil
}

func (c *conn) usable() bool { return time.Since(c.idleSince) < c.keep }

// put keeps a connection for the next request.
func (p *Pool) put(c *conn) {
	c.in.Reset(nil) // the reader keeps no connection
	readers.Put(c.in)
	c.in, c.reused, c.idleSince = nil, true, time.Now()
	if c.keep <= 0 {
		_ = c.Close() // the other side is about to close it
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= p.MaxIdle {
		_ = c.Close() // it is not needed
		return
	}
	p.idle = append(p.idle, c)
	switch {
	case p.sweeps == nil:
		p.sweeps = time.AfterFunc(c.keep, p.sweep)
	case len(p.idle) == 1:
		p.sweeps.Reset(c.keep)
	}
}

// sweep closes the connections that have been idle for too long.
func (p *Pool) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = slices.DeleteFunc(p.idle, func(c *conn) bool {
		if c.usable() {
			return false
		}
		_ = c.Close() // it is abandoned
		return true
	})
	if len(p.idle) > 0 {
		p.sweeps.Reset(p.idle[0].keep - time.Since(p.idle[0].idleSince))
	}
}

// Close closes the connections without a request, and each other one when its request
// has ended.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.idle {
		_ = c.Close() // it is abandoned
	}
	p.idle = nil
}

var readers = sync.Pool{New: func() any { return bufio.NewReader(nil) }}
