package proxy

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"codehub/api"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// rows is an in-memory store that counts its reads.
type rows struct {
	mu    sync.Mutex
	by    map[workspace.ID]workspace.Workspace
	reads int
	wakes int
	fail  error
	limit error

	limitChecks int
	shares      map[workspace.ID][]workspace.PortShare
	guests      map[workspace.ID]workspace.Guests
	wake        func() // called during a wake, before it changes the row
	read        func() // called during a read, before the row is read
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

func (s *rows) EnterableWorkspace(_ context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
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
	case !s.guests[id].Enters(caller, ws.OwnerID, id):
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
	if s.wake != nil {
		s.mu.Unlock()
		s.wake()
		s.mu.Lock()
	}
	ws := s.by[id]
	switch {
	case !s.guests[id].Enters(caller, ws.OwnerID, id):
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

func (s *rows) OpenPorts(_ context.Context, id workspace.ID) ([]workspace.PortShare, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shares[id], s.fail
}

func (s *rows) Guests(_ context.Context, id workspace.ID) (workspace.Guests, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.guests[id], s.fail
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

func (s *rows) MayRun(_ context.Context, _ workspace.Caller, _ workspace.ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limitChecks++
	return s.limit
}

// fakeRuntime is a runtime with fixed addresses.
type fakeRuntime struct {
	mu   sync.Mutex
	at   map[workspace.ID]runtime.Upstream
	asks int
	fail error
	ask  func() // called during a lookup, before the answer
}

func (e *fakeRuntime) put(id workspace.ID, u runtime.Upstream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at[id] = u
}

func (e *fakeRuntime) set(fail error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail = fail
}

func (e *fakeRuntime) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asks
}

func (e *fakeRuntime) Upstream(_ context.Context, id workspace.ID) (runtime.Upstream, error) {
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

// accounts accepts a cookie "user-n" for session n of a user, and a token
// "chub_user" for the user's token.
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

// count returns how often a session was watched.
func (s *watches) count(session string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.by[session])
}

func (s *watches) end(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cancel := range s.by[session] {
		cancel()
	}
}

// plainPages writes the name of the page and its values.
type plainPages struct{}

func page(w http.ResponseWriter, status int, name string, p any) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("X-Page", name)
	w.WriteHeader(status)
	fmt.Fprintf(w, "%+v", p)
}

func (plainPages) Loading(w http.ResponseWriter, _ *http.Request, status int, p LoadingPage) {
	w.Header().Set("X-Path", p.Path)
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
func (plainPages) Busy(w http.ResponseWriter, _ *http.Request, status int, p PlainPage) {
	page(w, status, "busy", p)
}
func (plainPages) Forbidden(w http.ResponseWriter, _ *http.Request, status int, p PlainPage) {
	page(w, status, "forbidden", p)
}
func (plainPages) NotFound(w http.ResponseWriter, _ *http.Request, status int, p PlainPage) {
	page(w, status, "not found", p)
}
func (plainPages) Notice(w http.ResponseWriter, _ *http.Request, status int, p NoticePage) {
	w.Header().Set("X-Home", p.Home)
	page(w, status, "notice "+string(p.Notice), p)
}
