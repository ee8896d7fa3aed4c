package proxy

import (
	"context"
	"errors"
	"hash/maphash"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"codehub/internal/gateway/shortway"
	"codehub/internal/workspace"
)

// closeGrace is how long closed connections may take to end during a shutdown.
const closeGrace = time.Second

// connections tracks every relayed request and WebSocket by workspace, so that each
// can be closed with its route, its owner's session or the server. No lock is shared by
// all requests.
type connections struct {
	perUser     int           // limit of a user; 0: none
	perGuest    int           // limit of an address without a session; 0: none
	max         int           // limit of all users; 0: none
	idleTimeout time.Duration // 0: none
	// stallTimeout is how long a write to a client may take. A client that reads nothing
	// for so long is disconnected.
	stallTimeout time.Duration
	sessions     Sessions

	seed   maphash.Seed
	shards [shards]shard

	pace *pace

	total    atomic.Int64
	refusing atomic.Bool   // add returns errClosed
	idle     chan struct{} // closed when refusing is set and total is 0
	drain    sync.Once     // closes idle
}

// restAfter is the time without a byte in both directions after which the goroutines of a
// WebSocket are released. It is shorter than the interval of the keep-alive messages of VS
// Code.
const restAfter = time.Second

// shards is how many locks the tables of connections have.
const shards = 64

// shard is the part of the tables for the keys with its hash.
type shard struct {
	mu         sync.Mutex
	workspaces map[workspace.ID]map[*connection]struct{}
	users      map[string]*account
	visitors   map[string]*visitor // by session
}

// visitor is a session or token that has connections, or had some a moment ago. One
// registration watches for its end, however many requests it sends.
type visitor struct {
	watched   context.Context
	stop      context.CancelFunc
	open      int
	forgotten bool // by forgetIdle
}

func newConnections(s Settings, most int, stall time.Duration, sessions Sessions) *connections {
	cs := &connections{
		perUser: s.RequestsPerUser, perGuest: s.Ports.PublicRequests, max: most, idleTimeout: s.IdleTimeout, stallTimeout: stall,
		sessions: sessions, seed: maphash.MakeSeed(), idle: make(chan struct{}), pace: newPace(),
	}
	for i := range cs.shards {
		cs.shards[i] = shard{workspaces: map[workspace.ID]map[*connection]struct{}{}, users: map[string]*account{}, visitors: map[string]*visitor{}}
	}
	return cs
}

// shard returns the shard of a workspace, a user or a session.
func (cs *connections) shard(key string) *shard {
	return &cs.shards[maphash.String(cs.seed, key)%shards]
}

// connection is one relayed request or WebSocket.
type connection struct {
	id       workspace.ID
	caller   workspace.Caller
	port     int    // of the workspace's host; 0: the IDE's, or the main origin
	payer    string // whose limits it counts against; empty: the caller's
	leave    func() // uncounts it for the limit of its port; or nil
	upstream *upstream

	// Unix nanoseconds, for closeStalled.
	transferred atomic.Int64 // when a byte last passed, in either direction
	writing     atomic.Int64 // since when a write to the client takes; 0: none does
	until       atomic.Int64 // when the share ends by which it was admitted; 0: it does not

	socket atomic.Pointer[shortway.WebSocket] // of a WebSocket that can rest; else nil

	account *account // of the caller
	pace    *pace

	mu       sync.Mutex
	cut      bool // closed by the proxy
	returned bool // the request or WebSocket has ended; w must not be used
	cancel   context.CancelFunc
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
	payer, limit := c.paidBy(), cs.perUser
	if c.payer != "" {
		limit = cs.perGuest
	}
	if c.account = cs.shard(payer).enter(payer, limit); c.account == nil {
		return errTooManyUser
	}
	c.pace = cs.pace
	if err := cs.enter(); err != nil {
		cs.shard(payer).leave(payer)
		return err
	}
	of := cs.shard(string(c.id))
	of.mu.Lock()
	open := !c.upstream.closed
	if open {
		of.add(c)
		c.upstream.idleSince = time.Time{}
	}
	of.mu.Unlock()
	if !open {
		cs.release(c)
		return errClosed
	}
	if c.payer == "" {
		// Only now, so that the end of the session finds c.
		cs.watch(c.caller.Session)
	}
	return nil
}

