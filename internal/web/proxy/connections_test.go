package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"codehub/api"
	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// dial opens a WebSocket as the workspace's page does.
func (w *world) dial(path, session string) *websocket.Conn {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, w.server.URL+path, &websocket.DialOptions{
		HTTPHeader:      http.Header{"Cookie": {sessionCookie + "=" + session}, "Origin": {w.server.URL}},
		CompressionMode: websocket.CompressionContextTakeover,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	conn.SetReadLimit(-1)
	w.t.Cleanup(func() { conn.CloseNow() })
	return conn
}

func say(t testing.TB, conn *websocket.Conn, message string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := conn.Write(ctx, websocket.MessageText, []byte(message)); err != nil {
		t.Fatal(err)
	}
	if _, got, err := conn.Read(ctx); err != nil || string(got) != message {
		t.Fatalf("sent %d bytes, received %d: %v", len(message), len(got), err)
	}
}

// closed waits until the other side has closed.
func closed(t testing.TB, conn *websocket.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, _, err := conn.Read(ctx); err == nil || ctx.Err() != nil {
		t.Fatalf("still open: %v", err)
	}
}

// stream starts a request with an endless response.
func (w *world) stream(i *ide) io.Reader {
	w.t.Helper()
	i.handle = func(rw http.ResponseWriter, r *http.Request) {
		if isWebSocket(r.Header) {
			i.echo(rw, r)
			return
		}
		_, _ = io.WriteString(rw, "begin")
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	}
	res, err := noRedirects.Do(w.request(http.MethodGet, under(wsA)+"/stream"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { res.Body.Close() })
	if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
		w.t.Fatal(err)
	}
	return res.Body
}

// broken waits until a stream was closed.
func broken(t testing.TB, body io.Reader) {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, body)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the truncated response seems complete")
		}
	case <-time.After(patience):
		t.Error("still open")
	}
}

// Every reason for which open connections are closed, for a WebSocket and for a
// request with a streaming response. Events close them without waiting for the next check.
func TestConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	change := func(w *world, f func(*workspace.Workspace)) {
		ws := w.store.row(wsA)
		f(&ws)
		w.store.put(ws)
		w.proxy.Invalidate(wsA)
	}
	now := time.Now()
	for name, end := range map[string]func(*world){
		"session ends":  func(w *world) { w.sessions.end("ann-1") },
		"stop begins":   func(w *world) { change(w, func(ws *workspace.Workspace) { ws.Operation = workspace.OpStopping }) },
		"stopped":       func(w *world) { change(w, func(ws *workspace.Workspace) { ws.Phase = workspace.PhaseStandby }) },
		"deleted":       func(w *world) { change(w, func(ws *workspace.Workspace) { ws.DeletedAt = &now }) },
		"owner changed": func(w *world) { change(w, func(ws *workspace.Workspace) { ws.OwnerID = bob }) },
		"row removed": func(w *world) {
			w.store.mu.Lock()
			delete(w.store.by, wsA)
			w.store.mu.Unlock()
			w.proxy.Invalidate(wsA)
		},
		"events missed": func(w *world) {
			ws := w.store.row(wsA)
			ws.Phase = workspace.PhaseStandby
			w.store.put(ws)
			w.proxy.InvalidateAll()
		},
		"container replaced": func(w *world) {
			w.runtime.put(wsA, runtime.Upstream{ContainerID: "c2", Addr: "192.0.2.1:8080", Secret: "s2"})
			w.proxy.Invalidate(wsA)
		},
		"address reused by its next container": func(w *world) {
			next := w.runtime.at[wsA]
			next.ContainerID, next.Secret = "c2", "s2"
			w.runtime.put(wsA, next)
			w.proxy.Invalidate(wsA)
		},
		"container removed": func(w *world) {
			w.runtime.mu.Lock()
			delete(w.runtime.at, wsA)
			w.runtime.mu.Unlock()
			w.proxy.Invalidate(wsA)
		},
		"route closed": func(w *world) { w.proxy.CloseRoute(wsA) },
		"shutdown": func(w *world) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := w.proxy.Shutdown(ctx); !errors.Is(err, context.Canceled) {
				w.t.Errorf("Shutdown: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(c *Config) { c.CheckInterval = time.Hour })
			i := w.serve(wsA)
			body := w.stream(i)
			conn := w.dial(under(wsA)+"/ws", "ann-1")
			say(t, conn, "hello")
			w.proxy.Invalidate(wsB)
			if len(w.proxy.changed) != 0 {
				t.Error("an event about a workspace without connections asks for a check")
			}
			end(w)
			closed(t, conn)
			broken(t, body)
			harness.EventuallyWithin(t, patience, "nothing is open", func() bool { return w.proxy.OpenConnections() == 0 && i.sockets.Load() == 0 })
		})
	}
}

// Events that do not concern a connection, and an unavailable database, leave it
// open.
func TestUnrelatedEventsKeepConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(wsA)
	conn := w.dial(under(wsA)+"/ws", "ann-1")
	say(t, conn, "hello")
	reads := func() int { n, _ := w.store.counts(); return n }

	before := reads()
	w.proxy.InvalidateAll()
	harness.EventuallyWithin(t, patience, "the route is read again", func() bool { return reads() > before })
	say(t, conn, "still here")

	w.sessions.end("bob-1")
	w.store.mu.Lock()
	w.store.fail = errors.New("connection refused")
	w.store.mu.Unlock()
	before = reads()
	w.proxy.Invalidate(wsA)
	harness.EventuallyWithin(t, patience, "the database is asked", func() bool { return reads() > before+2 })
	say(t, conn, "still here")

	w.store.mu.Lock()
	w.store.fail = nil
	w.store.mu.Unlock()
	w.runtime.set(runtime.ErrUnreachable)
	before = reads()
	w.proxy.Invalidate(wsA)
	harness.EventuallyWithin(t, patience, "the runtime is called", func() bool { return reads() > before+2 })
	say(t, conn, "still here")
}

