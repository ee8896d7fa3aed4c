package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"codehub/internal/lifecycle"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

const (
	fillTimeout = 10 * time.Second
	// shortAge is how long a route is used that the runtime did not confirm.
	shortAge = 2 * time.Second
	// keepAddress is for how long the address of a container that nobody uses
	// stands in for an engine that does not answer.
	keepAddress = 10 * time.Minute
	// maxFills bounds how often one request waits for a route that was
	// invalidated while it was being read.
	maxFills = 8
	// checksAtOnce bounds how many workspaces are looked at together.
	checksAtOnce = 4
)

var errUnsettled = errors.New("the workspace's state keeps changing")

// route is what is known of a workspace. It is never changed.
type route struct {
	workspace workspace.Workspace
	upstream  *upstream // nil unless it runs and its container does
	readAt    time.Time
	confirmed bool // false: the runtime was not asked successfully
}

func (r *route) fresh(maxAge time.Duration) bool {
	if !r.confirmed {
		maxAge = min(maxAge, shortAge)
	}
	return time.Since(r.readAt) < maxAge
}

// routes caches the route of each workspace. What it knows it was told by the
// database and the runtime at most maxAge ago, and by no reading that began
// before the last invalidation.
type routes struct {
	store   Store
	runtime Upstreams
	open    *connections
	maxAge  time.Duration
	keep    time.Duration // for how long an address that nobody uses is remembered, see ask

	mu    sync.Mutex
	known map[workspace.ID]*route
	fills map[workspace.ID]*fill
	// upstreams outlive the routes that led to them: a route that is read
	// again and says the same keeps its connections.
	upstreams map[workspace.ID]*upstream
}

// fill is one reading that everybody who needs it waits for.
type fill struct {
	done  chan struct{}
	route *route
	err   error
	stale bool // guarded by routes.mu: invalidated while it ran
}

func newRoutes(store Store, rt Upstreams, open *connections, maxAge time.Duration) *routes {
	return &routes{
		store: store, runtime: rt, open: open, maxAge: maxAge, keep: keepAddress,
		known: map[workspace.ID]*route{}, fills: map[workspace.ID]*fill{}, upstreams: map[workspace.ID]*upstream{},
	}
}

// get returns the route of a workspace, read at most maxAge ago. Whose it is
// the caller checks.
func (rs *routes) get(ctx context.Context, id workspace.ID, maxAge time.Duration) (*route, error) {
	for range maxFills {
		rs.mu.Lock()
		if r := rs.known[id]; r != nil && r.fresh(maxAge) {
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
			rs.run(ctx, id, f)
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

// run reads the route for everybody who waits, so it does not end with the
// request that happened to be first.
func (rs *routes) run(ctx context.Context, id workspace.ID, f *fill) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fillTimeout)
	defer cancel()
	f.err = errors.New("reading the route was broken off") // unless it comes to its end
	defer close(f.done)
	defer rs.settle(id, f)

	ws, err := rs.store.Workspace(ctx, workspace.System, id)
	if err != nil {
		f.err = fmt.Errorf("read workspace: %w", err)
		return
	}
	r := &route{workspace: ws, readAt: time.Now(), confirmed: true}
	if lifecycle.OpeningOf(ws) == lifecycle.OpenNow {
		if r.upstream, r.confirmed, err = rs.ask(ctx, id); err != nil {
			f.err = fmt.Errorf("ask for the container's address: %w", err)
			return
		}
	}
	f.route, f.err = r, nil
}

// ask asks the runtime where the container is. While the backend does not
// answer it cannot start another container either, so the address that was
// last confirmed stands.
func (rs *routes) ask(ctx context.Context, id workspace.ID) (u *upstream, confirmed bool, err error) {
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
	return newUpstream(id, at), true, nil
}

// settle puts what was read into force: unless it is stale, connections that
// a new request would not get are closed (design §8).
func (rs *routes) settle(id workspace.ID, f *fill) {
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
		delete(rs.known, id)
	} else {
		rs.known[id] = f.route
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
		owner := f.route.workspace.OwnerID
		rs.open.closeWhere(id, func(c *connection) bool { return !c.caller.Owns(owner) })
	}
}

// again is for a container that cannot be reached: it asks whether there is
// another one by now. At most once in shortAge, since a tab left open comes
// back for ever.
func (rs *routes) again(ctx context.Context, id workspace.ID, failed *upstream) *upstream {
	r, err := rs.get(ctx, id, shortAge)
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
	delete(rs.known, id)
	if f := rs.fills[id]; f != nil {
		f.stale = true
		delete(rs.fills, id)
	}
}

func (rs *routes) invalidateAll() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	clear(rs.known)
	for id := range rs.fills {
		rs.forget(id)
	}
}

// close forgets the route and ends all that goes over it.
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

// check reads again what was invalidated or has grown old behind open
// connections, and drops what nobody uses.
func (rs *routes) check(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(checksAtOnce)
	for _, id := range rs.open.workspaces() {
		g.Go(func() error {
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
	for id, r := range rs.known {
		if !r.fresh(rs.maxAge) {
			delete(rs.known, id)
		}
	}
	for id, u := range rs.upstreams {
		// A reading under way may be about to find that u still stands.
		if rs.known[id] == nil && rs.fills[id] == nil && rs.open.retire(u, rs.keep) {
			delete(rs.upstreams, id)
		}
	}
}
