package proxy

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

func newTestRoutes() (*routes, *rows, *fakeRuntime) {
	store := &rows{by: map[workspace.ID]workspace.Workspace{wsA: running(wsA, ann)}}
	e := &fakeRuntime{at: map[workspace.ID]runtime.Upstream{wsA: {ContainerID: "c1", Addr: "192.0.2.1:8080", Secret: "s1"}}}
	return newRoutes(store, e, newConnections(Settings{}, 0, time.Minute, &watches{by: map[string][]context.CancelFunc{}}), time.Minute), store, e
}

func mustGet(t *testing.T, rs *routes) *route {
	t.Helper()
	r, err := rs.get(context.Background(), wsA, rs.maxAge)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRouteIsCachedForMaxAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rs, store, e := newTestRoutes()
		first := mustGet(t, rs)
		time.Sleep(time.Minute - time.Second)
		if mustGet(t, rs) != first {
			t.Error("read again within the minute")
		}
		time.Sleep(time.Second)
		second := mustGet(t, rs)
		if reads, _ := store.counts(); second == first || reads != 2 || e.count() != 2 {
			t.Errorf("%d reads, %d lookups after a minute", reads, e.count())
		}
		if second.upstream != first.upstream {
			t.Error("the same container lost its connections")
		}
		if old, err := rs.get(context.Background(), wsA, 0); err != nil || old == second {
			t.Error("not read again")
		}
	})
}

// Concurrent requests for a route share one lookup.
func TestConcurrentLookupsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rs, store, _ := newTestRoutes()
		store.read = func() { time.Sleep(time.Second) }
		ctx, leave := context.WithCancel(context.Background())
		go rs.get(ctx, wsA, rs.maxAge) // the first disconnects early
		synctest.Wait()
		leave()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { mustGet(t, rs) })
		}
		wg.Wait()
		if reads, _ := store.counts(); reads != 1 {
			t.Errorf("%d reads", reads)
		}
	})
}

// A lookup that began before an invalidation is neither cached nor used.
func TestInvalidatedLookupIsDiscarded(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(*routes){
		"invalidate":     func(rs *routes) { rs.invalidate(wsA) },
		"invalidate all": func(rs *routes) { rs.invalidateAll() },
		"close":          func(rs *routes) { rs.close(wsA) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rs, store, _ := newTestRoutes()
				store.read = func() { time.Sleep(time.Second) } // with the old row already read
				got := make(chan *route)
				go func() { got <- mustGet(t, rs) }()
				time.Sleep(time.Second / 2)
				ws := running(wsA, ann)
				ws.Operation = workspace.OpStopping
				store.put(ws)
				forget(rs)
				if r := <-got; lifecycle.OpeningOf(r.workspace) != lifecycle.OpenQueues || r.upstream != nil {
					t.Errorf("the waiting request was led by %s %s", r.workspace.Phase, r.workspace.Operation)
				}
				if r := mustGet(t, rs); lifecycle.OpeningOf(r.workspace) != lifecycle.OpenQueues {
					t.Error("the old state was kept")
				}
			})
		})
	}
}

// Requests for a workspace whose state keeps changing end with an error.
func TestLookupsOfChangingWorkspaceAreLimited(t *testing.T) {
	t.Parallel()
	rs, store, _ := newTestRoutes()
	store.read = func() { rs.invalidate(wsA) }
	if _, err := rs.get(context.Background(), wsA, rs.maxAge); !errors.Is(err, errUnsettled) {
		t.Errorf("err %v", err)
	}
}

func TestNoContainer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rs, _, e := newTestRoutes()
		delete(e.at, wsA)
		if r := mustGet(t, rs); r.upstream != nil {
			t.Fatal("an address from nowhere")
		}
		mustGet(t, rs)
		if e.count() != 1 {
			t.Error("the runtime is called for every request")
		}
		e.put(wsA, runtime.Upstream{ContainerID: "c2", Addr: "192.0.2.2:8080"})
		time.Sleep(unconfirmedAge)
		if r := mustGet(t, rs); r.upstream == nil {
			t.Error("the new container is not found")
		}
	})
}

// While Docker is unavailable the last address stays valid, because no other
// container can have been started.
func TestDockerOutageKeepsAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rs, store, e := newTestRoutes()
		e.set(runtime.ErrUnreachable)
		if _, err := rs.get(context.Background(), wsA, rs.maxAge); !errors.Is(err, runtime.ErrUnreachable) {
			t.Errorf("err %v without anything known", err)
		}
		e.set(nil)
		up := mustGet(t, rs).upstream
		e.set(runtime.ErrUnreachable)
		time.Sleep(time.Minute)
		if mustGet(t, rs).upstream != up {
			t.Error("the route was lost")
		}
		ws := running(wsA, ann)
		ws.Operation = workspace.OpStopping
		store.put(ws)
		time.Sleep(unconfirmedAge)
		if mustGet(t, rs).upstream != nil {
			t.Error("a stopping workspace has a route")
		}
	})
}

func TestOtherRuntimeErrors(t *testing.T) {
	t.Parallel()
	rs, _, e := newTestRoutes()
	mustGet(t, rs)
	e.set(errors.New("no"))
	rs.invalidate(wsA)
	if _, err := rs.get(context.Background(), wsA, rs.maxAge); err == nil {
		t.Error("no error")
	}
}

// Unused routes are dropped.
func TestSweep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rs, _, _ := newTestRoutes()
		r := mustGet(t, rs)
		c := &connection{id: wsA, upstream: r.upstream}
		if err := rs.open.add(c); err != nil {
			t.Fatal("refused")
		}
		rs.invalidate(wsA)
		rs.sweep()
		if rs.upstreams[wsA] != r.upstream {
			t.Error("swept with a connection open")
		}
		rs.open.remove(c)
		if err := rs.check(context.Background()); err != nil {
			t.Fatal(err)
		}
		if rs.upstreams[wsA] != r.upstream {
			t.Error("dropped as soon as it was unused")
		}
		time.Sleep(addressMaxIdle)
		rs.sweep()
		if cachedRoutes(rs)+len(rs.upstreams)+len(rs.fills) != 0 {
			t.Errorf("left: %d %v %v", cachedRoutes(rs), rs.upstreams, rs.fills)
		}
		if rs.open.add(c) == nil {
			t.Error("a removed upstream accepts connections")
		}
	})
}

func cachedRoutes(rs *routes) int {
	n := 0
	rs.cached.Range(func(any, any) bool { n++; return true })
	return n
}