// paidBy is the user whose limits count c, or the address of a visitor without a
// session.
func (c *connection) paidBy() string {
	if c.payer != "" {
		return c.payer
	}
	return c.caller.UserID
}

func (cs *connections) enter() error {
	total := cs.total.Add(1)
	switch {
	case cs.refusing.Load(): // shutdown sets it before it looks at total
		cs.leave()
		return errClosed
	case cs.max > 0 && total > int64(cs.max):
		cs.leave()
		return errTooMany
	}
	return nil
}

// enter counts a connection of the user, and returns nil if that would be too many.
func (s *shard) enter(user string, limit int) *account {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.users[user]
	if a == nil {
		a = &account{}
		s.users[user] = a
	}
	if limit > 0 && a.open >= limit {
		return nil
	}
	a.open++
	return a
}

func (s *shard) leave(user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[user].open--
}

func (s *shard) add(c *connection) {
	set := s.workspaces[c.id]
	if set == nil {
		set = map[*connection]struct{}{}
		s.workspaces[c.id] = set
	}
	set[c] = struct{}{}
}

func (s *shard) remove(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set := s.workspaces[c.id]
	delete(set, c)
	if len(set) == 0 {
		delete(s.workspaces, c.id)
	}
}

// watch closes the session's connections when it ends.
func (cs *connections) watch(session string) {
	s := cs.shard(session)
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.visitors[session]
	if v == nil || v.watched.Err() != nil {
		// If the watch has ended but the request was still authenticated, the session is
		// registered again. The next check ends it if it is not valid.
		renewed := &visitor{}
		if v != nil {
			renewed.open = v.open
			v.stop()
		}
		v = renewed
		v.watched, v.stop = cs.sessions.Watch(context.Background(), session)
		s.visitors[session] = v
		context.AfterFunc(v.watched, func() { cs.closeSession(v, session) })
	}
	v.open++
}

// closeSession closes the connections of a session that has ended.
func (cs *connections) closeSession(v *visitor, session string) {
	s := cs.shard(session)
	s.mu.Lock()
	forgotten := v.forgotten
	s.mu.Unlock()
	if !forgotten {
		cs.closeAll(func(c *connection) bool { return c.caller.Session == session })
	}
}

// forgetIdle stops to watch sessions that have no connections, and forgets users who have
// none.
func (cs *connections) forgetIdle() {
	now := time.Now().UnixNano()
	for i := range cs.shards {
		s := &cs.shards[i]
		s.mu.Lock()
		for user, a := range s.users {
			if a.open == 0 && a.settled(now, cs.pace.rate) {
				delete(s.users, user)
			}
		}
		for session, v := range s.visitors {
			if v.open == 0 {
				delete(s.visitors, session)
				v.forgotten = true
				v.stop()
			}
		}
		s.mu.Unlock()
	}
}

func (cs *connections) remove(c *connection) {
	c.mu.Lock()
	c.returned = true
	c.mu.Unlock()
	cs.shard(string(c.id)).remove(c)
	if c.payer == "" {
		s := cs.shard(c.caller.Session)
		s.mu.Lock()
		s.visitors[c.caller.Session].open--
		s.mu.Unlock()
	}
	cs.release(c)
	if c.leave != nil {
		c.leave()
	}
}

// release undoes what add has counted for the limits.
func (cs *connections) release(c *connection) {
	cs.shard(c.paidBy()).leave(c.paidBy())
	cs.leave()
}

func (cs *connections) leave() {
	if cs.total.Add(-1) == 0 && cs.refusing.Load() {
		cs.drained()
	}
}

func (cs *connections) drained() { cs.drain.Do(func() { close(cs.idle) }) }

// move assigns c to another upstream, or to none if to is nil. It returns false if
// that upstream is closed.
func (cs *connections) move(c *connection, to *upstream) bool {
	of := cs.shard(string(c.id))
	of.mu.Lock()
	defer of.mu.Unlock()
	if to != nil && to.closed {
		return false
	}
	if to != nil {
		to.idleSince = time.Time{}
	}
	c.upstream = to
	return true
}

func (cs *connections) count() int { return int(cs.total.Load()) }

// any reports whether a workspace has open connections.
func (cs *connections) any(id workspace.ID) bool {
	s := cs.shard(string(id))
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.workspaces[id]) > 0
}

