package shortway

import (
	"context"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// Group is the requests of a server that have taken over their connections.
// http.Server.Shutdown does not know them.
type Group struct {
	ctx  context.Context
	end  context.CancelFunc
	open atomic.Int64
}

// NewGroup returns a Group without a request. A nil Group allows nothing.
func NewGroup() *Group {
	g := &Group{}
	g.ctx, g.end = context.WithCancel(context.Background())
	return g
}

// End ends the contexts of all requests, and of those that begin later.
func (g *Group) End() {
	if g != nil {
		g.end()
	}
}

// Open returns how many requests have taken over their connections and have not ended.
func (g *Group) Open() int {
	if g == nil {
		return 0
	}
	return int(g.open.Load())
}

// Wait waits until no request is open, or ctx ends.
func (g *Group) Wait(ctx context.Context) error {
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for g.Open() > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-poll.C:
		}
	}
	return nil
}

// Done reports the end of a request, after its connection was closed: the number of bytes
// sent since the handler has returned, and a panic or nil.
type Done func(sent int64, panicked *Panic)

// Panic is a panic that ended a request.
type Panic struct {
	Value any
	Stack string // of the goroutine that panicked
}

// Recovered returns the panic of which a deferred function has recovered the value v; nil
// if v is nil. That function must call it.
func Recovered(v any) *Panic {
	if v == nil {
		return nil
	}
	return &Panic{v, string(debug.Stack())}
}

// Request is a request that may continue after its handler. The handler's goroutine uses
// it.
type Request struct {
	group *Group
	run   func(Done) // nil: it does not continue
}

type key struct{}

// Allow lets the handler of a request with the returned context continue the request
// after it has returned. The caller must call Go if Begun reports true then.
func (g *Group) Allow(ctx context.Context) (context.Context, *Request) {
	c := &Request{group: g}
	if g == nil {
		return ctx, c
	}
	return context.WithValue(ctx, key{}, c), c
}

// Of returns what lets r continue after its handler, or nil if it cannot: the caller does
// not allow it, or it is not a GET request without a body over HTTP/1.
func Of(r *http.Request) *Request {
	if r.ProtoMajor != 1 || r.Method != http.MethodGet || r.ContentLength != 0 {
		return nil
	}
	c, _ := r.Context().Value(key{}).(*Request)
	return c
}

// Context ends with Group.End, and not with the handler.
func (c *Request) Context() context.Context { return c.group.ctx }

// Begin is called before the connection is taken over. After the handler has returned,
// which must not use the response any more, run is called; it returns at once, and Done
// is called later.
func (c *Request) Begin(run func(Done)) {
	c.group.open.Add(1) // before http.Server.Shutdown forgets the connection
	c.run = run
}

// Abort undoes Begin: the connection could not be taken over, or the handler has panicked.
func (c *Request) Abort() {
	c.run = nil
	c.group.open.Add(-1)
}

// Begun reports whether the request continues.
func (c *Request) Begun() bool { return c.run != nil }

// Go continues the request, and calls done at its end.
func (c *Request) Go(done Done) {
	g := c.group // the request does not keep c
	c.run(func(sent int64, panicked *Panic) {
		defer g.open.Add(-1)
		done(sent, panicked)
	})
}
