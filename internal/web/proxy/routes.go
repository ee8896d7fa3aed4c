package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

const (
	fillTimeout = 10 * time.Second
	// unconfirmedAge is how long a route is cached that the runtime did not
	// confirm.
	unconfirmedAge = 2 * time.Second
	// addressMaxIdle is how long the address of a container without connections is
	// kept, for use while Docker is not responding.
	addressMaxIdle = 10 * time.Minute
	// maxFills limits how often a request repeats a lookup that was invalidated
	// while it ran.
	maxFills = 8
	// maxChecks limits concurrent checks.
	maxChecks = 4
)

var errUnsettled = errors.New("the workspace's state keeps changing")

// route is the cached state of a workspace. It is immutable.
type route struct {
	workspace workspace.Workspace
	shares    map[int]share // in effect, by port
	guests    workspace.Guests
	upstream  *upstream // nil unless the workspace and its container are running
	readAt    time.Time
	confirmed bool // false: the runtime could not be asked
}

func (r *route) fresh(maxAge time.Duration) bool {
	if !r.confirmed {
		maxAge = min(maxAge, unconfirmedAge)
	}
	return time.Since(r.readAt) < maxAge
}

// routes caches the route of each workspace. An entry is at most maxAge old, and
// its lookup began after the last invalidation.
type routes struct {
	store          Store
	runtime        runtime.Upstreams
	open           *connections
	maxAge         time.Duration
	visibility     workspace.Visibility // the widest of a port
	sharing        bool                 // workspaces have guests; never in path mode
	addressMaxIdle time.Duration        // see lookupUpstream
	loopbackPorts  bool                 // for tests, see upstream.loopback

	cached sync.Map // of *route by workspace.ID; written with mu locked

	mu    sync.Mutex
	fills map[workspace.ID]*fill
	// upstreams outlive their routes: a route that is read again unchanged keeps
	// its connections.
	upstreams map[workspace.ID]*upstream
}

// fill is a lookup that all requests for the same workspace share.
type fill struct {
	done  chan struct{}
	route *route
	err   error
	stale bool // guarded by routes.mu: invalidated while it ran
}

func newRoutes(store Store, rt runtime.Upstreams, open *connections, maxAge time.Duration) *routes {
	return &routes{
		store: store, runtime: rt, open: open, maxAge: maxAge, addressMaxIdle: addressMaxIdle,
		fills: map[workspace.ID]*fill{}, upstreams: map[workspace.ID]*upstream{},
	}
}

// recent returns the cached route if it is fresh enough, or nil.
func (rs *routes) recent(id workspace.ID, maxAge time.Duration) *route {
	if r, ok := rs.cached.Load(id); ok && r.(*route).fresh(maxAge) {
		return r.(*route)
	}
	return nil
}

// get returns the route of a workspace, at most maxAge old. The caller must check
// the owner.
func (rs *routes) get(ctx context.Context, id workspace.ID, maxAge time.Duration) (*route, error) {
	for range maxFills {
		if r := rs.recent(id, maxAge); r != nil {
			return r, nil
		}
		rs.mu.Lock()
		if r := rs.recent(id, maxAge); r != nil { // filled meanwhile
			rs.mu.Unlock()
			return r, nil
		}
		f, running := rs.fills[id]
		if !running {
			f = &fill{done: make(chan struct{})}
			rs.fills[id] = f
		}
		rs.mu.Unlock()

		if !running {
			rs.runFill(ctx, id, f)
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		rs.mu.Lock()
		stale := f.stale
		rs.mu.Unlock()
		if !stale {
			return f.route, f.err
		}
	}
	return nil, errUnsettled
}

// runFill does the lookup. It does not end with the request that started it,
// because others wait for it.
func (rs *routes) runFill(ctx context.Context, id workspace.ID, f *fill) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fillTimeout)
	defer cancel()
	f.err = errors.New("the route lookup was interrupted") // overwritten below
	defer close(f.done)
	defer rs.apply(id, f)

	ws, err := rs.store.EnterableWorkspace(ctx, workspace.System, id)
	if err != nil {
		f.err = fmt.Errorf("read workspace: %w", err)
		return
	}
	r := &route{workspace: ws, readAt: time.Now(), confirmed: true}
	if rs.visibility.AtMost(workspace.VisiblePublic) != workspace.VisibleOwner {
		list, err := rs.store.OpenPorts(ctx, id)
		if err != nil {
			f.err = fmt.Errorf("read the shared ports: %w", err)
			return
		}
		r.shares = effective(list, rs.visibility)
	}
	if rs.sharing {
		if r.guests, err = rs.store.Guests(ctx, id); err != nil {
			f.err = fmt.Errorf("read the guests: %w", err)
			return
		}
	}
	if lifecycle.OpeningOf(ws) == lifecycle.OpenNow {
		if r.upstream, r.confirmed, err = rs.lookupUpstream(ctx, id); err != nil {
			f.err = fmt.Errorf("get the container's address: %w", err)
			return
		}
	}
	f.route, f.err = r, nil
}

