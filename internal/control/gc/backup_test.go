package gc_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"codehub/internal/control/gc"
	"codehub/internal/control/mark"
	"codehub/internal/postgres"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// backup copies the rows; restore replaces the present rows with the copy.
func (w *world) backup() (restore func()) {
	w.Helper()
	tables := []string{"archives", "workspaces", "gc_state"}
	for _, table := range tables {
		w.Exec(`DROP TABLE IF EXISTS backup_` + table)
		w.Exec(`CREATE TABLE backup_` + table + ` AS TABLE ` + table)
	}
	return func() {
		w.Helper()
		for _, table := range tables {
			columns := fixture.Query[string](w, `SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns
				WHERE table_name = $1 AND is_generated = 'NEVER'`, table)
			w.Exec(`DELETE FROM ` + table)
			w.Exec(`INSERT INTO ` + table + ` (` + columns + `) SELECT ` + columns + ` FROM backup_` + table)
		}
	}
}

// age makes a backup older by d.
func (w *world) age(d time.Duration) {
	w.Exec(`UPDATE backup_archives SET created_at = created_at - $1::interval, verified_at = verified_at - $1::interval,
		complete_at = complete_at - $1::interval, superseded_at = superseded_at - $1::interval, missing_since = missing_since - $1::interval,
		unprotected_since = unprotected_since - $1::interval, deleting_at = deleting_at - $1::interval`, d)
	w.Exec(`UPDATE backup_workspaces SET deleted_at = deleted_at - $1::interval`, d)
	w.Exec(`UPDATE backup_gc_state SET restored_at = restored_at - $1::interval, ran_at = ran_at - $1::interval`, d)
}

// wait makes the database and the backup older.
func (w *world) wait(d time.Duration) {
	w.pass(d)
	w.age(d)
}

// days collects and waits until no removal is pending.
func (w *world) days() {
	w.Helper()
	for range 4 {
		w.collect(gc.Options{})
		w.wait(12 * time.Hour)
	}
}

// A restored database removes no archive that is newer than its backup.
func TestRestoredDatabaseRemovesNoNewerArchive(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		archived, live, making, fresh := w.workspace("archived"), w.workspace("live"), w.workspace("making"), w.workspace("fresh")
		w.generations(archived, 3)
		w.generations(live, 2)
		w.live(live)
		halfway, _ := w.claim(making)
		w.collect(gc.Options{})
		restore := w.backup()

		// After the backup, each workspace's only copy becomes another archive.
		w.wait(delay)
		w.collect(gc.Options{})
		today := map[workspace.ID]string{}
		for _, id := range []workspace.ID{archived, live, fresh} {
			keys := w.generations(id, 3)
			today[id] = keys[2]
		}
		w.keep(w.upload(making, halfway, "making"))
		today[making] = halfway
		w.days()
		before := w.there()
		for id, key := range today {
			if !before[key] {
				t.Fatalf("%s has lost its archive before anything was restored", id)
			}
		}

		restore()
		// The controller observes that homes of the restored database do not exist.
		w.Exec(`UPDATE workspaces SET phase = 'ERROR', error_reason = 'DataLost', operation = 'NONE', op_id = NULL WHERE home_ctx ->> 'state' = 'live'`)
		w.restored()
		w.wait(time.Hour)
		w.days()
		for id, key := range today {
			if !w.there()[key] {
				t.Errorf("%s has lost the archive of today", id)
			}
			list, _, err := w.DB.Archives(t.Context(), w.user, id, postgres.Page{})
			check(t, err)
			if len(list) == 0 || list[0].Key != key {
				t.Errorf("what %s has today is not offered first: %+v", id, list)
			}
		}
		// Workspaces can recover from these archives, which are then collected like others.
		id := archived
		w.Exec(`UPDATE workspaces SET archive_key = $2, phase = 'ARCHIVED' WHERE id = $1`, id, today[id])
		keys := w.generations(id, 2)
		w.days()
		there := w.there()
		if there[today[id]] || !there[keys[0]] || !there[keys[1]] {
			t.Error("what was found and then replaced twice is still there")
		}
	})
}

