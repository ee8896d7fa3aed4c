package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/gateway/inbound"
	"codehub/internal/gateway/shortway"
	"codehub/internal/testing/harness"
	"codehub/internal/web/httpapi"
)

// entrance is a server of a world in which requests can continue after their handlers, as
// in codehub serve.
type entrance struct {
	*httptest.Server
	world     *world
	continued *shortway.Group
	log       harness.Log
}

func (w *world) entrance(secure bool) *entrance {
	w.t.Helper()
	e := &entrance{world: w}
	if !w.proxy.noShortWay {
		e.continued = shortway.NewGroup()
	}
	e.Server = httptest.NewUnstartedServer(nil)
	plain := &shortway.Server{Off: w.proxy.noShortWay, Serves: func(string, string) bool { return true },
		HTTP: inbound.Settings{RequestTimeout: time.Minute, IdleTimeout: time.Minute}.Server(httpapi.Outer(e.log.Logger(), httpapi.NewMetrics(), e.continued, w.handler()))}
	e.Config = plain.HTTP
	listener := e.Listener
	if secure {
		own := httptest.NewUnstartedServer(nil) // for its certificate
		own.StartTLS()
		listener = tls.NewListener(listener, own.TLS)
		own.Close()
	}
	e.Listener = plain.Listen(listener)
	e.Start()
	w.t.Cleanup(func() {
		cut, cancel := context.WithCancel(context.Background())
		cancel()
		_ = w.proxy.Shutdown(cut) // closes what is open
		e.Close()
		_ = plain.Shutdown(cut)
		if err := e.continued.Wait(context.Background()); err != nil {
			w.t.Error(err)
		}
		if w.t.Failed() {
			w.t.Logf("access log:\n%s", e.log.String())
		}
	})
	return e
}

// knock sends a request for a WebSocket, followed by more.
func (e *entrance) knock(secure bool, path, more string) net.Conn {
	e.world.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(e.URL, "http://"))
	if err != nil {
		e.world.t.Fatal(err)
	}
	if secure {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	e.world.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(harness.Patience))
	scheme := map[bool]string{false: "http", true: "https"}[secure]
	host := e.world.server.Listener.Addr().String()
	_, err = io.WriteString(conn, "GET "+under(wsA)+path+" HTTP/1.1\r\nHost: "+host+"\r\nCookie: "+sessionCookie+"=ann-1\r\nX-Forwarded-For: 192.0.2.1\r\n"+
		"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nOrigin: "+scheme+"://"+host+"\r\n\r\n"+more)
	if err != nil {
		e.world.t.Fatal(err)
	}
	return conn
}

// opened reads the response of the handshake.
func opened(t *testing.T, conn net.Conn) *bufio.Reader {
	t.Helper()
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols || !isWebSocket(res.Header) || res.Header.Get("X-Request-Id") == "" {
		t.Fatalf("the handshake: %s, %v", res.Status, res.Header)
	}
	return in
}

// accepts lets the IDE switch protocols, and serve the connection.
func (i *ide) accepts(serve func(conn net.Conn, in io.Reader)) {
	i.handle = func(rw http.ResponseWriter, _ *http.Request) {
		conn, in, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			return
		}
		serve(conn, in)
	}
}

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

// echoes sends back all bytes.
func echoes(conn net.Conn, in io.Reader) {
	defer conn.Close()
	_, _ = io.WriteString(conn, switching)
	_, _ = io.Copy(conn, in)
}

// A WebSocket has one goroutine for each direction, and none while it is idle; the
// goroutines of net/http end with the handshake. Not parallel: it counts goroutines of the
// process.
func TestIdleWebSocketHasNoGoroutines(t *testing.T) {
	const sockets = 50
	w := newWorld(t)
	i := w.serve(wsA)
	var mu sync.Mutex
	var backends, clients []net.Conn
	t.Cleanup(func() {
		for _, c := range backends {
			c.Close()
		}
	})
	i.accepts(func(conn net.Conn, _ io.Reader) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = io.WriteString(conn, switching)
		backends = append(backends, conn) // and has no goroutine
	})
	e := w.entrance(false)
	const turns, served, plainly = "shortway.(*direction).turn(", "http.(*conn).serve(", "shortway.(*Server).serve("
	count := func() map[string]int {
		var stacks strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&stacks, 2); err != nil {
			t.Fatal(err)
		}
		counts := map[string]int{}
		for _, name := range []string{turns, served, plainly} {
			counts[name] = strings.Count(stacks.String(), name)
		}
		return counts
	}
	shortway.Hurry(0)                                // starts the goroutine that waits for all, which stays
	before, all := count(), goruntime.NumGoroutine() // of which some may end
	idle := func() {
		t.Helper()
		harness.EventuallyWithin(t, patience, "no goroutine is left", func() bool {
			now := count()
			return now[turns] == 0 && now[served] <= before[served] && now[plainly] <= before[plainly] && goruntime.NumGoroutine() <= all
		})
		if n := w.proxy.OpenConnections(); n != sockets {
			t.Fatalf("%d of %d WebSockets are open", n, sockets)
		}
	}
	for range sockets {
		conn := e.knock(false, "/ws", "")
		opened(t, conn)
		clients = append(clients, conn)
	}
	idle()
	mu.Lock()
	defer mu.Unlock()
	for range 2 {
		harness.EventuallyWithin(t, patience, "goroutines relay, at most one for each direction", func() bool {
			for i := range clients {
				for range 3 { // after messages that follow each other fast, goroutines wait for more
					for _, conn := range []net.Conn{clients[i], backends[i]} {
						if _, err := io.WriteString(conn, "hello"); err != nil {
							t.Fatal(err)
						}
					}
					for _, conn := range []net.Conn{clients[i], backends[i]} {
						_ = conn.SetReadDeadline(time.Now().Add(patience))
						got := make([]byte, 5)
						if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
							t.Fatalf("received %q: %v", got, err)
						}
					}
				}
			}
			n := count()[turns]
			return 0 < n && n <= 2*sockets
		})
		idle()
	}
	// A WebSocket that rests ends like any other.
	w.proxy.CloseRoute(wsA)
	harness.EventuallyWithin(t, patience, "nothing is open", func() bool { return w.proxy.OpenConnections() == 0 && e.continued.Open() == 0 })
}