// open lists the workspaces with open connections.
func (cs *connections) open() []workspace.ID {
	var ids []workspace.ID
	for i := range cs.shards {
		s := &cs.shards[i]
		s.mu.Lock()
		for id := range s.workspaces {
			ids = append(ids, id)
		}
		s.mu.Unlock()
	}
	return ids
}

// closeUpstream refuses new connections to u and closes the existing ones.
func (cs *connections) closeUpstream(u *upstream) {
	of := cs.shard(string(u.id))
	of.mu.Lock()
	u.closed = true
	of.mu.Unlock()
	cs.closeWhere(u.id, func(c *connection) bool { return c.upstream == u })
	u.closePools()
}

// closeIfIdle closes u if it has had no connections for that long.
func (cs *connections) closeIfIdle(u *upstream, after time.Duration) bool {
	of := cs.shard(string(u.id))
	of.mu.Lock()
	defer of.mu.Unlock()
	for c := range of.workspaces[u.id] {
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
	u.closePools()
	return true
}

// closeWhere closes the workspace's connections that match.
func (cs *connections) closeWhere(id workspace.ID, match func(*connection) bool) {
	var matched []*connection
	of := cs.shard(string(id))
	of.mu.Lock()
	for c := range of.workspaces[id] {
		if match(c) {
			matched = append(matched, c)
		}
	}
	of.mu.Unlock()
	for _, c := range matched {
		c.close()
	}
}

// shutdown closes the WebSockets, which have no natural end, waits for the
// requests, and closes those as well when ctx ends.
func (cs *connections) shutdown(ctx context.Context) error {
	cs.refusing.Store(true)
	if cs.total.Load() == 0 {
		cs.drained()
	}
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

// closeStalled closes the connections that transfer nothing, those whose client does not
// read, and those whose share has ended.
func (cs *connections) closeStalled(now time.Time) {
	cs.closeAll(func(c *connection) bool {
		writing, until := c.writing.Load(), c.until.Load()
		return until != 0 && now.UnixNano() >= until || writing != 0 && now.Sub(time.Unix(0, writing)) > cs.stallTimeout ||
			cs.idleTimeout > 0 && now.Sub(time.Unix(0, c.transferred.Load())) > cs.idleTimeout
	})
}

// restIdle releases the goroutines of WebSockets that transfer nothing.
func (cs *connections) restIdle(now time.Time) {
	for i := range cs.shards {
		s := &cs.shards[i]
		s.mu.Lock()
		for _, set := range s.workspaces {
			for c := range set {
				if socket := c.socket.Load(); socket != nil && now.Sub(time.Unix(0, c.transferred.Load())) > restAfter {
					socket.Rest()
				}
			}
		}
		s.mu.Unlock()
	}
}

func (cs *connections) closeAll(match func(*connection) bool) {
	for _, id := range cs.open() {
		cs.closeWhere(id, match)
	}
}

// close ends both sides without waiting for pending reads or writes: cancelling the
// context closes the container's side, and deadlines in the past end the client's. A
// WebSocket that is detached from its handler closes both sides itself.
func (c *connection) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.returned {
		return
	}
	c.cancel()
	if c.cut {
		return
	}
	c.cut = true
	if c.conn != nil {
		_ = c.conn.Close() // it is abandoned either way
		return
	}
	if c.w == nil { // cancel ends both sides
		return
	}
	past := time.Unix(1, 0)
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(past) // fails only if the writer is not a network connection
	_ = rc.SetWriteDeadline(past)
}

// BeginWrite and EndWrite, which gets the bytes written, enclose every write to the client.
func (c *connection) BeginWrite() {
	now := time.Now().UnixNano()
	c.transferred.Store(now)
	c.writing.Store(now)
}

func (c *connection) EndWrite(n int) {
	c.writing.Store(0)
	c.moved(n)
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

// detach lets a WebSocket continue after its handler: it keeps nothing of the request.
func (c *connection) detach() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.w, c.cancel = nil, func() {}
}

// attach sets the client's side of a WebSocket. It returns false if the connection
// was closed in the meantime or the server is shutting down.
func (cs *connections) attach(c *connection, conn net.Conn) bool {
	c.mu.Lock()
	if c.cut {
		c.mu.Unlock()
		return false
	}
	c.conn = conn
	c.mu.Unlock()
	return !cs.refusing.Load() // shutdown sets it before it looks for WebSockets
}
