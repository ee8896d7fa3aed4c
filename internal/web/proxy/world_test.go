package proxy

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"codehub/internal/gateway/origin"
	"codehub/internal/gateway/shortway"
	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

const (
	wsA = workspace.ID("0198c0de-0000-7000-8000-00000000000a")
	wsB = workspace.ID("0198c0de-0000-7000-8000-00000000000b")

	ann = "ann"
	bob = "bob"

	sessionCookie = "codehub_session"
	secureCookie  = "__Host-codehub_session"
)

// patience limits every wait. It is shorter than each timeout that would have the
// same effect later: TCP's (1 min) and the age of a cached route (1 min).
const patience = 30 * time.Second

// world is a proxy with in-memory accounts, rows and containers, behind a real
// server.
type world struct {
	t        testing.TB
	store    *rows
	runtime  *fakeRuntime
	sessions *watches
	proxy    *Proxy
	server   *httptest.Server
	plain    *shortway.Server
	log      harness.Log
}

// newWorld has workspace A, owned by ann and RUNNING.
func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	w := &world{
		t:        t,
		store:    &rows{by: map[workspace.ID]workspace.Workspace{}},
		runtime:  &fakeRuntime{at: map[workspace.ID]runtime.Upstream{}},
		sessions: &watches{by: map[string][]context.CancelFunc{}},
	}
	w.server = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.handler().ServeHTTP(rw, r) }))
	public := &url.URL{Scheme: "http", Host: w.server.Listener.Addr().String()}
	c := Config{
		Auth: accounts{}, Sessions: w.sessions, Store: w.store, Runtime: w.runtime, Pages: plainPages{},
		Log:    w.log.Logger(),
		Layout: layoutOf(t, public, origin.PathMode), CookieNames: []string{sessionCookie, secureCookie},
		IsToken:       func(s string) bool { return strings.HasPrefix(s, "chub_") },
		CheckInterval: 5 * time.Millisecond,
	}
	for _, f := range change {
		f(&c)
	}
	w.proxy = New(c)
	w.plain = &shortway.Server{HTTP: w.server.Config, Serves: func(string, string) bool { return true }, Off: c.Settings.NoShortWay}
	w.server.Listener = w.plain.Listen(w.server.Listener)
	w.server.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(&w.log, nil), slog.LevelInfo)
	w.server.Start()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.proxy.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() {
		cut, cancel := context.WithCancel(context.Background())
		cancel()
		_ = w.proxy.Shutdown(cut) // closes what is open
		w.server.Close()
		_ = w.plain.Shutdown(cut)
		stop()
		<-done
		if t.Failed() {
			t.Logf("log:\n%s", w.log.String())
		}
	})
	w.store.put(running(wsA, ann))
	return w
}

func layoutOf(t testing.TB, public *url.URL, setting string) origin.Layout {
	t.Helper()
	layout, err := origin.Parse(public, setting)
	if err != nil {
		t.Fatal(err)
	}
	return layout
}

func (w *world) handler() http.Handler {
	proxy := w.proxy.Wrap(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.WriteHeader(http.StatusTeapot) // the rest of the server
	}))
	continued := shortway.NewGroup()
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.proxy.noShortWay || shortway.Of(r) != nil {
			proxy.ServeHTTP(rw, r)
			return
		}
		ctx, rest := continued.Allow(r.Context())
		proxy.ServeHTTP(rw, r.WithContext(ctx))
		if rest.Begun() {
			rest.Go(func(int64, *shortway.Panic) {})
		}
	})
}

// serve gives a workspace a container with its own IDE.
func (w *world) serve(id workspace.ID) *ide {
	w.t.Helper()
	i := newIDE(w.t, "secret-of-"+string(id), "127.0.0.1:0")
	w.runtime.put(id, i.upstream("c-"+string(id)))
	return i
}

// request is a request as ann's browser sends it.
func (w *world) request(method, path string, header ...string) *http.Request {
	w.t.Helper()
	r, err := http.NewRequest(method, w.server.URL+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Cookie", sessionCookie+"=ann-1")
	set(r.Header, header...)
	return r
}

// set sets name, value pairs; an empty value removes the header.
func set(h http.Header, header ...string) {
	for i := 0; i < len(header); i += 2 {
		if h.Set(header[i], header[i+1]); header[i+1] == "" {
			h.Del(header[i])
		}
	}
}

type answer struct {
	*http.Response
	body string
}

// noRedirects has its own transport: closing an httptest.Server closes the default
// one's connections, which other tests use.
var noRedirects = &http.Client{
	Transport:     &http.Transport{MaxIdleConnsPerHost: 64},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func (w *world) do(r *http.Request) answer {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	res, err := noRedirects.Do(r.WithContext(ctx))
	if err != nil {
		w.t.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusSwitchingProtocols {
		return answer{res, ""}
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatalf("%s %s: read: %v", r.Method, r.URL, err)
	}
	return answer{res, string(body)}
}

func (w *world) get(path string, header ...string) answer {
	w.t.Helper()
	return w.do(w.request(http.MethodGet, path, header...))
}

// navigation are the headers of a navigation.
var navigation = []string{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Sec-Fetch-Site", "none", "Accept", "text/html,*/*;q=0.8"}

func (w *world) open(path string) answer {
	w.t.Helper()
	return w.get(path, navigation...)
}

func under(id workspace.ID) string { return "/w/" + string(id) }

func running(id workspace.ID, owner string) workspace.Workspace {
	return workspace.Workspace{
		ID: id, OwnerID: owner, Name: "name of " + string(id), Phase: workspace.PhaseRunning,
		Operation: workspace.OpNone, DesiredState: workspace.DesiredRunning,
	}
}
