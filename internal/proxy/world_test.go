package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/runtime"
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

// patience bounds every wait for something that must happen; a test that is
// right never comes near it.
const patience = 30 * time.Second

// world is a proxy with everything around it: accounts, rows and containers
// kept in memory, and a real server in front.
type world struct {
	t        testing.TB
	store    *rows
	engine   *engine
	sessions *watches
	proxy    *Proxy
	server   *httptest.Server
	log      *bytes.Buffer
	logMu    sync.Mutex
}

// newWorld has workspace A, ann's, in RUNNING.
func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	w := &world{
		t: t, log: &bytes.Buffer{},
		store:    &rows{by: map[workspace.ID]workspace.Workspace{}},
		engine:   &engine{at: map[workspace.ID]runtime.Upstream{}},
		sessions: &watches{by: map[string][]context.CancelFunc{}},
	}
	// The public address is known once the server listens.
	w.server = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.handler().ServeHTTP(rw, r) }))
	w.server.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(w, nil), slog.LevelInfo)
	w.server.Start()
	public, err := url.Parse(w.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Auth: accounts{}, Sessions: w.sessions, Store: w.store, Runtime: w.engine, Pages: plainPages{},
		Log:       slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug})),
		PublicURL: public, CookieNames: []string{sessionCookie, secureCookie},
		IsToken:       func(s string) bool { return strings.HasPrefix(s, "chub_") },
		CheckInterval: 5 * time.Millisecond,
	}
	for _, f := range change {
		f(&c)
	}
	w.proxy = New(c)
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
		_ = w.proxy.Shutdown(cut) // whatever is open is cut off
		w.server.Close()
		stop()
		<-done
		if t.Failed() {
			w.logMu.Lock()
			t.Logf("log:\n%s", w.log)
			w.logMu.Unlock()
		}
	})
	w.store.put(running(wsA, ann))
	return w
}

func (w *world) Write(p []byte) (int, error) {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	return w.log.Write(p)
}

func (w *world) handler() http.Handler {
	return w.proxy.Wrap(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.WriteHeader(http.StatusTeapot) // the rest of the server
	}))
}

// serve gives a workspace a container with its own IDE.
func (w *world) serve(id workspace.ID) *ide {
	w.t.Helper()
	i := newIDE(w.t, "secret-of-"+string(id), "127.0.0.1:0")
	w.engine.put(id, i.upstream("c-"+string(id)))
	return i
}

// request is one to the server as ann's browser would make it.
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

var noRedirects = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

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

