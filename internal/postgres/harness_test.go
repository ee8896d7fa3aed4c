package postgres_test

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// env is a database of the test's own, the store on it, and a way around the
// store.
type env struct {
	testing.TB
	*postgres.DB
	fixture *fixture.Database
	dsn     string
	raw     *pgxpool.Pool
}

func open(t testing.TB, opts postgres.Options) *env {
	t.Helper()
	d := fixture.NewDatabase(t, opts)
	return &env{TB: t, DB: d.DB, fixture: d, dsn: d.DSN, raw: d.Raw}
}

func (e *env) exec(sql string, args ...any) int64 {
	e.Helper()
	return e.fixture.Exec(sql, args...)
}

func query[T any](e *env, sql string, args ...any) T {
	e.Helper()
	return fixture.Query[T](e.fixture, sql, args...)
}

// user makes a user, and the caller that they are.
func (e *env) user(name string) workspace.Caller {
	e.Helper()
	u := must(e.CreateUser(e.Context(), postgres.User{Username: name, PasswordHash: "hash of " + name}))(e)
	return workspace.Caller{UserID: u.ID, Username: u.Username}
}

func newWorkspace(name string, desired workspace.DesiredState) postgres.NewWorkspace {
	return postgres.NewWorkspace{
		Name: name, ImageRef: "codehub/workspace:latest", Desired: desired,
		StorageBackend: workspace.StorageDockerVolume,
	}
}

// workspace makes a workspace that wants nothing to run, in the given state.
func (e *env) workspace(owner workspace.Caller, s state) workspace.Workspace {
	e.Helper()
	w := must(e.CreateWorkspace(e.Context(), owner, newWorkspace("ws-"+rand.Text()[:8], workspace.DesiredStandby)))(e)
	e.set(w.ID, s)
	if s["phase"] == "DELETED" {
		return w // there is nothing to read any more
	}
	return e.read(w.ID)
}

// state is columns of a workspace by name.
type state map[string]any

// What the controller observes of a workspace.
const (
	noContainer = `{"infra.container_ready": {"status": "False", "reason": "NoContainer"}, "storage.volume_ready": {"status": "True", "reason": "Ready"}}`
	container   = `{"infra.container_ready": {"status": "True", "reason": "Ready"}, "storage.volume_ready": {"status": "True", "reason": "Ready"}}`
	exited      = `{"infra.container_ready": {"status": "False", "reason": "Exited"}, "storage.volume_ready": {"status": "True", "reason": "Ready"}}`
	nothing     = `{"infra.container_ready": {"status": "False", "reason": "NoContainer"}, "storage.volume_ready": {"status": "False", "reason": "NoVolume"}}`
)

// set writes columns past the store. An operation gets a claim.
func (e *env) set(id workspace.ID, s state) {
	e.Helper()
	if len(s) == 0 {
		return
	}
	s = maps.Clone(s)
	if op, ok := s["operation"]; ok && s["op_id"] == nil {
		s["op_id"] = nil
		if op != "NONE" {
			s["op_id"] = uuid.NewString()
		}
	}
	sets, args := []string{}, []any{id}
	for i, column := range slices.Sorted(maps.Keys(s)) {
		sets = append(sets, fmt.Sprintf("%s = $%d", column, i+2))
		args = append(args, s[column])
	}
	e.exec(`UPDATE workspaces SET `+strings.Join(sets, ", ")+` WHERE id = $1`, args...)
}

// read reads a workspace as codehub itself may.
func (e *env) read(id workspace.ID) workspace.Workspace {
	e.Helper()
	return must(e.Workspace(e.Context(), workspace.System, id))(e)
}

// row is all of a row as text, for "nothing was written".
func (e *env) row(id workspace.ID) string {
	e.Helper()
	return query[string](e, `SELECT row_to_json(w)::text FROM workspaces w WHERE id = $1`, id)
}

// audited lists the actions recorded on a target, oldest first.
func (e *env) audited(target string) []string {
	e.Helper()
	rows, err := e.raw.Query(e.Context(), `SELECT username || ' ' || action FROM audit_log WHERE target = $1 ORDER BY id`, target)
	if err != nil {
		e.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		e.Fatal(err)
	}
	return list
}

// conn is a session of its own, like the leader's.
func (e *env) conn() *pgx.Conn {
	e.Helper()
	return e.fixture.Conn()
}

// must takes a call's results and fails the test on an error.
func must[V any](v V, err error) func(t testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// page returns the rows of a page of a list.
func page[V any](v []V, _ string, err error) func(t testing.TB) []V { return must(v, err) }

// pages reads a list page after page, and checks the pages' lengths.
func pages[V any](t testing.TB, size int, read func(postgres.Page) ([]V, string, error)) []V {
	t.Helper()
	var all []V
	for p := (postgres.Page{Limit: size}); ; {
		list, next, err := read(p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, list...)
		if next == "" {
			return all
		}
		if len(list) != size || len(all) > 10_000 {
			t.Fatalf("a page of %d rows has %d, and is not the last of %d", size, len(list), len(all))
		}
		p.Cursor = next
	}
}

func wantCode(t testing.TB, err error, code workspace.Code) {
	t.Helper()
	if workspace.CodeOf(err) != code || (code == "" && err != nil) {
		t.Fatalf("got %v, want code %q", err, code)
	}
}

func hash(s string) []byte {
	h := sha256.Sum256([]byte(s))
	return h[:]
}

func ptr[T any](v T) *T { return &v }

// soon is a time that the database keeps exactly.
func soon(d time.Duration) time.Time { return time.Now().UTC().Add(d).Truncate(time.Microsecond) }

func asPg(err error, pg **pgconn.PgError) bool { return errors.As(err, pg) }

func asError(t testing.TB, err error) *workspace.Error {
	t.Helper()
	var coded *workspace.Error
	if !errors.As(err, &coded) {
		t.Fatalf("%v has no code", err)
	}
	return coded
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// logTo returns a logger that sends each of its lines to a channel.
func logTo(lines chan<- struct{}) *slog.Logger {
	return slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
		lines <- struct{}{}
		return len(b), nil
	}), nil))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