// After a restore an undone deletion applies again: its grace starts over, and
// if the workspace was archived since, nothing is removed.
func TestRestoredDeletionWaitsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	quiet, busy := w.workspace("quiet"), w.workspace("busy")
	quietKey := w.archive(quiet, "quiet")
	w.archive(busy, "busy")
	w.collect(gc.Options{})
	w.delete(quiet)
	w.delete(busy)
	restore := w.backup()
	for _, id := range []workspace.ID{quiet, busy} {
		_, err := w.DB.UndeleteWorkspace(t.Context(), w.user, id)
		check(t, err)
	}
	w.wait(delay)
	busyKeys := w.generations(busy, 2)
	w.days()
	restore()

	w.restored()
	r := w.collect(gc.Options{})
	wantItem(t, r, quietKey, gc.Keep, "can be undone until")
	_, err := w.DB.UndeleteWorkspace(t.Context(), w.user, quiet)
	check(t, err)
	w.days()
	w.wantThere(append(busyKeys, quietKey)...)
	r = w.collect(gc.Options{})
	wantItem(t, r, busyKeys[1], gc.Keep, "from a backup")
}

// Two installations in one bucket do not see each other.
func TestInstallationsShareBucket(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		other := newWorld(t, w.store.Store)
		keys, theirs := w.generations(w.workspace("one"), 3), other.generations(other.workspace("one"), 3)
		for range 3 {
			for _, x := range []*world{w, other} {
				for _, i := range x.collect(gc.Options{}).Items {
					if !strings.HasPrefix(i.Key, x.bucket.Installation) {
						t.Errorf("%s collects %s", x.bucket.Installation, i.Key)
					}
				}
			}
			w.pass(delay)
		}
		w.wantThere(keys[1:]...)
		other.wantThere(theirs...)
		// Even if a row names an archive of the other installation.
		id := w.workspace("two")
		w.Exec(`INSERT INTO archives (key, workspace_id, archive_op_id, verified_at, created_at, unprotected_since)
			VALUES ($1, $2, $3, now() - interval '9 h', now() - interval '9 h', now() - interval '9 h')`, theirs[0], id, unknownOp)
		w.collect(gc.Options{})
		w.Exec(`UPDATE workspaces SET deleted_at = now() - interval '9 h', home_ctx = '{"state": "absent"}', archive_key = $2 WHERE id = $1`, id, theirs[0])
		w.collect(gc.Options{})
		other.wantThere(theirs...)
		if fixture.Query[bool](w, `SELECT archive_key IS NOT NULL FROM workspaces WHERE id = $1`, id) {
			t.Error("the row still holds what it cannot remove")
		}
	})
}

// A command removes no more than the server would, and nothing unless the marks show that
// the bucket belongs to the database.
func TestCommandUsesServerSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.set.Keep = 2
	id := w.workspace("one")
	keys := w.generations(id, 5)
	w.collect(gc.Options{})
	w.pass(delay)
	cfg := w.config()
	cfg.Server, cfg.Settings = false, gc.Settings{}
	r, err := gc.Collect(t.Context(), cfg, w.session, gc.Options{DryRun: true})
	check(t, err)
	for i, want := range []gc.Verdict{gc.Remove, gc.Remove, gc.Keep, gc.Keep, gc.Keep} {
		wantItem(t, r, keys[i], want, "")
	}
	w.wantThere(keys...)
	if _, err = gc.Collect(t.Context(), cfg, w.session, gc.Options{}); err != nil {
		t.Fatal(err)
	}
	w.wantThere(keys[2:]...)
	if n := fixture.Query[int](w, `SELECT keep FROM gc_state`); n != 2 {
		t.Errorf("it has set CODEHUB_ARCHIVE_KEEP to %d", n)
	}
	w.collect(gc.Options{}) // the server's settings still apply
	w.collect(gc.Options{})

	w.Exec(`UPDATE gc_state SET run = gen_random_uuid()`)
	if _, err = gc.Collect(t.Context(), cfg, w.session, gc.Options{}); !errors.Is(err, gc.ErrRestored) {
		t.Error(err)
	}
	if r, err = gc.Collect(t.Context(), cfg, w.session, gc.Options{DryRun: true}); err != nil || !r.Restored {
		t.Errorf("%v, %+v", err, r)
	}
	w.putObject(mark.Key(w.bucket.Installation), []byte("{}"))
	if _, err = gc.Collect(t.Context(), cfg, w.session, gc.Options{}); !errors.Is(err, gc.ErrRestored) {
		t.Errorf("a mark that cannot be read was taken for ours: %v", err)
	}
}

