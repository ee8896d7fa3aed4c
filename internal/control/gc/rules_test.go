package gc_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/control/gc"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// A found archive is kept until it is used, even if others are newer.
func TestFoundArchiveIsKept(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		id := w.workspace("one")
		w.archive(id, "old")
		found := w.bucket.Key(id, unknownOp)
		w.upload(id, found, "found")
		r := w.collect(gc.Options{DryRun: true})
		wantItem(t, r, found, gc.Found, "not in the database")
		if n := fixture.Query[int](w, `SELECT count(*) FROM archives`); n != 1 {
			t.Errorf("%d are on record after a look", n)
		}
		wantItem(t, w.collect(gc.Options{}), found, gc.Found, "")
		list, _, err := w.DB.Archives(t.Context(), w.user, id, postgres.Page{})
		check(t, err)
		if len(list) != 2 || list[0].Key != found || !list[0].Found || list[0].Digest == "" || list[0].Entries != 2 || list[1].Found {
			t.Errorf("%+v", list)
		}
		keys := w.generations(id, 3)
		w.live(id)
		for range 3 {
			w.pass(10 * delay)
			wantItem(t, w.collect(gc.Options{}), found, gc.Keep, "not used yet")
		}
		w.wantThere(found, keys[1], keys[2])
	})
}

// A home that is restored from a backup has no archive, and none is missing. The backup ends the
// deletion of its workspace as an archive does.
func TestBackupIsNoMissingArchive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	id := w.workspace("one")
	key := w.bucket.Installation + "/" + string(id) + "/backups/20261130T120000Z-0198c0de-0000-7000-8000-000000000001.manifest.zst"
	w.Exec(`UPDATE workspaces SET archive_key = $2, home_ctx = '{"state": "absent"}' WHERE id = $1`, id, key)
	for range 2 {
		if r := w.collect(gc.Options{}); len(r.Items) > 0 {
			t.Errorf("collected: %+v", r.Items)
		}
		w.pass(delay)
	}
	w.Exec(`UPDATE workspaces SET deleted_at = now() - $2::interval WHERE id = $1`, id, 2*grace)
	if r := w.collect(gc.Options{}); r.Released != 1 {
		t.Errorf("released: %+v", r)
	}
	// Others can still be restored from it.
	other := w.workspace("other")
	w.Exec(`UPDATE workspaces SET archive_key = $2, home_ctx = '{"state": "absent"}' WHERE id = $1`, other, key)
}

// An archive that forks are to be restored from is kept until their first start, also after the deletion
// of its workspace. The deletion of a fork ends without its removal.
func TestArchiveOfForksIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.set.Keep = 0
	source, first, second := w.workspace("source"), w.workspace("first"), w.workspace("second")
	keys := w.generations(source, 2)
	fork := func(id workspace.ID, key string) {
		w.Exec(`UPDATE workspaces SET archive_key = $2, home_ctx = '{"state": "absent"}' WHERE id = $1`, id, key)
	}
	fork(first, keys[0])
	fork(second, keys[1])
	collect := func() *gc.Report {
		w.collect(gc.Options{})
		w.pass(10 * delay)
		return w.collect(gc.Options{})
	}
	wantItem(t, collect(), keys[0], gc.Keep, "forks")
	w.Exec(`UPDATE workspaces SET deleted_at = now() - $2::interval WHERE id = $1`, source, 2*grace)
	r := collect()
	wantItem(t, r, keys[0], gc.Keep, "forks")
	wantItem(t, r, keys[1], gc.Keep, "forks")
	w.wantThere(keys...)

	w.Exec(`UPDATE workspaces SET deleted_at = now() - $2::interval WHERE id = $1`, second, 2*grace)
	if r := w.collect(gc.Options{}); r.Released != 1 {
		t.Errorf("released: %+v", r)
	}
	collect()
	w.wantThere(keys[0])
	w.live(first)
	collect()
	w.wantThere()
}

