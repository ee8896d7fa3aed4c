package proxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"codehub/internal/bus/activity"
	"codehub/internal/testing/harness"
)

// recording is a world with a recording proxy and its IDE.
func recording(t testing.TB) (*world, *ide, *activity.Recorder) {
	t.Helper()
	r := activity.New()
	w := newWorld(t, func(c *Config) { c.Activity = r })
	return w, w.serve(wsA), r
}

// kind returns the recorded activity of workspace A.
func kind(r *activity.Recorder) activity.Kind {
	last, _ := r.Last(wsA)
	return last.Kind
}

func (w *world) send(method, path, body string, header ...string) answer {
	w.t.Helper()
	r := w.request(method, path, header...)
	if body != "" {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
	return w.do(r)
}

// Opening a page and sending a body count, if they reach the workspace.
func TestRequestsThatCount(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what, method, path, body string
		header                   []string
		want                     activity.Kind
	}{
		{"a page", http.MethodGet, "/", "", navigation, activity.Open},
		{"a page of a forwarded port", http.MethodGet, "/proxy/3000/", "", navigation, activity.Open},
		{"an asset", http.MethodGet, "/x.js", "", nil, ""},
		{"a fetch by a script", http.MethodGet, "/api", "", []string{"Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"}, ""},
		{"a page in a frame", http.MethodGet, "/", "", []string{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, ""},
		{"a prefetched page", http.MethodGet, "/", "", append([]string{"Sec-Purpose", "prefetch"}, navigation...), ""},
		{"a health check", http.MethodGet, "/healthz", "", nil, ""},
		{"another health check", http.MethodHead, "/", "", []string{"Accept", "text/html"}, ""},
		{"a preflight", http.MethodOptions, "/", "x", nil, ""},
		{"a GET with a body", http.MethodGet, "/", "x", nil, ""},
		{"a POST", http.MethodPost, "/", "x", nil, activity.Client},
		{"a PUT", http.MethodPut, "/file", "x", nil, activity.Client},
		{"a DELETE", http.MethodDelete, "/file", "", nil, ""},
		{"a background request of the IDE", http.MethodPost, "/mint-key", "", nil, ""},
		{"a beacon", http.MethodPost, "/stats", "x", []string{"Sec-Fetch-Mode", "no-cors"}, ""},
		{"a browser's report", http.MethodPost, "/csp", "x", []string{"Sec-Fetch-Dest", "report"}, ""},
		{"an app that polls", http.MethodPost, "/proxy/3000/graphql", "x", nil, ""},
		{"the same at its own path", http.MethodPost, "/absproxy/3000/graphql", "x", nil, ""},
	} {
		w, _, r := recording(t)
		if got := w.send(test.method, under(wsA)+test.path, test.body, test.header...); got.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d", test.what, got.StatusCode)
		}
		if got := kind(r); got != test.want {
			t.Errorf("%s is %q, want %q", test.what, got, test.want)
		}
		harness.EventuallyWithin(t, patience, test.what+" is over", func() bool { return w.proxy.OpenConnections() == 0 })
		r.Forget(time.Now().Add(time.Hour))
		if _, ok := r.Last(wsA); ok {
			t.Errorf("%s: its connection still marks the workspace", test.what)
		}
	}
}

// Refused requests and codehub's own pages do not count.
func TestRefusedRequestsDoNotCount(t *testing.T) {
	t.Parallel()
	w, i, r := recording(t)
	w.send(http.MethodPost, under(wsA)+"/", "x", "Cookie", sessionCookie+"=bob-1")
	w.get(under(wsA)+"/", append([]string{"Cookie", sessionCookie + "=bob-1"}, navigation...)...)
	w.get(under(wsA)+"/", append([]string{"Cookie", ""}, navigation...)...)
	i.stop()
	w.open(under(wsA) + "/")
	if last, ok := r.Last(wsA); ok {
		t.Errorf("recorded %v", last)
	}
	if len(r.Since(time.Time{})) != 0 {
		t.Error("something is recorded of another workspace")
	}
}

