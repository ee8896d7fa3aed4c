package homebackup_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// A used home is backed up once in each interval. An unchanged one gets no further backup, unless a person
// asks for it.
func TestScheduleAndRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.home("one", "first")
	w.lead()
	w.await(ws.ID, "done schedule")
	w.pass(time.Hour)
	harness.EventuallyWithin(w, patience, "the home is found unchanged", func() bool {
		return fixture.Query[bool](w, `SELECT coalesce(bool_or(unchanged_at > now() - interval '1 minute'), false) AND count(*) = 1 FROM home_backups`)
	})
	w.write(ws.ID, "second")
	w.request(ws.ID)
	w.await(ws.ID, "done schedule, done request")
	w.request(ws.ID)
	w.await(ws.ID, "done schedule, done request, done request")
	if manifests, packs := w.keys(ws.ID); len(manifests) != 3 || len(packs) != 2 {
		t.Errorf("in the bucket are %q and %q", manifests, packs)
	}
	if n := fixture.Query[int](w, `SELECT count(*) FROM home_backups WHERE digest <> '' AND entries > 0 AND size > 0 AND begun_at IS NOT NULL`); n != 3 {
		t.Errorf("%d have figures", n)
	}
	if jobs, err := w.fake.Jobs(t.Context()); err != nil || len(jobs) > 0 {
		t.Errorf("jobs remain: %v, %v", jobs, err)
	}
}

// A request begins at once, also while the runner does not look for homes that are due.
func TestRequestWakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Tick, w.cfg.Interval = time.Hour, 0
	ws := w.home("one", "first")
	r, _ := w.lead()
	harness.EventuallyWithin(w, patience, "the runner leads", func() bool { return w.fake.Calls("Jobs") > 0 })
	w.request(ws.ID)
	began := time.Now()
	harness.EventuallyWithin(w, patience, "the backup", func() bool { r.Wake(); return w.backups(ws.ID) == "done request" })
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("took %s", took)
	}
}

// A damaged last backup is found by a drill. The next backup stores everything again and replaces it.
func TestDrillFindsDamage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.home("one", "first")
	w.cfg.Drill = 30 * 24 * time.Hour
	_, stop := w.lead()
	harness.EventuallyWithin(w, patience, "the backup is compared", func() bool {
		return fixture.Query[bool](w, `SELECT EXISTS (SELECT FROM home_backups WHERE verified_at IS NOT NULL AND damage = '')`)
	})
	stop()
	s, err := w.DB.HomeBackupState(t.Context(), w.cfg.Drill)
	check(t, err)
	if s.Homes != 1 || s.Compared != 1 || s.Damaged != 0 || s.ComparedAt == nil {
		t.Errorf("state: %+v", s)
	}
	_, packs := w.keys(ws.ID)
	path := filepath.Join(w.bucket.Folder, packs[0])
	b, err := os.ReadFile(path)
	check(t, err)
	b[10] ^= 1
	check(t, os.WriteFile(path, b, 0o600))
	w.Exec(`UPDATE home_backups SET verified_at = now() - interval '40 days'`)
	gate := make(chan struct{})
	w.setBefore(func(_ context.Context, spec runtime.JobSpec) {
		if spec.Kind == runtime.JobBackup {
			<-gate
		}
	})
	w.lead()
	harness.EventuallyWithin(w, patience, "the condition", func() bool { return w.health.Err("backup-damaged") != nil })
	close(gate)
	w.await(ws.ID, "done schedule, done schedule")
	harness.EventuallyWithin(w, patience, "the condition ends", func() bool { return w.health.Err("backup-damaged") == nil })
	if _, packs := w.keys(ws.ID); len(packs) != 2 {
		t.Errorf("the packs are %q", packs)
	}
}

// Damage that a drill finds in a backup while the next one is made is not carried on.
func TestDamageIsFoundLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.home("one", "first")
	w.generations(ws, 2, 0)
	w.Exec(`UPDATE home_backups SET damage = 'damaged', verified_at = now() WHERE begun_at = (SELECT min(begun_at) FROM home_backups)`)
	w.lead()
	w.await(ws.ID, "done schedule, done schedule, done schedule")
	if all := fixture.Query[int](w, `SELECT count(*) FROM home_backups WHERE stored > 0 AND added = files`); all != 2 {
		t.Errorf("%d backups store everything", all)
	}
}

