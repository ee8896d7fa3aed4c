package proxy

import (
	"bufio"
	"net"
	"net/http"
	"testing"
	"time"

	"codehub/internal/harness"
	"codehub/internal/inbound"
	"codehub/internal/origin"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// In steady state a request queries neither the database nor the runtime, and does not
// register to be notified of the end of its session.
func TestSteadyStateMakesNoQueries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.CheckInterval = time.Hour })
	w.serve(wsA)
	ask := func() {
		if a := w.get(under(wsA) + "/x"); a.StatusCode != http.StatusOK {
			t.Fatal(a.Status)
		}
	}
	ask()
	reads, _ := w.store.counts()
	asks, watched := w.runtime.count(), w.sessions.count("ann-1")
	for range 500 {
		ask()
	}
	if n, _ := w.store.counts(); n != reads || w.runtime.count() != asks || w.sessions.count("ann-1") != watched || watched != 1 {
		t.Errorf("500 requests: %d reads of the database, %d of the runtime, %d registrations of the session", n-reads, w.runtime.count()-asks, w.sessions.count("ann-1"))
	}
}

// A session without connections is not watched for ever, and its end is noticed again
// when it has some.
func TestSessionIsWatchedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(wsA)
	w.get(under(wsA) + "/x")
	harness.EventuallyWithin(t, patience, "the session is not watched", func() bool {
		s := w.proxy.open.visitor("ann-1")
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.by) == 0
	})
	conn := w.dial(under(wsA)+"/ws", "ann-1")
	say(t, conn, "hello")
	w.sessions.end("ann-1")
	closed(t, conn)
	// A request that was authenticated a moment ago registers once more.
	before := w.sessions.count("ann-1")
	if a := w.get(under(wsA) + "/x"); a.StatusCode != http.StatusOK || w.sessions.count("ann-1") <= before {
		t.Errorf("status %d, %d registrations", a.StatusCode, w.sessions.count("ann-1")-before)
	}
}

// BenchmarkPlainRequest reports what a plain request costs the proxy, allocations
// included: those of its client and of the container are none.
func BenchmarkPlainRequest(b *testing.B) {
	w := newWorld(b)
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer backend.Close()
	go func() {
		for {
			c, err := backend.Accept()
			if err != nil {
				return
			}
			go respondAlways(c)
		}
	}()
	h := newHostWorld(b)
	for _, of := range []*world{w, h.world} {
		of.runtime.put(wsA, runtime.Upstream{ContainerID: "c", Addr: backend.Addr().String(), Secret: "secret"})
	}
	settings := inbound.Settings{RequestTimeout: time.Minute, IdleTimeout: time.Minute}
	path := "GET " + under(wsA) + "/x HTTP/1.1\r\nHost: " + w.server.Listener.Addr().String() + "\r\nCookie: " + sessionCookie + "=ann-1"
	host := "GET /x HTTP/1.1\r\nHost: " + origin.Host(h.at(wsA)) + "\r\nCookie: " + hostCookie + "=ann-1" + at(workspace.Host{ID: wsA})
	for _, way := range []struct {
		name  string
		of    *world
		begin string
	}{{"codehub", w, path}, {"repeated", h.world, host}, {"net/http", w, path}} {
		b.Run(way.name, func(b *testing.B) {
			plain := &inbound.Plain{Server: settings.Server(way.of.handler()), Serves: func(string, string) bool { return way.name != "net/http" }}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			go func() { _ = plain.Server.Serve(plain.Listen(l)) }()
			defer plain.Server.Close()
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			head := []byte(way.begin + "; theme=dark\r\nAccept: */*\r\nSec-Fetch-Site: same-origin\r\n\r\n")
			in := make([]byte, 64<<10)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Write(head); err != nil {
					b.Fatal(err)
				}
				for n := 0; n < 1024; {
					more, err := c.Read(in)
					if err != nil {
						b.Fatal(err)
					}
					n += more
				}
			}
		})
	}
}

// respondAlways answers each packet with the same response of 1 KiB.
func respondAlways(c net.Conn) {
	defer c.Close()
	response := append([]byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\nEtag: \"x\"\r\n\r\n"), make([]byte, 1024)...)
	in := bufio.NewReader(c)
	b := make([]byte, 4096)
	for {
		if _, err := in.Read(b); err != nil {
			return
		}
		if _, err := c.Write(response); err != nil {
			return
		}
	}
}

// An event about a workspace closes the connections that it no longer admits, without waiting
// for the next check. An event about another one reads nothing.
func TestEventChecksOpenConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.CheckInterval = time.Hour })
	w.serve(wsA)
	conn := w.dial(under(wsA)+"/ws", "ann-1")
	say(t, conn, "hello")
	w.proxy.Invalidate(wsB)
	if len(w.proxy.changed) != 0 {
		t.Error("an event about a workspace without connections asks for a check")
	}
	stopping := running(wsA, ann)
	stopping.Operation = workspace.OpStopping
	w.store.put(stopping)
	w.proxy.Invalidate(wsA)
	closed(t, conn)

	w.store.put(running(wsA, ann))
	w.proxy.Invalidate(wsA)
	conn = w.dial(under(wsA)+"/ws", "ann-1")
	say(t, conn, "hello")
	w.store.put(running(wsA, bob))
	w.proxy.InvalidateAll()
	closed(t, conn)
}
