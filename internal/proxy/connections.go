package proxy

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"codehub/internal/workspace"
)

// unwind is how long what was cut off may take to be gone.
const unwind = time.Second

// connections records every request and WebSocket that is being relayed, by
// workspace, so that each can be ended with its route, its owner or the server.
type connections struct {
	mu     sync.Mutex
	by     map[workspace.ID]map[*connection]struct{}
	n      int
	closed bool          // nothing is added any more
	idle   chan struct{} // closed when closed is set and n is 0
}

func newConnections() *connections {
	return &connections{by: map[workspace.ID]map[*connection]struct{}{}, idle: make(chan struct{})}
}

// connection is one request or WebSocket on its way through the proxy.
type connection struct {
	id       workspace.ID
	caller   workspace.Caller
	upstream *upstream
	cancel   context.CancelFunc

	mu   sync.Mutex
	cut  bool // closed by us, before its time
	over bool // the handler has returned; w is somebody else's
	w    http.ResponseWriter
	conn net.Conn // the visitor's end of a WebSocket; nil for a request
}

// add records c, unless its route has been closed in the meantime.
func (cs *connections) add(c *connection) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed || c.upstream.closed {
		return false
	}
	c.upstream.idle = time.Time{}
	set := cs.by[c.id]
	if set == nil {
		set = map[*connection]struct{}{}
		cs.by[c.id] = set
	}
	set[c] = struct{}{}
	cs.n++
	return true
}

func (cs *connections) remove(c *connection) {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	cs.mu.Lock()
	defer cs.mu.Unlock()
	set := cs.by[c.id]
	delete(set, c)
	if len(set) == 0 {
		delete(cs.by, c.id)
	}
	cs.n--
	cs.signalIdle()
}

func (cs *connections) signalIdle() {
	if cs.closed && cs.n == 0 {
		close(cs.idle)
	}
}

// move records that c now goes to another upstream, unless that is closed, or,
// with nil, to none.
func (cs *connections) move(c *connection, to *upstream) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if to != nil && to.closed {
		return false
	}
	if to != nil {
		to.idle = time.Time{}
	}
	c.upstream = to
	return true
}

func (cs *connections) count() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.n
}

// workspaces lists those with anything open.
func (cs *connections) workspaces() []workspace.ID {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	ids := make([]workspace.ID, 0, len(cs.by))
	for id := range cs.by {
		ids = append(ids, id)
	}
	return ids
}

// closeUpstream lets nothing more to u and ends what goes there.
func (cs *connections) closeUpstream(u *upstream) {
	cs.mu.Lock()
	u.closed = true
	cs.mu.Unlock()
	cs.closeWhere(u.id, func(c *connection) bool { return c.upstream == u })
	u.transport.CloseIdleConnections()
}

// retire closes u if nothing has gone there for that long.
func (cs *connections) retire(u *upstream, after time.Duration) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.by[u.id] {
		if c.upstream == u {
			return false
		}
	}
	if u.idle.IsZero() {
		u.idle = time.Now()
	}
	if time.Since(u.idle) < after {
		return false
	}
	u.closed = true
	u.transport.CloseIdleConnections()
	return true
}

// closeWhere ends the workspace's connections that match.
func (cs *connections) closeWhere(id workspace.ID, match func(*connection) bool) {
	var matched []*connection
	cs.mu.Lock()
	for c := range cs.by[id] {
		if match(c) {
			matched = append(matched, c)
		}
	}
	cs.mu.Unlock()
	for _, c := range matched {
		c.close()
	}
}

// drain ends the WebSockets, which never end by themselves, waits for the
// rest, and ends that too when ctx does.
func (cs *connections) drain(ctx context.Context) error {
	cs.mu.Lock()
	if !cs.closed {
		cs.closed = true
		cs.signalIdle()
	}
	cs.mu.Unlock()
	cs.closeAll((*connection).isWebSocket)
	select {
	case <-cs.idle:
		return nil
	case <-ctx.Done():
	}
	cs.closeAll(func(*connection) bool { return true })
	select {
	case <-cs.idle:
	case <-time.After(unwind):
	}
	return ctx.Err()
}

func (cs *connections) closeAll(match func(*connection) bool) {
	for _, id := range cs.workspaces() {
		cs.closeWhere(id, match)
	}
}

// close ends the connection on both sides, whatever its copying waits for:
// the cancelled context closes the container's side, and a visitor who
// neither reads nor writes is not waited for.
func (c *connection) close() {
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut || c.over {
		return
	}
	c.cut = true
	if c.conn != nil {
		_ = c.conn.Close() // it is given up either way
		return
	}
	past := time.Unix(1, 0)
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(past) // a writer that cannot is not a network connection
	_ = rc.SetWriteDeadline(past)
}

func (c *connection) wasCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

func (c *connection) isWebSocket() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn != nil
}

// attach hands over the visitor's end of a WebSocket; it is refused if the
// connection has been closed meanwhile, or none may begin any more.
func (cs *connections) attach(c *connection, conn net.Conn) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if cs.closed || c.cut {
		return false
	}
	c.conn = conn
	return true
}
