package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"codehub/internal/gateway/shortway"
	"codehub/internal/testing/harness"
	"codehub/internal/web/accesslog"
)

// relayedTo is the client of a repeated request. A response that must not pass is 418.
type relayedTo struct{}

func (relayedTo) BeginWrite()  {}
func (relayedTo) EndWrite(int) {}
func (relayedTo) Handle(w http.ResponseWriter, _ *http.Request, receive func(func(int, http.Header) error) (*http.Response, error)) {
	if res, err := receive(nil); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
	}
	w.WriteHeader(http.StatusTeapot)
}

// A repeated request has an id of its own, and is logged and counted as any other.
func TestOuterOfRepeatedRequests(t *testing.T) {
	t.Parallel()
	log := &harness.Log{}
	m := NewMetrics()
	handled := 0
	container := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "again")
	}))
	defer container.Close()
	request, err := http.NewRequest(http.MethodGet, container.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	pool := &shortway.Pool{IdleTimeout: time.Minute, MaxIdle: 1, MaxHeader: 4 << 10, Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", container.Listener.Addr().String())
	}}
	defer pool.Close()
	relayed := &shortway.Relayed{Pool: pool, Request: request, Passes: func(target, _, _ []byte) bool { return string(target) != "/writer" }}
	open, err := pool.Send(request, nil) // a connection that the requests are repeated on
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(open.Body)
	answer := func(target []byte, a *shortway.Answer) bool {
		switch string(target) {
		case "/panic":
			panic("secret words")
		case "/abort":
			panic(http.ErrAbortHandler)
		case "/not":
			return false
		}
		return a.Relay(relayed, target, relayedTo{})
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handled++
		accesslog.SetRoute(r.Context(), "proxy")
		accesslog.SetUser(r.Context(), "ann")
		shortway.Repeat(w, answer)
		_, _ = io.WriteString(w, "first")
	})
	s := httptest.NewUnstartedServer(Outer(slog.New(slog.NewTextHandler(log, nil)), m, shortway.NewGroup(), handler))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	plain := &shortway.Server{HTTP: s.Config, Serves: func(string, string) bool { return true }}
	s.Listener = plain.Listen(s.Listener)
	s.Start()
	defer s.Close()
	var conn net.Conn
	var in *bufio.Reader
	ids := map[string]bool{}
	ask := func(target string) (status int, body string) {
		t.Helper()
		if conn == nil {
			var err error
			if conn, err = net.Dial("tcp", s.Listener.Addr().String()); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(harness.Patience))
			in = bufio.NewReader(conn)
		}
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", target); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			conn.Close()
			conn = nil
			return 0, ""
		}
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		id := res.Header.Get("X-Request-Id")
		if id == "" || ids[id] {
			t.Errorf("%s: the id %q", target, id)
		}
		ids[id] = true
		return res.StatusCode, string(b)
	}
	for _, test := range []struct {
		target string
		status int
		body   string
		log    string
	}{
		{"/first", 200, "first", "path=/first route=proxy status=200 bytes=5"},
		{"/second?secret", 200, "again", "path=/second route=proxy status=200 bytes=5"},
		{"/writer", 418, "", "path=/writer route=proxy status=418 bytes=0"},
		{"/not", 200, "first", "path=/not route=proxy status=200 bytes=5"},
		{"/abort", 0, "", "path=/abort route=proxy status=200 bytes=0"},
		{"/first", 200, "first", "path=/first"},
		{"/panic", 0, "", "path=/panic route=proxy status=500 bytes=0"},
	} {
		status, body := ask(test.target)
		if status != test.status || body != test.body {
			t.Errorf("%s: %d %q", test.target, status, body)
		}
		harness.Eventually(t, "the log has "+test.log, func() bool { return strings.Contains(log.String(), test.log) })
	}
	if handled != 3 {
		t.Errorf("the handler served %d requests", handled)
	}
	text := log.String()
	if !strings.Contains(text, "secret words") || strings.Contains(text, "?secret") || strings.Count(text, "user=ann") != 7 {
		t.Errorf("the log: %s", text)
	}
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		`codehub_http_requests_total{method="GET",route="proxy",status="2xx"} 5`,
		`codehub_http_requests_total{method="GET",route="proxy",status="4xx"} 1`,
		`codehub_http_requests_total{method="GET",route="proxy",status="5xx"} 1`,
		`codehub_http_requests_open 0`,
	} {
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("no %s in the metrics", want)
		}
	}
}
