package auth

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const password = "correct horse"

// env is an Auth on a real database, with an adjustable clock.
type env struct {
	*Auth
	t *testing.T
	*fixture.Database
	skew atomic.Int64
	user postgres.User // ann
}

func newEnv(t *testing.T, base string) *env {
	t.Helper()
	e := &env{t: t, Database: fixture.NewDatabase(t, postgres.Options{Log: slog.New(slog.DiscardHandler)})}
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	e.Auth = New(e.DB, Config{URL: u, Log: slog.New(slog.DiscardHandler), Now: func() time.Time {
		return time.Now().Add(time.Duration(e.skew.Load()))
	}})
	e.hasher = newHasher(argonCheap, Settings{})
	e.refusalInterval = time.Millisecond
	if e.user, err = e.CreateUser(t.Context(), "ann", password, false); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *env) login() Session {
	e.t.Helper()
	s, err := e.Login(e.t.Context(), "ann", password, from)
	if err != nil {
		e.t.Fatal(err)
	}
	return s
}

// pass lets time pass for the lockouts of all names.
func (e *env) pass(d time.Duration) {
	e.t.Helper()
	for _, table := range []string{"users", "name_failures"} {
		e.Exec(`UPDATE `+table+` SET locked_until = locked_until - $1::interval`, fmt.Sprint(d.Seconds(), " seconds"))
	}
}

// expire makes the failures of all names too old to count.
func (e *env) expire() {
	e.t.Helper()
	for _, table := range []string{"users", "name_failures"} {
		e.Exec(`UPDATE ` + table + ` SET failed_at = failed_at - interval '24 hours'`)
	}
}

// from is where the logins of tests come from.
var from = Client{UserAgent: "test"}

// await waits until that many callers wait in a queue.
func await(t *testing.T, q *queue, n int) {
	t.Helper()
	harness.Eventually(t, fmt.Sprint(n, " callers wait"), func() bool { return waiters(q) == n })
}

func waiters(q *queue) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}

func request(with ...func(*http.Request)) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	for _, f := range with {
		f(r)
	}
	return r
}

func cookie(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.AddCookie(&http.Cookie{Name: name, Value: value}) }
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Add(name, value) }
}

func tokenHeader(value string) func(*http.Request) { return header(api.TokenHeader, value) }

// who returns the user name of a request, or the code of the error.
func (e *env) who(r *http.Request, bearer bool) string {
	e.t.Helper()
	c, err := e.Authenticate(r, bearer)
	if err == nil {
		return c.Username
	}
	if code := workspace.CodeOf(err); code != "" {
		return string(code)
	}
	e.t.Fatal(err)
	return ""
}