// What comes with the handshake is relayed in both directions, by every way.
func TestBytesWithHandshake(t *testing.T) {
	t.Parallel()
	for n, secure := range []bool{false, true, false, true} {
		w := newWorld(t)
		if n > 1 {
			w = newWorld(t, noShortWay)
		}
		i := w.serve(wsA)
		large := strings.Repeat("0123456789abcdef", 16<<10)
		i.accepts(func(conn net.Conn, in io.Reader) {
			defer conn.Close()
			_, _ = io.WriteString(conn, switching+"greeting")
			_, _ = io.Copy(conn, in)
		})
		e := w.entrance(secure)
		for _, early := range []string{"", "early", large[:2000], large[:4096], large[:5000]} {
			conn := e.knock(secure, "/ws", early)
			in := opened(t, conn)
			want := "greeting" + early
			for _, more := range []string{"", "x", large[:511], large[:512], large[:513], large[:32<<10], large} {
				go func() { _, _ = io.WriteString(conn, more) }()
				got := make([]byte, len(want)+len(more))
				if _, err := io.ReadFull(in, got); err != nil || string(got) != want+more {
					t.Fatalf("TLS %v, %d bytes with the handshake, then %d: received %.40q: %v", secure, len(early), len(more), got, err)
				}
				want = ""
			}
			conn.Close()
		}
		harness.EventuallyWithin(t, patience, "nothing is open", func() bool { return w.proxy.OpenConnections() == 0 && e.continued.Open() == 0 })
	}
}

// A WebSocket is logged when it ends, also if the proxy closes it.
func TestWebSocketIsLoggedAtItsEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*world, net.Conn){
		"client closes": func(_ *world, conn net.Conn) { conn.Close() },
		"route closed":  func(w *world, _ net.Conn) { w.proxy.CloseRoute(wsA) },
		"session ends":  func(w *world, _ net.Conn) { w.sessions.end("ann-1") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.serve(wsA).accepts(echoes)
			e := w.entrance(false)
			conn := e.knock(false, "/ws", "12345")
			if _, err := io.ReadFull(opened(t, conn), make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(e.log.String(), "path="+under(wsA)) {
				t.Error("it is logged while it is open")
			}
			end(w, conn)
			harness.EventuallyWithin(t, patience, "it has ended", func() bool { return w.proxy.OpenConnections() == 0 && e.continued.Open() == 0 })
			for _, want := range []string{"path=" + under(wsA) + "/ws ", "status=101 bytes=5 ", "user=" + ann, "workspace=" + string(wsA)} {
				if strings.Count(e.log.String(), want) != 1 {
					t.Errorf("the log does not contain %q once", want)
				}
			}
		})
	}
}

// A response other than a WebSocket is relayed as usual.
func TestHandshakeIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		response string
		status   int
		body     string
	}{
		"refused":          {"HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\nX-Reason: no\r\n\r\nforbidden", 403, "forbidden"},
		"chunked":          {"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbad\r\n0\r\n\r\n", 400, "bad"},
		"after a hint":     {"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, "ok"},
		"another protocol": {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 502, ""},
		"no protocol":      {"HTTP/1.1 101 Switching Protocols\r\n\r\n", 502, ""},
		"no HTTP":          {"nothing\r\n\r\n", 502, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.serve(wsA).accepts(func(conn net.Conn, _ io.Reader) {
				defer conn.Close()
				_, _ = io.WriteString(conn, test.response)
			})
			e := w.entrance(false)
			in := bufio.NewReader(e.knock(false, "/ws", ""))
			res, err := http.ReadResponse(in, nil)
			if err == nil && res.StatusCode == http.StatusEarlyHints {
				res, err = http.ReadResponse(in, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != test.status || test.body != "" && string(body) != test.body {
				t.Errorf("%s, %q: %v", res.Status, body, err)
			}
			if (test.status == http.StatusForbidden) != (res.Header.Get("X-Reason") == "no") {
				t.Errorf("the header is %v", res.Header)
			}
			harness.EventuallyWithin(t, patience, "nothing is open", func() bool { return w.proxy.OpenConnections() == 0 && e.continued.Open() == 0 })
		})
	}
}