// lookupUpstream asks the runtime for the container's address. While Docker is not
// responding the last confirmed address stays valid, because Docker cannot start
// another container either.
func (rs *routes) lookupUpstream(ctx context.Context, id workspace.ID) (u *upstream, confirmed bool, err error) {
	rs.mu.Lock()
	last := rs.upstreams[id]
	rs.mu.Unlock()
	at, err := rs.runtime.Upstream(ctx, id)
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		return nil, false, nil
	case errors.Is(err, runtime.ErrUnreachable) && last != nil:
		return last, false, nil
	case err != nil:
		return nil, false, err
	case last != nil && last.Upstream == at:
		return last, true, nil
	}
	u = newUpstream(id, at)
	u.loopback = rs.loopbackPorts
	return u, true, nil
}

// apply caches the result unless it is stale, and closes connections that a new
// request would not be granted.
func (rs *routes) apply(id workspace.ID, f *fill) {
	gone := workspace.CodeOf(f.err) == workspace.CodeNotFound
	rs.mu.Lock()
	if rs.fills[id] == f {
		delete(rs.fills, id)
	}
	if f.stale || f.err != nil && !gone {
		rs.mu.Unlock()
		return
	}
	last := rs.upstreams[id]
	var next *upstream
	if gone {
		rs.cached.Delete(id)
	} else {
		rs.cached.Store(id, f.route)
		next = f.route.upstream
	}
	if next == nil {
		delete(rs.upstreams, id)
	} else {
		rs.upstreams[id] = next
	}
	rs.mu.Unlock()

	if last != nil && last != next {
		rs.open.closeUpstream(last)
	}
	if next != nil {
		now := time.Now()
		rs.open.closeWhere(id, func(c *connection) bool {
			until, admitted := f.route.admits(c.caller, c.port, now)
			c.until.Store(stamp(until))
			return !admitted
		})
	}
}

// replacement returns the workspace's current upstream if it differs from failed.
// It asks at most once per unconfirmedAge, because open tabs reconnect forever.
func (rs *routes) replacement(ctx context.Context, id workspace.ID, failed *upstream) *upstream {
	r, err := rs.get(ctx, id, unconfirmedAge)
	if err != nil || lifecycle.OpeningOf(r.workspace) != lifecycle.OpenNow || r.upstream == failed {
		return nil
	}
	return r.upstream
}

func (rs *routes) invalidate(id workspace.ID) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.forget(id)
}

func (rs *routes) forget(id workspace.ID) {
	rs.cached.Delete(id)
	if f := rs.fills[id]; f != nil {
		f.stale = true
		delete(rs.fills, id)
	}
}

func (rs *routes) invalidateAll() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.cached.Clear()
	for id := range rs.fills {
		rs.forget(id)
	}
}

// close drops the route and closes its connections.
func (rs *routes) close(id workspace.ID) {
	rs.mu.Lock()
	rs.forget(id)
	u := rs.upstreams[id]
	delete(rs.upstreams, id)
	rs.mu.Unlock()
	if u != nil {
		rs.open.closeUpstream(u)
	}
	rs.open.closeWhere(id, func(*connection) bool { return true })
}

func (rs *routes) closeAll() {
	rs.mu.Lock()
	ids := make([]workspace.ID, 0, len(rs.upstreams))
	for id := range rs.upstreams {
		ids = append(ids, id)
	}
	rs.mu.Unlock()
	for _, id := range ids {
		rs.close(id)
	}
}

// check refreshes the routes of open connections that were invalidated or are too
// old, and drops unused ones.
func (rs *routes) check(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(maxChecks)
	for _, id := range rs.open.open() {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if _, err := rs.get(ctx, id, rs.maxAge); err != nil && workspace.CodeOf(err) != workspace.CodeNotFound {
				return err
			}
			return nil
		})
	}
	err := g.Wait()
	rs.sweep()
	return err
}

func (rs *routes) sweep() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.cached.Range(func(id, r any) bool {
		if !r.(*route).fresh(rs.maxAge) {
			rs.cached.Delete(id)
		}
		return true
	})
	for id, u := range rs.upstreams {
		// A running lookup may be about to confirm u.
		if _, cached := rs.cached.Load(id); !cached && rs.fills[id] == nil && rs.open.closeIfIdle(u, rs.addressMaxIdle) {
			delete(rs.upstreams, id)
		}
	}
}
