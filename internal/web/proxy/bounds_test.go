package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// hold opens requests that stay open until the returned function is called.
func (w *world) hold(i *ide, user string, n int) (release func()) {
	w.t.Helper()
	open := make(chan struct{})
	i.handle = func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			rw.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(rw).Flush()
			select {
			case <-open:
			case <-r.Context().Done():
			}
		}
	}
	var bodies []io.Closer
	for range n {
		res, err := noRedirects.Do(w.request(http.MethodGet, under(wsA)+"/hold", "Cookie", sessionCookie+"="+user+"-1"))
		if err != nil {
			w.t.Fatal(err)
		}
		bodies = append(bodies, res.Body)
	}
	return func() {
		close(open)
		for _, b := range bodies {
			b.Close()
		}
		harness.EventuallyWithin(w.t, patience, "nothing is open", func() bool { return w.proxy.OpenConnections() == 0 })
	}
}

func TestRequestsPerUser(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Settings.RequestsPerUser = 3 })
	release := w.hold(w.serve(wsA), ann, 3)
	w.store.put(running(wsB, bob))
	w.serve(wsB)
	a := w.get(under(wsA) + "/")
	if a.StatusCode != http.StatusTooManyRequests || !strings.Contains(a.body, `"too_many_requests"`) || a.Header.Get("Retry-After") == "" {
		t.Errorf("%d %s %v", a.StatusCode, a.body, a.Header)
	}
	if a := w.open(under(wsA) + "/"); a.StatusCode != http.StatusTooManyRequests || a.Header.Get("X-Page") != "busy" {
		t.Errorf("%d %s", a.StatusCode, a.Header.Get("X-Page"))
	}
	if a := w.get(under(wsA)+"/ws", slices.Concat(kinds["websocket"].header, []string{"Origin", w.server.URL})...); a.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a WebSocket: %d", a.StatusCode)
	}
	if a := w.get(under(wsB)+"/", "Cookie", sessionCookie+"=bob-1"); a.StatusCode != http.StatusOK {
		t.Errorf("another user: %d", a.StatusCode)
	}
	release()
	for range 5 {
		if a := w.get(under(wsA) + "/"); a.StatusCode != http.StatusOK {
			t.Errorf("after the others have ended: %d", a.StatusCode)
		}
	}
}

// A workspace's host serves none of codehub's assets, so the page there is a notice.
func TestTooManyRequestsOnHost(t *testing.T) {
	t.Parallel()
	w := newHostWorld(t, func(c *Config) { c.Settings.RequestsPerUser = 1 })
	w.serve(wsA)
	w.proxy.open.shard(ann).enter(ann, 0)
	a := w.send(http.MethodGet, w.at(wsA)+"/", append(navigation, "Cookie", hostCookie+"=ann-1"+at(workspace.Host{ID: wsA}))...)
	if a.StatusCode != http.StatusTooManyRequests || a.Header.Get("X-Page") != "notice busy" || a.Header.Get("Retry-After") == "" {
		t.Errorf("%d %q %v", a.StatusCode, a.Header.Get("X-Page"), a.Header)
	}
}

func TestRequestsOfAllUsers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.MaxRequests = 2 })
	release := w.hold(w.serve(wsA), ann, 2)
	w.store.put(running(wsB, bob))
	w.serve(wsB)
	if a := w.get(under(wsB)+"/", "Cookie", sessionCookie+"=bob-1"); a.StatusCode != http.StatusServiceUnavailable || !strings.Contains(a.body, `"too_many_requests"`) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	release()
	if a := w.get(under(wsB)+"/", "Cookie", sessionCookie+"=bob-1"); a.StatusCode != http.StatusOK {
		t.Errorf("after the others have ended: %d", a.StatusCode)
	}
}

// A request or WebSocket that transfers nothing ends; one that transfers stays open.
func TestIdleRelaysEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Settings.IdleTimeout = 5 * time.Second })
	i := w.serve(wsA)
	i.handle = func(rw http.ResponseWriter, r *http.Request) {
		if isWebSocket(r.Header) {
			i.echo(rw, r)
			return
		}
		for r.Context().Err() == nil && r.URL.Path == "/busy" {
			if _, err := io.WriteString(rw, "x"); err != nil || http.NewResponseController(rw).Flush() != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		<-r.Context().Done()
	}
	say(t, w.dial(under(wsA)+"/ws", "ann-1"), "hello")
	go func() {
		if res, err := noRedirects.Do(w.request(http.MethodGet, under(wsA)+"/idle")); err == nil {
			res.Body.Close()
		}
	}()
	busy, err := noRedirects.Do(w.request(http.MethodGet, under(wsA)+"/busy"))
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Body.Close()
	harness.EventuallyWithin(t, patience, "all are open", func() bool { return w.proxy.OpenConnections() == 3 })
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, busy.Body)
	}()
	harness.EventuallyWithin(t, patience, "the idle ones have ended", func() bool { return w.proxy.OpenConnections() == 1 })
	select {
	case <-done:
		t.Error("the busy one has ended")
	default:
	}
}

// A client of a workspace that does not read is disconnected.
func TestUnreadRelayEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.StallTimeout = 200 * time.Millisecond })
	i := w.serve(wsA)
	var begun atomic.Bool
	i.handle = func(rw http.ResponseWriter, r *http.Request) {
		begun.Store(true)
		b := make([]byte, 1<<20)
		for {
			if _, err := rw.Write(b); err != nil {
				return
			}
		}
	}
	conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s/ HTTP/1.1\r\nHost: %s\r\nCookie: %s=ann-1\r\n\r\n", under(wsA), w.server.Listener.Addr(), sessionCookie)
	harness.EventuallyWithin(t, patience, "it has begun", begun.Load)
	harness.EventuallyWithin(t, patience, "it has ended", func() bool { return w.proxy.OpenConnections() == 0 })
}
