package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/arrivals/rollback"
	"codehub/internal/control/admin"
	"codehub/internal/postgres"
	"codehub/internal/running/attach"
	"codehub/internal/running/devcontainers"
	"codehub/internal/running/dotfiles"
	"codehub/internal/running/service"
	"codehub/internal/running/templates"
	"codehub/internal/testing/agenttest"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/harness/web"
	"codehub/internal/testing/pgtest"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/users/auth"
	"codehub/internal/users/gitaccess"
	"codehub/internal/users/gitidentity"
	"codehub/internal/users/sealed"
	"codehub/internal/users/secrets"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const password = "correct horse"

// limit bounds a wait that is expected to end.
const limit = 30 * time.Second

// env is the API on a real database, with a listener, served over HTTP.
type env struct {
	t *testing.T
	*web.Server
	log  *harness.Log
	logs *fakeLogs
	m    *Metrics
	cfg  Config

	ann, eve person
}

// person is a user with a session.
type person struct {
	auth.Session
	cookie *http.Cookie
}

type option func(*Config)

var testSizes = workspace.Sizes{
	Default: workspace.Size{Name: workspace.DefaultSize, NanoCPUs: 2e9, Memory: 4 << 30},
	Offered: []workspace.Size{{Name: "small", NanoCPUs: 5e8, Memory: 1 << 30}, {Name: "large", NanoCPUs: 8e9}},
}

func newEnv(t *testing.T, opts ...option) *env {
	t.Helper()
	e := &env{t: t, log: &harness.Log{}, logs: &fakeLogs{}, m: NewMetrics()}
	log := slog.New(slog.NewTextHandler(e.log, nil))
	e.Server = web.New(t, fixture.NewDatabase(t, postgres.Options{Log: log, Limits: postgres.Limits{PerUser: 100}, Sizes: testSizes, Sharing: true}), log)
	cfg := Config{
		Settings: service.Settings{
			URL: e.URL, DeleteGrace: time.Hour,
			Defaults: service.Defaults{DefaultImage: "codehub/workspace:latest", StorageBackend: workspace.StorageDockerVolume, Sizes: testSizes},
		},
		Archives: &fakeBucket{}, Store: e.DB, Auth: e.Auth, Hub: e.Hub, Logs: e.logs, Log: log,
		Restore: rollback.New(rollback.Config{Store: e.DB, Runtime: runtimetest.NewFake(), Bucket: fixture.NewBucket(t), DeleteGrace: time.Hour, Log: slog.New(slog.DiscardHandler)}),
		Admin:   admin.New(admin.Config{Store: e.DB, Passwords: e.Auth, URL: e.URL, Settings: testSettings, OrphanDelay: 10 * time.Minute}),
	}
	keys, err := sealed.OpenOrCreate(filepath.Join(t.TempDir(), "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Secrets, cfg.Git, cfg.GitIdentities = secrets.New(e.DB, keys), gitaccess.New(e.DB, keys), gitidentity.New(e.DB, keys)
	cfg.Templates = templates.New(templates.Config{Store: e.DB, DefaultImage: "codehub/workspace:latest", Sizes: testSizes, Log: log})
	cfg.Ports = portsOf(t, &cfg, &container{}, nil, workspace.VisiblePublic)
	cfg.Attach = attach.New(attach.Config{Store: e.DB, Runtime: agenttest.New(t), Sessions: e.Auth})
	cfg.Dotfiles = &dotfiles.Service{Store: e.DB, Agents: cfg.Attach}
	cfg.Devcontainers = devcontainers.New(devcontainers.Config{Store: e.DB, Agents: cfg.Attach, Secrets: cfg.Secrets, Sizes: testSizes})
	for _, o := range opts {
		o(&cfg)
	}
	e.cfg = cfg
	e.Serve(Outer(log, e.m, e.Streams, New(cfg)))
	e.ann, e.eve = e.join("ann"), e.join("eve")
	return e
}

func (e *env) join(name string) person {
	e.t.Helper()
	e.AddAccount(name, password, false)
	return e.enter(name)
}

// enter creates another session of a user.
func (e *env) enter(name string) person {
	e.t.Helper()
	s, err := e.Auth.Login(e.t.Context(), name, password, auth.Client{UserAgent: "test"})
	if err != nil {
		e.t.Fatal(err)
	}
	return person{s, e.Auth.Cookie(s)}
}

// dump returns all rows of workspaces, tokens and sessions.
func (e *env) dump() string {
	e.t.Helper()
	return fixture.Query[string](e, `SELECT concat_ws(E'\n',
		(SELECT string_agg(w::text, E'\n' ORDER BY id) FROM workspaces w),
		(SELECT string_agg(concat(id, name, expires_at), E'\n' ORDER BY id) FROM api_tokens),
		(SELECT string_agg(concat(id, name, public_key), E'\n' ORDER BY id) FROM ssh_keys),
		(SELECT string_agg(s::text, E'\n' ORDER BY id) FROM secrets s),
		(SELECT string_agg(d::text, E'\n' ORDER BY user_id) FROM dotfiles d),
		(SELECT string_agg(i::text, E'\n' ORDER BY user_id) FROM git_identities i),
		(SELECT string_agg((to_jsonb(s) - 'last_used_at')::text, E'\n' ORDER BY hash) FROM sessions s))`)
}

// workspace creates a workspace of a user.
func (e *env) workspace(p person, name string) workspace.Workspace {
	e.t.Helper()
	return e.AddWorkspace(p.Caller, name, func(n *postgres.NewWorkspace) { n.ImageRef = "test" })
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
	r, err := http.NewRequestWithContext(ctx, method, e.HTTP.URL+path, strings.NewReader(body))
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

// read decodes a response; a field that the type does not have fails the test.
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
	err   error // before the first line
	cut   error // after it
	calls []string
	hold  chan struct{} // what a read waits for after the first line; nil: nothing
}

func (f *fakeLogs) Logs(ctx context.Context, id workspace.ID, tail int, follow bool, w io.Writer) error {
	f.mu.Lock()
	f.calls = append(f.calls, fmt.Sprint(id, " ", tail, " ", follow))
	err, cut, hold := f.err, f.cut, f.hold
	f.mu.Unlock()
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, "hello\n"); err != nil {
		return err
	}
	if follow && cut == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	if hold != nil {
		<-hold
	}
	return cut
}
