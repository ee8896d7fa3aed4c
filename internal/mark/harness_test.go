package mark_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"codehub/internal/archive/store"
	"codehub/internal/bucket"
	"codehub/internal/mark"
	"codehub/internal/pgtest"
	"codehub/internal/postgres"
	"codehub/internal/runtime/runtimetest"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// installation is a database with its Docker and its part of a bucket.
type installation struct {
	*testing.T
	raw     *pgxpool.Pool
	dsn     string
	fake    *runtimetest.Fake
	bucket  *bucket.Bucket
	dir     string
	files   string
	backend mark.Runtime // nil: fake
}

func newInstallation(t *testing.T) *installation {
	t.Helper()
	i := &installation{T: t, dsn: pgtest.New(t, postgres.Migrate), fake: runtimetest.NewFake(), dir: filepath.Join(t.TempDir(), "archives"), files: "1:1"}
	var err error
	i.raw, err = pgxpool.New(t.Context(), i.dsn)
	i.check(err)
	t.Cleanup(i.raw.Close)
	store := store.NewFolder(i.dir)
	i.check(store.Check(t.Context()))
	i.bucket, err = bucket.New(bucket.Config{Store: store, Installation: uuid.NewString(), Version: "test", Folder: i.dir, HostFolder: i.dir})
	i.check(err)
	i.check(i.bucket.Check(t.Context(), false))
	return i
}

func (i *installation) check(err error) {
	i.Helper()
	if err != nil {
		i.Fatal(err)
	}
}

func (i *installation) exec(sql string, args ...any) {
	i.Helper()
	_, err := i.raw.Exec(i.Context(), sql, args...)
	i.check(err)
}

func query[T any](i *installation, sql string) (v T) {
	i.Helper()
	i.check(i.raw.QueryRow(i.Context(), sql).Scan(&v))
	return v
}

// backup keeps what the database knows of marks; the function restores it.
func (i *installation) backup() (restore func()) {
	i.Helper()
	table := "b" + uuid.NewString()[:8]
	i.exec(`CREATE TABLE ` + table + ` AS TABLE gc_state`)
	i.exec(`CREATE TABLE ` + table + `_past AS TABLE past_marks`)
	return func() {
		i.Helper()
		i.exec(`DELETE FROM past_marks`)
		i.exec(`INSERT INTO past_marks SELECT * FROM ` + table + `_past`)
		i.exec(`DELETE FROM gc_state`)
		i.exec(`INSERT INTO gc_state SELECT * FROM ` + table)
	}
}

// marksOf makes this database a copy of another, as far as marks go.
func (i *installation) marksOf(other *installation) {
	i.Helper()
	var state [4]any
	i.check(other.raw.QueryRow(i.Context(), `SELECT run, serial, next_run, next_serial FROM gc_state`).Scan(&state[0], &state[1], &state[2], &state[3]))
	i.exec(`UPDATE gc_state SET run = $1, serial = $2, next_run = $3, next_serial = $4`, state[:]...)
	for _, run := range query[[]string](other, `SELECT array_agg(run::text) FROM past_marks`) {
		i.exec(`INSERT INTO past_marks (run) VALUES ($1) ON CONFLICT DO NOTHING`, run)
	}
}

func (i *installation) session() postgres.Session {
	i.Helper()
	cfg, err := postgres.ConnConfig(i.dsn, "test")
	i.check(err)
	conn, err := pgx.ConnectConfig(i.Context(), cfg)
	i.check(err)
	i.Cleanup(func() { _ = conn.Close(context.Background()) })
	return postgres.NewSession(conn)
}

func (i *installation) keeper() *mark.Keeper {
	files := i.files
	var rt mark.Runtime = i.fake
	if i.backend != nil {
		rt = i.backend
	}
	return mark.New(mark.Config{
		Runtime: rt, Bucket: i.bucket, Files: func() string { return files }, Log: slog.New(slog.DiscardHandler),
		Every: 20 * time.Millisecond, Watch: 300 * time.Millisecond, Check: 5 * time.Millisecond, Retry: 5 * time.Millisecond, Within: 5 * time.Second,
	})
}

// leader is a Keeper that runs.
type leader struct {
	*installation
	k     *mark.Keeper
	acts  atomic.Int32 // how many act now
	acted atomic.Int32 // how often it began to
	end   context.CancelFunc
	ended chan error
}

func (i *installation) lead() *leader {
	i.Helper()
	ctx, end := context.WithCancel(i.Context())
	l := &leader{installation: i, k: i.keeper(), end: end, ended: make(chan error, 1)}
	session := i.session()
	go func() {
		l.ended <- l.k.Run(ctx, session, func(ctx context.Context) error {
			l.acts.Add(1)
			l.acted.Add(1)
			<-ctx.Done()
			l.acts.Add(-1)
			return nil
		})
	}()
	i.Cleanup(func() { end() })
	return l
}

func (l *leader) stop() {
	l.Helper()
	l.end()
	if err := <-l.ended; err != nil {
		l.Errorf("the term: %v", err)
	}
}

func (l *leader) await(what string, ok func() bool) {
	l.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			l.Fatalf("never %s: %+v", what, l.k.Status())
		}
	}
}

func (l *leader) awaitActing() {
	l.Helper()
	l.await("acts", func() bool { return l.acts.Load() == 1 })
}

func (l *leader) awaitHold() {
	l.Helper()
	l.await("holds", func() bool {
		return l.acts.Load() == 0 && l.k.Status().Hold != "" && query[bool](l.installation, `SELECT hold IS NOT NULL FROM gc_state`)
	})
}

// awaitMoved waits for another mark in Docker.
func (l *leader) awaitMoved() workspace.Mark {
	l.Helper()
	first := l.inDocker()
	l.await("leaves another mark", func() bool { return l.inDocker().ID != first.ID })
	return l.inDocker()
}

func (i *installation) inDocker() workspace.Mark {
	i.Helper()
	m, _, err := i.fake.Mark(i.Context())
	i.check(err)
	return m
}
