package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"codehub/internal/workspace"
)

// closeGrace is how long closed connections may take to end during a shutdown.
const closeGrace = time.Second

// connections tracks every relayed request and WebSocket by workspace, so that each
// can be closed with its route, its owner's session or the server.
type connections struct {
	perUser     int           // limit of a user; 0: none
	max         int           // limit of all users; 0: none
	idleTimeout time.Duration // 0: none
	// stallTimeout is how long a write to a client may take. A client that reads nothing
	// for so long is disconnected.
	stallTimeout time.Duration

	mu          sync.Mutex
	byWorkspace map[workspace.ID]map[*connection]struct{}
	byUser      map[string]int
	total       int
	closed      bool          // add is refused
	idle        chan struct{} // closed when closed is set and n is 0
}

func newConnections(s Settings, most int, stall time.Duration) *connections {
	return &connections{
		perUser: s.RequestsPerUser, max: most, idleTimeout: s.IdleTimeout, stallTimeout: stall,
		byWorkspace: map[workspace.ID]map[*connection]struct{}{}, byUser: map[string]int{}, idle: make(chan struct{}),
	}
}

// connection is one relayed request or WebSocket.
type connection struct {
	id       workspace.ID
	caller   workspace.Caller
	upstream *upstream
	cancel   context.CancelFunc

	// Unix nanoseconds, for closeStalled.
	transferred atomic.Int64 // when a byte last passed, in either direction
	writing     atomic.Int64 // since when a write to the client takes; 0: none does

	mu       sync.Mutex
	cut      bool // closed by the proxy
	returned bool // the handler has returned; w must not be used
	w        http.ResponseWriter
	conn     net.Conn // the client's side of a WebSocket; nil for a request
}

var (
	errClosed      = errors.New("the route is closed")
	errTooMany     = errors.New("too many requests of all users")
	errTooManyUser = errors.New("too many requests of the user")
)

// add tracks c, unless its route was closed in the meantime (errClosed) or a limit is
// reached.
func (cs *connections) add(c *connection) error {
	c.transferred.Store(time.Now().UnixNano())
	cs.mu.Lock()
	defer cs.mu.Unlock()
	switch {
	case cs.closed || c.upstream.closed:
		return errClosed
	case cs.perUser > 0 && cs.byUser[c.caller.UserID] >= cs.perUser:
		return errTooManyUser
	case cs.max > 0 && cs.total >= cs.max:
		return errTooMany
	}
	cs.byUser[c.caller.UserID]++
	c.upstream.idleSince = time.Time{}
	set := cs.byWorkspace[c.id]
	if set == nil {
		set = map[*connection]struct{}{}
		cs.byWorkspace[c.id] = set
	}
	set[c] = struct{}{}
	cs.total++
	return nil
}

func (cs *connections) remove(c *connection) {
	c.mu.Lock()
	c.returned = true
	c.mu.Unlock()
	cs.mu.Lock()
	defer cs.mu.Unlock()
	set := cs.byWorkspace[c.id]
	delete(set, c)
	if len(set) == 0 {
		delete(cs.byWorkspace, c.id)
	}
	if cs.byUser[c.caller.UserID]--; cs.byUser[c.caller.UserID] == 0 {
		delete(cs.byUser, c.caller.UserID)
	}
	cs.total--
	cs.signalIdle()
}

func (cs *connections) signalIdle() {
	if cs.closed && cs.total == 0 {
		close(cs.idle)
	}
}

// move assigns c to another upstream, or to none if to is nil. It returns false if
// that upstream is closed.
func (cs *connections) move(c *connection, to *upstream) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if to != nil && to.closed {
		return false
	}
	if to != nil {
		to.idleSince = time.Time{}
	}
	c.upstream = to
	return true
}

func (cs *connections) count() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.total
}

// workspaces lists the workspaces with open connections.
func (cs *connections) workspaces() []workspace.ID {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	ids := make([]workspace.ID, 0, len(cs.byWorkspace))
	for id := range cs.byWorkspace {
		ids = append(ids, id)
	}
	return ids
}

// closeUpstream refuses new connections to u and closes the existing ones.
func (cs *connections) closeUpstream(u *upstream) {
	cs.mu.Lock()
	u.closed = true
	cs.mu.Unlock()
	cs.closeWhere(u.id, func(c *connection) bool { return c.upstream == u })
	u.transport.CloseIdleConnections()
}

// closeIfIdle closes u if it has had no connections for that long.
func (cs *connections) closeIfIdle(u *upstream, after time.Duration) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.byWorkspace[u.id] {
		if c.upstream == u {
			return false
		}
	}
	if u.idleSince.IsZero() {
		u.idleSince = time.Now()
	}
	if time.Since(u.idleSince) < after {
		return false
	}
	u.closed = true
	u.transport.CloseIdleConnections()
	return true
}

// closeWhere closes the workspace's connections that match.
func (cs *connections) closeWhere(id workspace.ID, match func(*connection) bool) {
	var matched []*connection
	cs.mu.Lock()
	for c := range cs.byWorkspace[id] {
		if match(c) {
			matched = append(matched, c)
		}
	}
	cs.mu.Unlock()
	for _, c := range matched {
		c.close()
	}
}

// drain closes the WebSockets, which have no natural end, waits for the
// requests, and closes those as well when ctx ends.
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
	case <-time.After(closeGrace):
	}
	return ctx.Err()
}

// closeStalled closes the connections that transfer nothing, and those whose client
// does not read.
func (cs *connections) closeStalled(now time.Time) {
	cs.closeAll(func(c *connection) bool {
		writing := c.writing.Load()
		return writing != 0 && now.Sub(time.Unix(0, writing)) > cs.stallTimeout ||
			cs.idleTimeout > 0 && now.Sub(time.Unix(0, c.transferred.Load())) > cs.idleTimeout
	})
}

func (cs *connections) closeAll(match func(*connection) bool) {
	for _, id := range cs.workspaces() {
		cs.closeWhere(id, match)
	}
}

// close ends both sides without waiting for pending reads or writes: cancelling the
// context closes the container's side, and deadlines in the past end the client's.
func (c *connection) close() {
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut || c.returned {
		return
	}
	c.cut = true
	if c.conn != nil {
		_ = c.conn.Close() // it is abandoned either way
		return
	}
	past := time.Unix(1, 0)
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(past) // fails only if the writer is not a network connection
	_ = rc.SetWriteDeadline(past)
}

// beginWrite and endWrite enclose every write to the client.
func (c *connection) beginWrite() {
	now := time.Now().UnixNano()
	c.transferred.Store(now)
	c.writing.Store(now)
}

func (c *connection) endWrite() { c.writing.Store(0) }

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

// attach sets the client's side of a WebSocket. It returns false if the connection
// was closed in the meantime or the server is shutting down.
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
