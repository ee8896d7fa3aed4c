package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"codehub/api"
	"codehub/internal/base/health"
	"codehub/internal/gateway/eventstream"
	"codehub/internal/gateway/shortway"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/web"
	"codehub/internal/web/accesslog"
)

// Every error under /api is JSON in the API's form.
func TestErrorsAreJSON(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, c := range []struct {
		method, path string
		status       int
		code, allow  string
	}{
		{"GET", "/api", 404, "not_found", ""},
		{"GET", "/api/", 404, "not_found", ""},
		{"GET", "/api/v1", 404, "not_found", ""},
		{"GET", "/api/v1/", 404, "not_found", ""},
		{"GET", "/api/v2/workspaces", 404, "not_found", ""},
		{"POST", "/api/v1/nothing", 404, "not_found", ""},
		{"GET", "/api/v1/workspaces/", 404, "not_found", ""},
		{"GET", "/api/v1/workspaces/x/y/z", 404, "not_found", ""},
		{"PUT", "/api/v1/workspaces", 405, "method_not_allowed", "GET, HEAD, POST"},
		{"GET", "/api/v1/login", 405, "method_not_allowed", "POST"},
		{"OPTIONS", "/api/v1/events", 405, "method_not_allowed", "GET, HEAD"},
		{"TRACE", "/api/v1/workspaces/x", 405, "method_not_allowed", "DELETE, GET, HEAD, PATCH"},
		{"BREW", "/api/v1/workspaces/x/stop", 405, "method_not_allowed", "POST"},
	} {
		a := e.do(c.method, c.path, "", as(e.ann))
		if a.status != c.status || a.code() != c.code || a.header.Get("Allow") != c.allow || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %d %s %s", c.method, c.path, a.status, a.body, a.header)
		}
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, path := range []string{"/session", "/openapi.json", "/nothing"} {
		h := e.do("GET", Prefix+path, "", as(e.ann)).header
		for name, want := range map[string]string{
			"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Cross-Origin-Resource-Policy": "same-origin",
		} {
			if h.Get(name) != want {
				t.Errorf("%s: %s is %q", path, name, h.Get(name))
			}
		}
		if len(h.Get("X-Request-Id")) != 16 {
			t.Errorf("%s: request id %q", path, h.Get("X-Request-Id"))
		}
	}
	if a := e.do("GET", Prefix+"/openapi.json", ""); a.status != 200 || a.body != string(api.OpenAPI) {
		t.Errorf("the document: %d", a.status)
	}
	for given, kept := range map[string]bool{"abc-1.2_3": true, "a b": false, "a\"b": false, strings.Repeat("x", 65): false, "ü": false} {
		if got := e.do("GET", Prefix+"/session", "", header("X-Request-Id", given)).header.Get("X-Request-Id"); (got == given) != kept {
			t.Errorf("%q became %q", given, got)
		}
	}
}

// Text of clients is bounded and escaped in the log, and the log has no query.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.do("GET", Prefix+"/"+strings.Repeat("long", 2000)+"?secret=1", "")
	e.do("GET", Prefix+"/a%0alevel=ERROR%1b", "", as(e.ann))
	e.do("GET", Prefix+"/session", "", as(e.ann))
	log := e.log.String()
	for line := range strings.Lines(log) {
		if len(line) > 1000 || !strings.HasPrefix(line, "time=") || strings.Contains(line, "\x1b") {
			t.Errorf("%.2000q", line)
		}
	}
	if strings.Contains(log, "secret") {
		t.Error("a query is in the log")
	}
	if !strings.Contains(log, `route="GET /api/v1/session" status=200`) || !strings.Contains(log, "user="+e.ann.User.ID) {
		t.Errorf("not logged: %s", log)
	}
}

