package httpapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
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
	"codehub/internal/admin"
	"codehub/internal/archive/store"
	"codehub/internal/auth"
	"codehub/internal/bucket"
	"codehub/internal/bus"
	"codehub/internal/pgtest"
	"codehub/internal/postgres"
	"codehub/internal/rollback"
	"codehub/internal/runtime"
	"codehub/internal/runtime/runtimetest"
	"codehub/internal/service"
	"codehub/internal/workspace"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/crypto/argon2"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const password = "correct horse"

// limit bounds a wait that is expected to end.
const limit = 30 * time.Second

// env is the API on a real database, with a listener, served over HTTP.
type env struct {
	t    *testing.T
	dsn  string
	db   *postgres.DB
	auth *auth.Auth
	hub  *bus.Hub
	srv  *httptest.Server
	log  *syncBuffer
	logs *fakeLogs
	m    *Metrics
	cfg  Config

	ann, eve person
}

// person is somebody with an account and a session.
type person struct {
	auth.Session
	cookie *http.Cookie
}

type option func(*Config)

func newEnv(t *testing.T, opts ...option) *env {
	t.Helper()
	e := &env{t: t, dsn: pgtest.New(t, postgres.Migrate), log: &syncBuffer{}, logs: &fakeLogs{}, m: NewMetrics()}
	log := slog.New(slog.NewTextHandler(e.log, nil))
	db, err := postgres.Open(t.Context(), e.dsn, postgres.Options{Log: log, Limits: postgres.Limits{PerUser: 100}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	e.db = db
	e.srv = httptest.NewUnstartedServer(nil)
	base := &url.URL{Scheme: "http", Host: e.srv.Listener.Addr().String()}
	e.auth = auth.New(db, auth.Config{URL: base, Log: log, CheapHashes: true})
	e.hub = bus.New(bus.Config{
		Load:        bus.Batched(reload(db)),
		AuthChanged: e.auth.Invalidate,
		Log:         log,
	})
	cfg := Config{
		Settings: service.Settings{
			URL: base, DeleteGrace: time.Hour,
			Defaults: service.Defaults{DefaultImage: "codehub/workspace:latest", StorageBackend: workspace.StorageDockerVolume},
		},
		Archives: &fakeBucket{}, Store: db, Auth: e.auth, Hub: e.hub, Logs: e.logs, Log: log,
		Restore: rollback.New(rollback.Config{Store: db, Runtime: runtimetest.NewFake(), Bucket: emptyBucket(t), DeleteGrace: time.Hour, Log: slog.New(slog.DiscardHandler)}),
		Admin:   admin.New(admin.Config{Store: db, Passwords: e.auth, OrphanDelay: 10 * time.Minute}),
	}
	for _, o := range opts {
		o(&cfg)
	}
	e.cfg = cfg
	e.srv.Config.Handler = Outer(log, e.m, New(cfg))
	e.srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	e.srv.Start()
	t.Cleanup(e.srv.Close)
	e.background(func(ctx context.Context) error {
		return postgres.NewListener(e.dsn, log, nil).Run(ctx, func(n postgres.Notification) { e.hub.Handle(n.Channel, n.Payload) }, func() {
			e.auth.InvalidateAll()
			e.hub.Gap()
		})
	})
	e.background(e.auth.Run)
	e.ann, e.eve = e.join("ann"), e.join("eve")
	return e
}

func emptyBucket(t *testing.T) *bucket.Bucket {
	t.Helper()
	dir := t.TempDir()
	b, err := bucket.New(bucket.Config{Store: store.NewFolder(dir), Installation: uuid.NewString(), Version: "test", Folder: dir, HostFolder: dir})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// reload reads what event streams need.
func reload(db *postgres.DB) func(context.Context, []bus.Wanted) ([]workspace.Workspace, error) {
	return func(ctx context.Context, wanted []bus.Wanted) ([]workspace.Workspace, error) {
		owners, ids := make([]string, len(wanted)), make([]workspace.ID, len(wanted))
		for i, w := range wanted {
			owners[i], ids[i] = w.Owner, w.ID
		}
		return db.Reload(ctx, owners, ids)
	}
}

// background runs f until the end of the test.
func (e *env) background(f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = f(ctx) })
	e.t.Cleanup(func() { cancel(); wg.Wait() })
}

func (e *env) join(name string) person {
	e.t.Helper()
	if _, err := e.db.CreateUser(e.t.Context(), postgres.User{Username: name, PasswordHash: cheapHash()}); err != nil {
		e.t.Fatal(err)
	}
	return e.enter(name)
}

// cheapHash is the password's hash with parameters that cost a test nothing.
func cheapHash() string {
	b := base64.RawStdEncoding
	salt := []byte("salt for a test!")
	return fmt.Sprintf("$argon2id$v=19$m=64,t=1,p=1$%s$%s", b.EncodeToString(salt),
		b.EncodeToString(argon2.IDKey([]byte(password), salt, 1, 64, 1, 32)))
}

// enter makes another session of a user.
func (e *env) enter(name string) person {
	e.t.Helper()
	s, err := e.auth.Login(e.t.Context(), name, password, "test")
	if err != nil {
		e.t.Fatal(err)
	}
	return person{s, e.auth.Cookie(s)}
}

func (e *env) exec(sql string, args ...any) {
	e.t.Helper()
	conn, err := pgx.Connect(e.t.Context(), e.dsn)
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	tag, err := conn.Exec(e.t.Context(), sql, args...)
	if err != nil || tag.RowsAffected() == 0 {
		e.t.Fatalf("%s: %d rows, %v", sql, tag.RowsAffected(), err)
	}
}

// dump is all that the database holds of workspaces, tokens and sessions.
func (e *env) dump() string {
	e.t.Helper()
	conn, err := pgx.Connect(e.t.Context(), e.dsn)
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var s string
	if err := conn.QueryRow(e.t.Context(), `SELECT concat_ws(E'\n',
		(SELECT string_agg(w::text, E'\n' ORDER BY id) FROM workspaces w),
		(SELECT string_agg(concat(id, name, expires_at), E'\n' ORDER BY id) FROM api_tokens),
		(SELECT string_agg((to_jsonb(s) - 'last_used_at')::text, E'\n' ORDER BY hash) FROM sessions s))`).Scan(&s); err != nil {
		e.t.Fatal(err)
	}
	return s
}

// workspace makes a workspace of somebody's.
func (e *env) workspace(p person, name string) workspace.Workspace {
	e.t.Helper()
	w, err := e.db.CreateWorkspace(e.t.Context(), p.Caller, postgres.NewWorkspace{
		Name: name, ImageRef: "test",
		StorageBackend: workspace.StorageDockerVolume, Desired: workspace.DesiredStandby,
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return w
}

type answer struct {
	status int
	header http.Header
	body   string
}

// code is the error's code, "" for a success.
func (a answer) code() string {
	var e api.Error
	_ = json.Unmarshal([]byte(a.body), &e)
	return e.Code
}

type with func(*http.Request)

func as(p person) with { return func(r *http.Request) { r.AddCookie(p.cookie) } }

func header(name, value string) with { return func(r *http.Request) { r.Header.Set(name, value) } }

// do sends a request. The body of an event stream is not read.
func (e *env) do(method, path, body string, with ...with) answer {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, e.srv.URL+path, strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, w := range with {
		w(r)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		e.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header}
	if resp.Header.Get("Content-Type") != "text/event-stream" {
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			e.t.Fatal(err)
		}
		a.body = string(b)
	}
	return a
}

// want sends a request to /api/v1 and checks the status and the error's code.
func (e *env) want(status int, code, method, path, body string, with ...with) answer {
	e.t.Helper()
	a := e.do(method, Prefix+path, body, with...)
	if a.status != status || a.code() != code {
		e.t.Errorf("%s %s %.80s: %d %s, want %d %s", method, path, body, a.status, a.body, status, code)
	}
	return a
}

// read decodes an answer; a field that the type does not have fails the test.
func read[T any](t *testing.T, a answer) T {
	t.Helper()
	var v T
	d := json.NewDecoder(strings.NewReader(a.body))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	return v
}

// fakeLogs is a container's output.
type fakeLogs struct {
	mu    sync.Mutex
	err   error
	calls []string
}

func (f *fakeLogs) Logs(ctx context.Context, id workspace.ID, tail int, follow bool, w io.Writer) error {
	f.mu.Lock()
	f.calls = append(f.calls, fmt.Sprint(id, " ", tail, " ", follow))
	err := f.err
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, "hello\n"); err != nil {
		return err
	}
	if follow {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

var _ service.Logs = runtime.Runtime(nil)

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