// A backup that cannot be compared with the last one stores everything.
func TestFormerIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.home("one", "first")
	w.lead()
	w.await(ws.ID, "done schedule")
	manifests, _ := w.keys(ws.ID)
	check(t, os.Remove(filepath.Join(w.bucket.Folder, manifests[0])))
	w.request(ws.ID)
	w.await(ws.ID, "done schedule, done request")
	if _, packs := w.keys(ws.ID); len(packs) != 2 {
		t.Errorf("the packs are %q", packs)
	}
}

// A step waits for its backup, which runs in the middle of an operation, and gets its progress. It
// makes none of a home that is as its last backup has it, and none without a schedule.
func TestBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Tick = time.Hour
	ws := w.home("one", "first")
	w.Exec(`UPDATE workspaces SET created_at = now()`)
	r, _ := w.lead()
	harness.EventuallyWithin(w, patience, "the runner leads", func() bool { return w.fake.Calls("Jobs") > 0 })
	w.Change(`UPDATE workspaces SET phase = 'STANDBY', operation = 'ARCHIVING', op_id = gen_random_uuid(), op_started_at = now(), archive_op_id = NULL WHERE id = $1`, ws.ID)
	harness.EventuallyWithin(w, patience, "a backup", func() bool {
		r.Before(t.Context(), w.row(ws.ID), workspace.BackupArchive, func(runtime.Progress) {})
		return w.backups(ws.ID) == "done archive"
	})
	r.Before(t.Context(), w.row(ws.ID), workspace.BackupArchive, func(runtime.Progress) {})
	w.await(ws.ID, "done archive")
	w.Exec(`UPDATE workspaces SET last_access_at = now() + interval '1 minute', backup_interval_seconds = 0`)
	r.Before(t.Context(), w.row(ws.ID), workspace.BackupArchive, func(runtime.Progress) {})
	w.await(ws.ID, "done archive")
	// A request that cannot begin during the operation becomes the backup of the step.
	w.Exec(`UPDATE workspaces SET backup_interval_seconds = NULL`)
	w.request(ws.ID)
	r.Before(t.Context(), w.row(ws.ID), workspace.BackupArchive, func(runtime.Progress) {})
	w.await(ws.ID, "done archive, done request")
}

// A step does not wait longer than it may for a backup that hangs.
func TestBeforeEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Tick = time.Hour
	ws := w.home("one", "first")
	w.Exec(`UPDATE workspaces SET created_at = now()`)
	r, _ := w.lead()
	harness.EventuallyWithin(w, patience, "the runner leads", func() bool { return w.fake.Calls("Jobs") > 0 })
	begun := make(chan struct{}, 10)
	w.setBefore(func(ctx context.Context, _ runtime.JobSpec) { begun <- struct{}{}; <-ctx.Done() })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			r.Before(ctx, ws, workspace.BackupImage, func(runtime.Progress) {})
		}
	}()
	<-begun
	cancel()
	<-done
	w.await(ws.ID, "")
	harness.EventuallyWithin(w, patience, "no job", func() bool { jobs, err := w.fake.Jobs(t.Context()); return err == nil && len(jobs) == 0 })
}

// After another server has led, requests are met, and nothing of the others remains.
func TestNextTerm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked, due := w.home("asked", "first"), w.home("due", "first")
	w.setBefore(func(ctx context.Context, _ runtime.JobSpec) { <-ctx.Done() })
	w.request(asked.ID)
	_, stop := w.lead()
	w.await(asked.ID, "running request")
	w.await(due.ID, "running schedule")
	stop()
	w.setBefore(nil)
	w.lead()
	w.await(asked.ID, "done request")
	w.await(due.ID, "done schedule")
}

// The failure of a scheduled backup is recorded once. A backup that the runtime has ended is no failure.
func TestFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.home("one", "first")
	inTheWay := filepath.Join(w.bucket.Folder, w.bucket.Installation, string(ws.ID))
	check(t, os.WriteFile(inTheWay, nil, 0o600)) // no folder can be made
	_, stop := w.lead()
	w.await(ws.ID, "failed schedule")
	for range 2 {
		w.pass(11 * time.Minute)
		harness.EventuallyWithin(w, patience, "another failure", func() bool {
			return fixture.Query[bool](w, `SELECT bool_and(ended_at > now() - interval '1 minute') FROM home_backups`)
		})
	}
	w.await(ws.ID, "failed schedule")
	stop()
	w.Exec(`DELETE FROM home_backups`)
	check(t, os.Remove(inTheWay))
	removed := w.fake.Calls("RemoveJob")
	w.setBefore(func(_ context.Context, spec runtime.JobSpec) {
		jobs, _ := w.fake.Jobs(context.Background())
		for _, j := range jobs {
			go w.fake.RemoveJob(context.Background(), j.ID) //nolint:errcheck // it ends with this job
		}
		<-time.After(10 * time.Millisecond)
	})
	w.lead()
	harness.EventuallyWithin(w, patience, "a job was removed", func() bool { return w.fake.Calls("RemoveJob") > removed })
	w.await(ws.ID, "")
}