// Only the connections of the ended session are closed.
func TestOnlyEndedSessionIsClosed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(wsA)
	one, two := w.dial(under(wsA)+"/ws", "ann-1"), w.dial(under(wsA)+"/ws", "ann-2")
	say(t, one, "one")
	say(t, two, "two")
	w.sessions.end("ann-1")
	closed(t, one)
	say(t, two, "two")

	// The connections of a token end like those of a session.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	three, _, err := websocket.Dial(ctx, w.server.URL+under(wsA)+"/ws", &websocket.DialOptions{HTTPHeader: http.Header{api.TokenHeader: {"chub_ann"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer three.CloseNow()
	say(t, three, "three")
	w.sessions.end("chub_ann")
	closed(t, three)
	say(t, two, "two")
}

// A client that does not read cannot keep the connection open.
func TestConnectionOfStalledClientIsClosed(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"request", "upload", "websocket"} {
		for name, end := range map[string]func(*world){
			"route closed": func(w *world) { w.proxy.CloseRoute(wsA) },
			"session ends": func(w *world) { w.sessions.end("ann-1") },
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				visitorWhoDoesNotRead(t, kind, end)
			})
		}
	}
}

func visitorWhoDoesNotRead(t *testing.T, kind string, end func(*world)) {
	w := newWorld(t)
	i := w.serve(wsA)
	began := make(chan struct{})
	var written atomic.Int64
	i.handle = func(rw http.ResponseWriter, r *http.Request) {
		close(began)
		if kind == "upload" {
			<-i.over // reads nothing
			return
		}
		var out io.Writer = rw
		if kind == "websocket" {
			conn, _, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			out = conn
		}
		for chunk := make([]byte, 64<<10); ; written.Add(1) {
			if _, err := out.Write(chunk); err != nil {
				return
			}
		}
	}
	conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	head := "GET " + under(wsA) + "/x HTTP/1.1\r\nHost: " + w.server.Listener.Addr().String() + "\r\nCookie: " + sessionCookie + "=ann-1\r\n"
	switch kind {
	case "upload":
		head = strings.Replace(head, "GET", "POST", 1) + "Content-Length: 1000000000\r\n"
	case "websocket":
		head += "Connection: Upgrade\r\nUpgrade: websocket\r\nOrigin: " + w.server.URL + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		t.Fatal(err)
	}
	<-began
	if kind == "upload" {
		go func() { // until it is closed
			for chunk := make([]byte, 64<<10); ; written.Add(1) {
				if _, err := conn.Write(chunk); err != nil {
					return
				}
			}
		}()
	}
	var last int64
	still := 0
	harness.EventuallyWithin(t, patience, "everything between is full", func() bool {
		if now := written.Load(); now != last || now == 0 {
			last, still = now, 0
		}
		still++
		return still > 50
	})
	end(w)
	harness.EventuallyWithin(t, patience, "nothing is open", func() bool { return w.proxy.OpenConnections() == 0 })
}

// When one side of a WebSocket ends, the other receives its last messages and is
// then closed.
func TestHalfClosedWebSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.serve(wsA)
	i.handle = func(rw http.ResponseWriter, _ *http.Request) {
		conn, rest, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		received, _ := io.ReadAll(rest) // to the visitor's end
		if string(received) != "last words" {
			t.Errorf("received %q", received)
		}
		_, _ = io.WriteString(conn, "farewell")
		<-i.over // and does not close
	}
	conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "GET "+under(wsA)+"/x HTTP/1.1\r\nHost: "+w.server.Listener.Addr().String()+
		"\r\nCookie: "+sessionCookie+"=ann-1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nOrigin: "+w.server.URL+"\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	harness.EventuallyWithin(t, patience, "the WebSocket is open", func() bool { return w.proxy.OpenConnections() == 1 && i.served.Load() == 1 })
	head := make([]byte, len("HTTP/1.1 101"))
	if _, err := io.ReadFull(conn, head); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "last words"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	rest, err := io.ReadAll(conn)
	if err != nil || !strings.HasSuffix(string(rest), "farewell") {
		t.Errorf("heard %q: %v", rest, err)
	}
	harness.EventuallyWithin(t, patience, "nothing is open", func() bool { return w.proxy.OpenConnections() == 0 })
}

// A shutdown waits for requests, refuses new ones, and closes WebSockets.
func TestShutdownDrainsConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.serve(wsA)
	release := make(chan struct{})
	i.handle = func(rw http.ResponseWriter, r *http.Request) {
		if isWebSocket(r.Header) {
			i.echo(rw, r)
			return
		}
		<-release
		_, _ = io.WriteString(rw, "whole")
	}
	conn := w.dial(under(wsA)+"/ws", "ann-1")
	say(t, conn, "hello")
	got := make(chan answer)
	go func() { got <- w.get(under(wsA) + "/slow") }()
	harness.EventuallyWithin(t, patience, "both are open", func() bool { return w.proxy.OpenConnections() == 2 })

	done := make(chan error)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		done <- w.proxy.Shutdown(ctx)
	}()
	closed(t, conn)
	if a := w.get(under(wsA) + "/new"); a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a new request: status %d", a.StatusCode)
	}
	close(release)
	if a := <-got; a.StatusCode != http.StatusOK || a.body != "whole" {
		t.Errorf("the old request: status %d, %q", a.StatusCode, a.body)
	}
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := w.proxy.Shutdown(context.Background()); err != nil {
		t.Errorf("Shutdown again: %v", err)
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
		s := w.proxy.open.shard("ann-1")
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.visitors) == 0
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