func TestOuter(t *testing.T) {
	t.Parallel()
	log := &harness.Log{}
	m := NewMetrics()
	mux := http.NewServeMux()
	mux.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) { panic("secret words") })
	mux.HandleFunc("/late", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("begun"))
		_ = http.NewResponseController(w).Flush()
		panic("late")
	})
	mux.HandleFunc("/hijack", func(w http.ResponseWriter, r *http.Request) {
		accesslog.SetRoute(r.Context(), "proxy")
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = c.Write([]byte("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"))
		c.Close()
	})
	mux.HandleFunc("/quiet", func(w http.ResponseWriter, r *http.Request) {
		accesslog.Quiet(r.Context())
		accesslog.SetRoute(r.Context(), "quiet")
	})
	mux.HandleFunc("/workspace", func(_ http.ResponseWriter, r *http.Request) {
		accesslog.SetWorkspace(r.Context(), "the-workspace", 3000)
	})
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		accesslog.SetRoute(r.Context(), "stream")
		out := eventstream.New(w, r, limit)
		out.Run(func() (time.Time, error) { return time.Time{}, errors.New("enough") }, func(error) { _, _ = out.Write([]byte("data: 1\n\n")) })
	})
	mux.HandleFunc("/stream/panic", func(w http.ResponseWriter, r *http.Request) {
		eventstream.New(w, r, limit).Run(func() (time.Time, error) { panic("words of a stream") }, func(error) {})
	})
	mux.HandleFunc("/begin/panic", func(_ http.ResponseWriter, r *http.Request) {
		shortway.Of(r).Begin(func(shortway.Done) { t.Error("a request continues after a panic") })
		panic("words of a beginning")
	})
	mux.Handle("/metrics", m.Handler())
	streams := shortway.NewGroup()
	srv := httptest.NewUnstartedServer(Outer(slog.New(slog.NewTextHandler(log, nil)), m, streams, mux))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.Start()
	defer srv.Close()
	e := &env{t: t, Server: &web.Server{HTTP: srv}}

	a := e.do("GET", "/panic", "")
	if a.status != 500 || a.code() != "internal" || strings.Contains(a.body, "secret") || !strings.Contains(a.body, a.header.Get("X-Request-Id")) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if !strings.Contains(log.String(), "secret words") || !strings.Contains(log.String(), a.header.Get("X-Request-Id")) {
		t.Errorf("not logged: %s", log)
	}
	resp, err := srv.Client().Get(srv.URL + "/late")
	if err == nil {
		if _, err = resp.Body.Read(make([]byte, 5)); err == nil {
			_, err = resp.Body.Read(make([]byte, 1))
		}
		resp.Body.Close()
	}
	if err == nil || err.Error() == "EOF" {
		t.Errorf("an answer that broke off looks whole: %v", err)
	}
	if a := e.do("GET", "/hijack", ""); a.status != 204 {
		t.Errorf("hijacked: %d", a.status)
	}
	if strings.Contains(log.String(), "workspace=") || strings.Contains(log.String(), "port=") {
		t.Error("a request that names no workspace has one in the log")
	}
	if e.do("GET", "/workspace", ""); !strings.Contains(log.String(), "workspace=the-workspace port=3000") {
		t.Errorf("the workspace is not in the log: %s", log)
	}
	e.do("GET", "/quiet", "")
	if strings.Contains(log.String(), "/quiet") {
		t.Error("a quiet request is in the log")
	}
	if a := e.do("GET", "/stream", ""); a.status != 200 || a.body != "data: 1\n\n" || a.header.Get("X-Request-Id") == "" {
		t.Errorf("stream: %+v", a)
	}
	e.do("GET", "/stream/panic", "")
	if a := e.do("GET", "/begin/panic", ""); a.status != 500 {
		t.Errorf("a panic before a request continues: %+v", a)
	}
	if err := streams.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"method=GET path=/stream route=stream status=200 bytes=9 ", "words of a stream", "words of a beginning"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in the log: %s", want, log)
		}
	}
	for i := range 50 {
		e.do("GET", "/"+strings.Repeat("x", i), "")
	}
	e.do("BREW", "/x", "")
	// A hijacked request is counted once its handler has ended, after its client has the answer.
	metrics := ""
	harness.Eventually(t, "all requests are counted", func() bool {
		metrics = e.do("GET", "/metrics", "").body
		return strings.Contains(metrics, `codehub_http_requests_open 1`) && strings.Contains(metrics, `route="proxy",status="1xx"} 1`)
	})
	for _, want := range []string{
		`codehub_http_requests_total{method="GET",route="other",status="5xx"} 2`,
		`codehub_http_requests_total{method="GET",route="quiet",status="2xx"} 1`,
		`codehub_http_requests_total{method="GET",route="stream",status="2xx"} 1`,
		`codehub_http_requests_total{method="other",route="other",status="4xx"} 1`,
		"go_goroutines ", "process_resident_memory_bytes ",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	if n := strings.Count(metrics, "codehub_http_requests_total{"); n > 7 {
		t.Errorf("%d series", n)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	get := func(h http.Handler) answer {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
		return answer{status: rec.Code, header: rec.Header(), body: strings.TrimSpace(rec.Body.String())}
	}
	if a := get(Healthz("0.1.0")); a.status != 200 || a.body != `{"status":"ok","version":"0.1.0"}` {
		t.Errorf("%+v", a)
	}
	log := &harness.Log{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	ok := Check{Name: "database", Run: func(context.Context) error { return nil }}
	bad := Check{Name: "docker", Run: func(context.Context) error { return errors.New("secret words") }}
	if a := get(Readyz(logger, []Check{ok}, nil, nil)); a.status != 200 || a.body != `{"status":"ok","checks":{"database":"ok"}}` {
		t.Errorf("%+v", a)
	}
	if a := get(Readyz(logger, []Check{ok, bad}, nil, nil)); a.status != 503 || a.body != `{"status":"failed","checks":{"database":"ok","docker":"failed"}}` {
		t.Errorf("%+v", a)
	}
	if !strings.Contains(log.String(), "secret words") {
		t.Error("why is not in the log")
	}
}

// A check that hangs fails at its deadline, and does not delay others.
func TestReadyzChecksHaveDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := Check{Name: "slow", Run: func(ctx context.Context) error { <-ctx.Done(); return nil }}
		rec := httptest.NewRecorder()
		start := time.Now()
		Readyz(slog.New(slog.DiscardHandler), []Check{hang, hang}, nil, nil).ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
		if rec.Code != 503 || time.Since(start) != readyWithin {
			t.Errorf("%d after %v", rec.Code, time.Since(start))
		}
	})
}