// A complete archive that is newer than the current one is kept, even if its
// operation never recorded it.
func TestNewestCompleteArchiveIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.set.Keep = 0
	never, had := w.workspace("never"), w.workspace("had")
	old := w.archive(had, "old")
	w.live(had)
	var keys []string
	for _, id := range []workspace.ID{never, had} {
		key, _ := w.claim(id)
		w.upload(id, key, "complete")
		keys = append(keys, key)
		w.Exec(`UPDATE workspaces SET operation = 'NONE', op_id = NULL, home_ctx = '{"state": "absent"}' WHERE id = $1`, id)
	}
	for range 3 {
		r := w.collect(gc.Options{})
		wantItem(t, r, keys[0], gc.Keep, "newer than the current")
		wantItem(t, r, keys[1], gc.Keep, "newer than the current")
		w.pass(delay)
	}
	w.wantThere(append(keys, old)...)
	// Once there is a newer archive, it is unused.
	newer := w.generations(had, 1)
	w.collect(gc.Options{})
	w.pass(delay)
	w.collect(gc.Options{})
	w.wantThere(keys[0], newer[0])
}

// A collection waits for the lock of a workspace's row.
func TestCollectWaitsForWorkspaceLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.set.Keep = 0
	id := w.workspace("one")
	keys := w.generations(id, 2)
	w.collect(gc.Options{})
	w.pass(delay)
	tx, err := w.Raw.Begin(t.Context())
	check(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `UPDATE workspaces SET archive_key = $2 WHERE id = $1`, id, keys[0])
	check(t, err)
	done := make(chan *gc.Report, 1)
	go func() {
		r, err := w.tryCollect(gc.Options{})
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	for len(done) == 0 && !fixture.Query[bool](w, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`) {
		time.Sleep(time.Millisecond)
	}
	check(t, tx.Commit(t.Context()))
	wantItem(t, <-done, keys[0], gc.Keep, "current")
	w.wantThere(keys...)
}

// Only one collection runs at a time.
func TestCollectRunsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	other := w.Controller()
	check(t, postgres.NewCollector(other).Lock(t.Context()))
	if _, err := w.tryCollect(gc.Options{}); !errors.Is(err, postgres.ErrCollecting) {
		t.Error(err)
	}
	w.collect(gc.Options{DryRun: true}) // a dry run needs no lock
	check(t, postgres.NewCollector(other).Unlock(t.Context()))
	w.collect(gc.Options{})
	w.collect(gc.Options{}) // the lock was released
}

// A leader collects soon after its term starts and then regularly, and releases
// deleted workspaces in between.
func TestRunnerCollectsAndReleases(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.set = gc.Settings{Delay: time.Millisecond, DeleteGrace: time.Millisecond}
	id, deleted := w.workspace("one"), w.workspace("deleted")
	keys := w.generations(id, 2)
	w.archive(deleted, "deleted")
	w.delete(deleted)
	check(t, w.mark())
	cfg := gc.RunnerConfig{Config: w.config(), First: 10 * time.Millisecond, Schedule: gc.Schedule{Interval: 10 * time.Millisecond}, Glance: 10 * time.Millisecond}
	var logged atomic.Int64
	cfg.Log = slog.New(slog.NewTextHandler(writer(func() { logged.Add(1) }), &slog.HandlerOptions{Level: slog.LevelError}))
	runner := gc.NewRunner(cfg)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	// The runner needs another session, because the end of the term may close it.
	session := w.Controller()
	go func() { ended <- runner.Run(ctx, session) }()
	harness.Eventually(t, "the deleted one is let go", func() bool {
		return fixture.Query[bool](w, `SELECT archive_key IS NULL FROM workspaces WHERE id = $1`, deleted)
	})
	harness.Eventually(t, "what was replaced goes", func() bool { return len(w.there()) == 1 })
	w.wantThere(keys[1])
	harness.Eventually(t, "it says so", func() bool {
		s := runner.Status()
		return s.Removed >= 2 && s.RemovedBytes > 0 && s.Err == "" && s.Counts[gc.Keep] == 1 && !s.At.IsZero()
	})
	// A failure is logged once and retried.
	w.Exec(`ALTER TABLE gc_state RENAME TO away`)
	harness.Eventually(t, "it fails", func() bool { return runner.Status().Err != "" && logged.Load() > 0 })
	before := logged.Load()
	w.Exec(`ALTER TABLE away RENAME TO gc_state`)
	harness.Eventually(t, "it goes on", func() bool { return runner.Status().Err == "" })
	if before < 1 || before > 4 {
		t.Errorf("said %d times", before)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Deleted workspaces that cannot be released do not delay others.
func TestStuckDeletionsDelayNoOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	stuck := map[string]bool{}
	for i := range 4 {
		id := w.workspace(fmt.Sprint("stuck", i))
		stuck[w.archive(id, "kept")] = true
		w.delete(id)
		w.Exec(`UPDATE workspaces SET deleted_at = now() - interval '1 hour' WHERE id = $1`, id)
	}
	w.store.deleteFails = func(key string) bool { return stuck[key] }
	w.set.DeleteGrace = 2 * time.Hour
	w.collect(gc.Options{}) // the bucket belongs to the database
	id := w.workspace("newer")
	w.archive(id, "gone")
	w.delete(id)
	w.set.DeleteGrace = time.Millisecond

	runner := gc.NewRunner(gc.RunnerConfig{Config: w.config(), First: time.Hour, Glance: 10 * time.Millisecond, AtOnce: 2})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	session := w.Controller()
	go func() { ended <- runner.Run(ctx, session) }()
	harness.Eventually(t, "the newer one is let go", func() bool {
		return fixture.Query[bool](w, `SELECT archive_key IS NULL FROM workspaces WHERE id = $1`, id)
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if s := runner.Status(); s.Removed != 1 || s.Failed != len(stuck) {
		t.Errorf("%+v", s)
	}
}

type writer func()

func (w writer) Write(b []byte) (int, error) { w(); return len(b), nil }

// An interrupted collection has recorded its removals, and the next one
// continues them.
func TestCollectContinuesAfterStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.set.Keep = 0
	id := w.workspace("one")
	keys := w.generations(id, 2)
	w.collect(gc.Options{})
	w.pass(delay)
	for at := 1; ; at++ {
		session := w.Controller()
		ctx, stop := context.WithCancel(t.Context())
		s := &interrupted{Session: session, at: at, before: stop}
		_, err := gc.Collect(ctx, w.config(), s, gc.Options{})
		stop()
		if s.uses < at {
			check(t, err)
			break
		}
		if there := w.there(); !there[keys[1]] {
			t.Fatal("the current archive is gone")
		}
		// The end of the session releases its lock.
		check(t, session.Do(t.Context(), func(ctx context.Context, conn *pgx.Conn) error { return conn.Close(ctx) }))
		w.Exec(`UPDATE gc_state SET restored_at = restored_at - interval '9 h'`) // a crash between two recorded removals
	}
	w.collect(gc.Options{})
	w.pass(delay)
	w.collect(gc.Options{})
	w.wantThere(keys[1])
}

// An archive that was in use again waits the whole delay again.
func TestReusedArchiveWaitsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.set.Keep = 0
	id := w.workspace("one")
	keys := w.generations(id, 2)
	w.collect(gc.Options{})
	w.pass(delay)
	w.Exec(`UPDATE workspaces SET archive_key = $2 WHERE id = $1`, id, keys[0]) // recovered from it
	w.generations(id, 1)
	wantItem(t, w.collect(gc.Options{}), keys[0], gc.Wait, "replaced")
	w.pass(delay)
	wantItem(t, w.collect(gc.Options{}), keys[0], gc.Remove, "replaced")
}

// A missing archive does not count toward the kept generations.
func TestMissingArchiveIsNotCountedAsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	keys := w.generations(w.workspace("one"), 4)
	check(t, w.bucket.Delete(t.Context(), keys[2]))
	r := w.collect(gc.Options{})
	wantItem(t, r, keys[2], gc.Missing, "earlier")
	wantItem(t, r, keys[1], gc.Keep, "1 of 1")
	wantItem(t, r, keys[0], gc.Wait, "replaced")
}