// A long upload counts for its whole duration.
func TestLongUploadCounts(t *testing.T) {
	t.Parallel()
	w, _, r := recording(t)
	body, in := io.Pipe()
	req := w.request(http.MethodPost, under(wsA)+"/")
	req.Body, req.ContentLength = body, -1
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.do(req)
	}()
	var last time.Time
	for range 3 {
		if _, err := io.WriteString(in, "x"); err != nil {
			t.Fatal(err)
		}
		harness.EventuallyWithin(t, patience, "it counts again", func() bool {
			a, ok := r.Last(wsA)
			return ok && a.At.After(last)
		})
		a, _ := r.Last(wsA)
		last = a.At
	}
	in.Close()
	<-done
}

func (w *world) socket(t testing.TB, path string, mode websocket.CompressionMode) *websocket.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(w.server.URL, "http")+path, &websocket.DialOptions{
		HTTPHeader:      http.Header{"Cookie": {sessionCookie + "=ann-1"}, "Origin": {w.server.URL}},
		CompressionMode: mode,
	})
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(-1)
	t.Cleanup(func() { conn.CloseNow() })
	return conn
}

// echo sends a message and waits for its echo; it was inspected by then.
func echo(t testing.TB, conn *websocket.Conn, message []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := conn.Write(ctx, websocket.MessageBinary, message); err != nil {
		t.Fatal(err)
	}
	_, back, err := conn.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(back, message) {
		t.Fatalf("%d bytes came back as %d different ones", len(message), len(back))
	}
}

// A WebSocket with an unknown protocol counts by what the client sends.
func TestWebSocketsThatCount(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]websocket.CompressionMode{
		"plain": websocket.CompressionDisabled, "compressed": websocket.CompressionContextTakeover, "compressed alone": websocket.CompressionNoContextTakeover,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _, r := recording(t)
			conn := w.socket(t, under(wsA)+"/", mode)
			conn.CloseRead(t.Context())
			if err := conn.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			if last, ok := r.Last(wsA); ok {
				t.Errorf("a ping is recorded as %v", last)
			}
			conn = w.socket(t, under(wsA)+"/", mode)
			echo(t, conn, nil)
			if last, ok := r.Last(wsA); ok {
				t.Errorf("an empty message is recorded as %v", last)
			}
			echo(t, conn, []byte("a key"))
			harness.EventuallyWithin(t, patience, "it counts", func() bool { return kind(r) == activity.Client })
			first, _ := r.Last(wsA)
			echo(t, conn, bytes.Repeat([]byte("much"), 100_000))
			harness.EventuallyWithin(t, patience, "it counts again", func() bool { a, _ := r.Last(wsA); return a.At.After(first.At) })
		})
	}
}

// Inspection does not change the traffic or its headers, and nothing counts on a WebSocket
// whose page reports its use.
func TestInspectionKeepsTraffic(t *testing.T) {
	t.Parallel()
	w, _, r := recording(t)
	for _, path := range []string{"/stable-c0ffee?reconnectionToken=x&reconnection=false" + reportsUse, "/stable-c0ffee?reconnectionToken=x", "/", "/proxy/3000/"} {
		for _, offer := range []string{"permessage-deflate; client_max_window_bits", ""} {
			res := w.get(under(wsA)+path, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Origin", w.server.URL,
				"Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Extensions", offer)
			if res.StatusCode != http.StatusSwitchingProtocols {
				t.Fatalf("%s: %d", path, res.StatusCode)
			}
			if got := res.Header.Get("Sec-WebSocket-Extensions"); (got == "") != (offer == "") || strings.Contains(got, "client_no_context_takeover") {
				t.Errorf("%s, offered %q: %q", path, offer, got)
			}
		}
		for _, mode := range []websocket.CompressionMode{websocket.CompressionDisabled, websocket.CompressionContextTakeover} {
			conn := w.socket(t, under(wsA)+path, mode)
			for _, n := range []int{1, 13, 100, 100_000, 3 << 20} {
				message := make([]byte, n)
				for i := range message {
					message[i] = byte(i * i >> 3)
				}
				echo(t, conn, message)
			}
		}
		want := activity.Client
		if strings.HasSuffix(path, reportsUse) {
			want = ""
		}
		harness.EventuallyWithin(t, patience, path, func() bool { return kind(r) == want })
	}
}