// While Docker does not respond, workspaces do not change, but the server stays ready.
func TestReadyzAdvisoryCheck(t *testing.T) {
	rec := httptest.NewRecorder()
	Readyz(slog.New(slog.DiscardHandler), []Check{
		{Name: "database", Run: func(context.Context) error { return nil }},
		{Name: "docker", Advisory: true, Run: func(context.Context) error { return errors.New("down") }},
	}, nil, func() map[string]api.Breaker {
		return map[string]api.Breaker{"engine": {State: api.BreakerOpen, Error: "a secret address"}}
	}).ServeHTTP(rec, httptest.NewRequest("GET", "/readyz", nil))
	if want := `{"status":"degraded","checks":{"database":"ok","docker":"failed"},"breakers":{"engine":"open"}}`; rec.Code != 200 || strings.TrimSpace(rec.Body.String()) != want {
		t.Errorf("%d %s, want 200 %s", rec.Code, rec.Body, want)
	}
}

func TestReadyzListsConditions(t *testing.T) {
	conditions := &health.Monitor{}
	conditions.New(health.Config{Name: "disk"}).Set(errors.New("a secret path"))
	conditions.New(health.Config{Name: "redis"})
	conditions.New(health.Config{Name: "wall"})
	rec := httptest.NewRecorder()
	Readyz(slog.New(slog.DiscardHandler), []Check{
		{Name: "redis", Advisory: true, Run: func(context.Context) error { return errors.New("not yet subscribed") }},
		{Name: "disk", Advisory: true, Run: func(context.Context) error { return nil }},
	}, conditions, nil).ServeHTTP(rec, httptest.NewRequest("GET", "/readyz", nil))
	if want := `{"status":"degraded","checks":{"disk":"failed","redis":"failed","wall":"ok"}}`; rec.Code != 200 || strings.TrimSpace(rec.Body.String()) != want {
		t.Errorf("%d %s, want 200 %s", rec.Code, rec.Body, want)
	}
}