// navigation are the headers of a person opening a page.
var navigation = []string{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Sec-Fetch-Site", "none", "Accept", "text/html,*/*;q=0.8"}

func (w *world) open(path string) answer {
	w.t.Helper()
	return w.get(path, navigation...)
}

func under(id workspace.ID) string { return "/w/" + string(id) }

// eventually waits for something that is bound to happen.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

func running(id workspace.ID, owner string) workspace.Workspace {
	return workspace.Workspace{
		ID: id, OwnerID: owner, Name: "name of " + string(id), Phase: workspace.PhaseRunning,
		Operation: workspace.OpNone, DesiredState: workspace.DesiredRunning,
	}
}

// rows is a store in memory that counts what it is asked.
type rows struct {
	mu    sync.Mutex
	by    map[workspace.ID]workspace.Workspace
	reads int
	wakes int
	fail  error
	limit error
	read  func() // runs within a read, before the row is taken
}

func (s *rows) put(ws workspace.Workspace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by[ws.ID] = ws
}

func (s *rows) counts() (reads, wakes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads, s.wakes
}

func (s *rows) row(id workspace.ID) workspace.Workspace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by[id]
}

func (s *rows) Workspace(_ context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.fail != nil {
		return workspace.Workspace{}, s.fail
	}
	ws, ok := s.by[id]
	switch {
	case !ok:
		return ws, workspace.Errorf(workspace.CodeNotFound, "There is no such workspace.")
	case !caller.Owns(ws.OwnerID):
		return ws, workspace.Errorf(workspace.CodeForbidden, "Not yours.")
	}
	if s.read != nil {
		s.mu.Unlock()
		s.read()
		s.mu.Lock()
	}
	return ws, nil
}

func (s *rows) Wake(_ context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakes++
	ws := s.by[id]
	switch {
	case !caller.Owns(ws.OwnerID):
		return ws, workspace.Errorf(workspace.CodeForbidden, "Not yours.")
	case s.limit != nil:
		return ws, s.limit
	case ws.Operation == workspace.OpStopping || ws.Operation == workspace.OpArchiving:
		ws.NextDesired = workspace.DesiredRunning
	case ws.Operation == workspace.OpNone && ws.Phase == workspace.PhaseStandby:
		ws.DesiredState = workspace.DesiredRunning
	}
	s.by[id] = ws
	return ws, nil
}

func (s *rows) RunningOf(_ context.Context, user string) ([]workspace.Workspace, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []workspace.Workspace
	for _, ws := range s.by {
		if ws.OwnerID == user && ws.Phase == workspace.PhaseRunning {
			list = append(list, ws)
		}
	}
	return list, nil
}

// engine is the container backend: it knows addresses.
type engine struct {
	mu   sync.Mutex
	at   map[workspace.ID]runtime.Upstream
	asks int
	fail error
	ask  func() // runs within a question, before the answer
}

func (e *engine) put(id workspace.ID, u runtime.Upstream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at[id] = u
}

func (e *engine) set(fail error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail = fail
}

func (e *engine) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asks
}

func (e *engine) Upstream(_ context.Context, id workspace.ID) (runtime.Upstream, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asks++
	if e.ask != nil {
		e.mu.Unlock()
		e.ask()
		e.mu.Lock()
	}
	if e.fail != nil {
		return runtime.Upstream{}, e.fail
	}
	u, ok := e.at[id]
	if !ok {
		return u, runtime.ErrNotFound
	}
	return u, nil
}

// accounts takes a cookie "user-n" for session n of a user, and a token
// "chub_user" for a token of theirs.
type accounts struct{}

func (accounts) Authenticate(r *http.Request, bearer bool) (workspace.Caller, error) {
	if bearer {
		panic("a Bearer counts for nothing under /w/")
	}
	if token := r.Header.Get(api.TokenHeader); token != "" {
		user := strings.TrimPrefix(token, "chub_")
		return workspace.Caller{UserID: user, Username: user, Session: token, Token: "id-of-" + token}, nil
	}
	for _, c := range r.CookiesNamed(sessionCookie) {
		if c.Value == "broken" {
			return workspace.Caller{}, fmt.Errorf("the database does not answer")
		}
		if user, _, ok := strings.Cut(c.Value, "-"); ok {
			return workspace.Caller{UserID: user, Username: user, Session: c.Value}, nil
		}
	}
	return workspace.Caller{}, workspace.Errorf(workspace.CodeUnauthenticated, "Log in first.")
}

// watches ends sessions.
type watches struct {
	mu sync.Mutex
	by map[string][]context.CancelFunc
}

func (s *watches) Watch(ctx context.Context, session string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by[session] = append(s.by[session], cancel)
	return ctx, cancel
}

func (s *watches) end(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cancel := range s.by[session] {
		cancel()
	}
}

// plainPages writes which page it is and what it was given.
type plainPages struct{}

func page(w http.ResponseWriter, status int, name string, p any) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("X-Page", name)
	w.WriteHeader(status)
	fmt.Fprintf(w, "%+v", p)
}

func (plainPages) Loading(w http.ResponseWriter, _ *http.Request, status int, p LoadingPage) {
	if p.Queued {
		page(w, status, "queued", p)
		return
	}
	page(w, status, "loading", p)
}
func (plainPages) RestoreNeeded(w http.ResponseWriter, _ *http.Request, status int, p WorkspacePage) {
	page(w, status, "restore", p)
}
func (plainPages) StartNeeded(w http.ResponseWriter, _ *http.Request, status int, p WorkspacePage) {
	page(w, status, "start", p)
}
func (plainPages) Failed(w http.ResponseWriter, _ *http.Request, status int, p WorkspacePage) {
	page(w, status, "failed", p)
}
func (plainPages) LimitReached(w http.ResponseWriter, _ *http.Request, status int, p LimitPage) {
	w.Header().Set("X-Limit", fmt.Sprintf("%s %d/%d running %d", p.Type, p.Current, p.Max, len(p.Running)))
	page(w, status, "limit", p)
}
func (plainPages) Deleted(w http.ResponseWriter, _ *http.Request, status int, p WorkspacePage) {
	page(w, status, "deleted", p)
}
func (plainPages) Unavailable(w http.ResponseWriter, _ *http.Request, status int, p PlainPage) {
	page(w, status, "unavailable", p)
}
func (plainPages) Forbidden(w http.ResponseWriter, _ *http.Request, status int, p PlainPage) {
	page(w, status, "forbidden", p)
}
func (plainPages) NotFound(w http.ResponseWriter, _ *http.Request, status int, p PlainPage) {
	page(w, status, "not found", p)
}
