package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// A reused address leads to no other workspace, neither by a stale route nor after
// the route was closed.
func TestReusedAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.put(running(wsB, bob))
	a := w.serve(wsA)
	if got := w.get(under(wsA) + "/"); got.StatusCode != http.StatusOK { // leaves a connection in the pool
		t.Fatalf("status %d", got.StatusCode)
	}
	a.stop()
	b := newIDE(t, "secret-of-b", a.addr())
	w.runtime.put(wsB, b.upstream("c-b"))

	// Without an event: the container itself refuses the secret.
	if got := w.get(under(wsA) + "/"); got.StatusCode != http.StatusUnauthorized || b.served.Load() != 0 || b.refused.Load() != 1 {
		t.Fatalf("stale route: status %d, served %d, refused %d", got.StatusCode, b.served.Load(), b.refused.Load())
	}
	// In the controller's order: the row, the route, the container.
	ws := running(wsA, ann)
	ws.Operation = workspace.OpStopping
	w.store.put(ws)
	w.proxy.CloseRoute(wsA)
	if got := w.get(under(wsA) + "/"); got.StatusCode != http.StatusServiceUnavailable || b.refused.Load() != 1 {
		t.Errorf("closed route: status %d, refused %d", got.StatusCode, b.refused.Load())
	}
	if got := w.get(under(wsB)+"/", "Cookie", sessionCookie+"=bob-1"); got.StatusCode != http.StatusOK || b.served.Load() != 1 {
		t.Errorf("its new owner: status %d", got.StatusCode)
	}
}

// A container that was replaced without an event is found by the first request that
// can be repeated.
func TestReplacedContainer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		method, body string
		websocket    bool
		want         int
	}{
		{method: "GET", want: 200},
		{method: "DELETE", want: 200},
		{method: "POST", want: 502},
		{method: "PUT", body: "content", want: 502},
		{method: "GET", websocket: true, want: 101},
	} {
		t.Run(test.method+test.body, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			old := w.serve(wsA)
			w.get(under(wsA) + "/")
			old.stop()
			i := newIDE(t, "another secret", "127.0.0.1:0")
			w.runtime.put(wsA, i.upstream("c2"))
			w.age(wsA)

			r := w.request(test.method, under(wsA)+"/x")
			if test.body != "" {
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(test.body)), int64(len(test.body))
			}
			if test.websocket {
				set(r.Header, append(kinds["websocket"].header, "Origin", w.server.URL)...)
			}
			if a := w.do(r); a.StatusCode != test.want {
				t.Errorf("status %d, want %d", a.StatusCode, test.want)
			}
			if a := w.get(under(wsA) + "/"); a.StatusCode != http.StatusOK {
				t.Errorf("the next one: status %d", a.StatusCode)
			}
			if i.refused.Load() != 0 {
				t.Error("the old secret was sent to the new container")
			}
		})
	}
}

// An IDE that is not responding does not cause a runtime call per request.
func TestUnresponsiveIDE(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.serve(wsA)
	w.get(under(wsA) + "/")
	i.stop()
	w.age(wsA)
	for range 50 {
		if a := w.get(under(wsA) + "/"); a.StatusCode != http.StatusBadGateway {
			t.Fatalf("status %d", a.StatusCode)
		}
	}
	a := w.open(under(wsA) + "/")
	if a.StatusCode != http.StatusBadGateway || a.Header.Get("X-Page") != "unavailable" {
		t.Errorf("navigation: status %d, page %q", a.StatusCode, a.Header.Get("X-Page"))
	}
	if n := w.runtime.count(); n > 1+1+int(patience/unconfirmedAge) {
		t.Errorf("the runtime was called %d times", n)
	}
	if w.proxy.OpenConnections() != 0 {
		t.Error("something is left open")
	}
}

// If the container is gone while its row says RUNNING, the loading page is shown
// until the controller has observed that.
func TestRemovedContainer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if a := w.open(under(wsA) + "/"); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("X-Page") != "loading" {
		t.Errorf("status %d, page %q", a.StatusCode, a.Header.Get("X-Page"))
	}
	if a := w.get(under(wsA) + "/"); a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("status %d", a.StatusCode)
	}
	w.runtime.set(runtime.ErrUnreachable)
	w.proxy.Invalidate(wsA)
	if a := w.open(under(wsA) + "/"); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("X-Page") != "unavailable" {
		t.Errorf("Docker down: status %d, page %q", a.StatusCode, a.Header.Get("X-Page"))
	}
}

// age makes the cached route too old and the pooled connections closed.
func (w *world) age(id workspace.ID) {
	rs := w.proxy.routes
	defer rs.upstreams[id].closePools()
	rs.mu.Lock()
	defer rs.mu.Unlock()
	cached, _ := rs.cached.Load(id)
	r := *cached.(*route)
	r.readAt = r.readAt.Add(-2 * unconfirmedAge)
	rs.cached.Store(id, &r)
}