// Where backups are off, none is made unless a person asks for it.
func TestOffForWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	off, on := w.home("off", "first"), w.home("on", "first")
	w.Exec(`UPDATE workspaces SET backup_interval_seconds = 0 WHERE id = $1`, off.ID)
	w.lead()
	w.await(on.ID, "done schedule")
	w.await(off.ID, "")
	w.request(off.ID)
	w.await(off.ID, "done request")
}

// A request for a home that was archived meanwhile fails with a reason.
func TestRequestWithoutHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.home("one", "first")
	w.Change(`UPDATE workspaces SET phase = 'STANDBY', home_ctx = '{"state": "absent"}', conditions = '{}' WHERE id = $1`, ws.ID)
	w.request(ws.ID)
	w.lead()
	w.await(ws.ID, "failed request")
	if why := fixture.Query[string](w, `SELECT error FROM home_backups`); why != "The workspace has no home that is in use." {
		t.Error(why)
	}
}

// A request for a workspace that was deleted meanwhile does not wait for ever.
func TestRequestOfDeletedWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.home("one", "first")
	w.Change(`UPDATE workspaces SET phase = 'DELETED', deleted_at = now(), home_ctx = '{"state": "absent"}', conditions = '{}' WHERE id = $1`, ws.ID)
	w.request(ws.ID)
	w.lead()
	w.await(ws.ID, "failed request")
}

// Another attempt at a backup needs another key, so that it cannot replace objects of the one before: its job
// may have stored the manifest before it was ended.
func TestAttemptsHaveKeysOfTheirOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := w.home("one", "first")
	w.request(ws.ID)
	rows, now := postgres.NewHomeBackups(w.Controller()), time.Now()
	b := workspace.Backup{ID: fixture.Query[string](w, `SELECT id::text FROM home_backups`), WorkspaceID: ws.ID, Cause: workspace.BackupRequested, Key: "a", BegunAt: &now}
	for i, again := range []func() error{func() error { return nil }, func() error { return rows.Wait(t.Context(), b.ID) }, func() error { return rows.Restart(t.Context()) }} {
		check(t, again())
		if _, claimed, err := rows.Claim(t.Context(), b); err != nil || claimed != (i == 0) {
			t.Errorf("%d: claimed %v with a key that was used, %v", i, claimed, err)
		}
		b.Key += "b"
		if _, claimed, err := rows.Claim(t.Context(), b); err != nil || claimed == (i == 0) {
			t.Errorf("%d: claimed %v with another key, %v", i, claimed, err)
		}
		if i == 0 {
			b.Key = "a"
		}
	}
}

// A backup whose job is killed each time fails.
func TestJobIsKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Retry = time.Millisecond
	ws := w.home("one", "first")
	w.Exec(`UPDATE workspaces SET backup_interval_seconds = 0`)
	w.fake.SetJob(func(context.Context, runtime.JobSpec, string, io.Writer) int { return 137 })
	w.request(ws.ID)
	w.lead()
	w.await(ws.ID, "failed request")
	if why := fixture.Query[string](w, `SELECT error FROM home_backups`); why != "The backup was interrupted too often. the storage job was ended (exit code 137)" {
		t.Error(why)
	}
}

// A job that takes too long fails, before what it refers to can be removed.
func TestJobTakesTooLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Within = 100 * time.Millisecond
	ws := w.home("one", "first")
	w.setBefore(func(ctx context.Context, _ runtime.JobSpec) { <-ctx.Done() })
	w.lead()
	w.await(ws.ID, "failed schedule")
	if why := fixture.Query[string](w, `SELECT error FROM home_backups`); why != "The backup took too long." {
		t.Error(why)
	}
}
