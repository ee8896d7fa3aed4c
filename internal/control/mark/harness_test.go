package mark_test

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/internal/control/mark"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// installation is a database with its Docker and its part of a bucket.
type installation struct {
	*testing.T
	*fixture.Database
	fake    *runtimetest.Fake
	bucket  *bucket.Bucket
	files   string
	backend mark.Runtime // nil: fake
	first   time.Duration
}

func newInstallation(t *testing.T) *installation {
	t.Helper()
	return &installation{T: t, Database: fixture.NewDatabase(t, postgres.Options{}), fake: runtimetest.NewFake(), bucket: fixture.NewBucket(t), files: "1:1"}
}

func (i *installation) check(err error) {
	i.Helper()
	if err != nil {
		i.Fatal(err)
	}
}

// backup keeps what the database knows of marks; the function restores it.
func (i *installation) backup() (restore func()) {
	i.Helper()
	table := "b" + uuid.NewString()[:8]
	i.Exec(`CREATE TABLE ` + table + ` AS TABLE gc_state`)
	i.Exec(`CREATE TABLE ` + table + `_past AS TABLE past_marks`)
	return func() {
		i.Helper()
		i.Exec(`DELETE FROM past_marks`)
		i.Exec(`INSERT INTO past_marks SELECT * FROM ` + table + `_past`)
		i.Exec(`DELETE FROM gc_state`)
		i.Exec(`INSERT INTO gc_state SELECT * FROM ` + table)
	}
}

// marksOf makes this database a copy of another, as far as marks go.
func (i *installation) marksOf(other *installation) {
	i.Helper()
	var state [4]any
	i.check(other.Raw.QueryRow(i.Context(), `SELECT run, serial, next_run, next_serial FROM gc_state`).Scan(&state[0], &state[1], &state[2], &state[3]))
	i.Exec(`UPDATE gc_state SET run = $1, serial = $2, next_run = $3, next_serial = $4`, state[:]...)
	for _, run := range fixture.Query[[]string](other, `SELECT array_agg(run::text) FROM past_marks`) {
		i.Exec(`INSERT INTO past_marks (run) VALUES ($1) ON CONFLICT DO NOTHING`, run)
	}
}

func (i *installation) keeper() *mark.Keeper {
	files := i.files
	var rt mark.Runtime = i.fake
	if i.backend != nil {
		rt = i.backend
	}
	return mark.New(mark.Config{
		Runtime: rt, Bucket: i.bucket, Files: func() string { return files }, Log: slog.New(slog.DiscardHandler),
		Every: 20 * time.Millisecond, Watch: 300 * time.Millisecond, Check: 5 * time.Millisecond, Retry: 5 * time.Millisecond, Within: 5 * time.Second, First: i.first,
	})
}

// hanging is a bucket that accepts reads and does not respond until released is closed.
type hanging struct {
	store.Store
	released chan struct{}
}

func (h hanging) Get(ctx context.Context, key string, at int64) (io.ReadCloser, error) {
	select {
	case <-h.released:
		return h.Store.Get(ctx, key, at)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// hang makes the bucket hang until release is called.
func (i *installation) hang() (release func()) {
	released := make(chan struct{})
	i.bucket.Store = hanging{i.bucket.Store, released}
	return func() { close(released) }
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
	session := i.Controller()
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
	harness.Await(l, 20*time.Second, what, l.k.Status, func(mark.Status) bool { return ok() })
}

func (l *leader) awaitActing() {
	l.Helper()
	l.await("acts", func() bool { return l.acts.Load() == 1 })
}

func (l *leader) awaitHold() {
	l.Helper()
	l.await("holds", func() bool {
		return l.acts.Load() == 0 && l.k.Status().Hold != "" && fixture.Query[bool](l, `SELECT hold IS NOT NULL FROM gc_state`)
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