// Interrupted uploads are swept; running ones are not, however long they take.
func TestCollectSweepsInterruptedUploads(t *testing.T) {
	t.Parallel()
	s := fixture.NewS3(t)
	w := newWorld(t, s)
	w.set.Delay = 0 // the age of an upload is by the bucket's clock
	id, other := w.workspace("one"), w.workspace("other")
	broken, _ := w.claim(id)
	w.cancel(id)
	making, _ := w.claim(other)
	p := s.(store.Presigner)
	for _, key := range []string{broken, making} {
		_, err := p.PresignUpload(t.Context(), key, 1<<30, time.Hour)
		check(t, err)
	}
	harness.Eventually(t, "the interrupted upload is aborted", func() bool {
		r := w.collect(gc.Options{}) // the bucket's times are in seconds
		if r.Aborted > 1 {
			t.Fatalf("%d aborted", r.Aborted)
		}
		return r.Aborted == 1
	})
	if r := w.collect(gc.Options{}); r.Aborted != 0 {
		t.Errorf("%d aborted", r.Aborted)
	}
	w.cancel(other)
	w.Exec(`UPDATE gc_state SET run = NULL, serial = 0`)
	w.restored()
	w.set.Delay = delay
	if r := w.collect(gc.Options{}); r.Aborted != 0 {
		t.Errorf("%d aborted after a restore", r.Aborted)
	}
	w.set.Delay = 0
	if r := w.collect(gc.Options{}); r.Aborted != 1 {
		t.Errorf("%d aborted", r.Aborted)
	}
}

// A backup that is older than the last archive is detected even without a
// collection in between. Archives from the lost time are kept, even if the
// owner continued with an older one.
func TestRestoreBetweenCollectionsKeepsArchives(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.set.Keep = 0
	check(t, w.mark()) // an installation that has never collected
	id := w.workspace("one")
	old := w.archive(id, "old")
	w.collect(gc.Options{})
	w.live(id)
	making, _ := w.claim(id)
	check(t, w.mark())
	restore := w.backup()
	w.keep(w.upload(id, making, "new"))
	check(t, w.mark())
	w.wait(time.Hour)
	restore()
	w.restored()
	// The controller observes that the home is missing, and the owner recovers before a collection.
	w.Exec(`UPDATE workspaces SET phase = 'ERROR', error_reason = 'DataLost', operation = 'NONE', op_id = NULL WHERE id = $1`, id)
	w.Exec(`UPDATE workspaces SET phase = 'ARCHIVED', error_reason = NULL, archive_key = $2 WHERE id = $1`, id, old)
	w.live(id)
	w.days()
	wantItem(t, w.collect(gc.Options{}), making, gc.Keep, "was restored")
	w.wantThere(old, making)
	list, _, err := w.DB.Archives(t.Context(), w.user, id, postgres.Page{})
	if err != nil || len(list) != 2 || list[0].Key != making {
		t.Errorf("%+v, %v", list, err)
	}
}
