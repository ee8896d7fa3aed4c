package gc_test

import (
	"crypto/rand"
	"errors"
	"slices"
	"testing"
	"time"

	"codehub/internal/archive"
	"codehub/internal/control/gc"
	"codehub/internal/postgres"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// onBoth runs a test on a folder and on an S3 server.
func onBoth(t *testing.T, f func(t *testing.T, w *world)) {
	fixture.EachStore(t, func(t *testing.T, s store.Store) { f(t, newWorld(t, s)) })
}

// Replaced archives are removed after the delay, and nothing else is.
func TestCollectRemovesReplacedArchives(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		id := w.workspace("one")
		keys := w.generations(id, 4)
		r := w.collect(gc.Options{})
		for i, want := range []gc.Verdict{gc.Wait, gc.Wait, gc.Keep, gc.Keep} {
			wantItem(t, r, keys[i], want, "")
		}
		w.wantThere(keys...)
		w.pass(delay - time.Minute)
		w.collect(gc.Options{})
		w.wantThere(keys...)
		w.pass(time.Minute)
		r = w.collect(gc.Options{DryRun: true})
		wantItem(t, r, keys[0], gc.Remove, "replaced")
		w.wantThere(keys...)
		r = w.collect(gc.Options{})
		if n, bytes := r.Removed(); n != 2 || bytes == 0 || r.Failed != 0 {
			t.Errorf("%d archives of %d bytes removed, %d failed", n, bytes, r.Failed)
		}
		w.wantThere(keys[2:]...)
		// Removed archives are not reported again, and their records are removed later.
		r = w.collect(gc.Options{})
		if n, _ := r.Removed(); n != 0 || len(r.Items) != 2 {
			t.Errorf("%+v", r.Items)
		}
		w.collect(gc.Options{})
		w.pass(31 * 24 * time.Hour)
		w.collect(gc.Options{})
		if n := fixture.Query[int](w, `SELECT count(*) FROM archives`); n != 2 {
			t.Errorf("%d archives are on record", n)
		}
	})
}

func TestKeepSettingKeepsGenerations(t *testing.T) {
	t.Parallel()
	for keep := range 4 {
		w := newWorld(t, nil)
		w.set.Keep = keep
		keys := w.generations(w.workspace("one"), 3)
		w.collect(gc.Options{})
		w.pass(delay)
		w.collect(gc.Options{})
		w.wantThere(keys[max(0, 2-keep):]...)
	}
}

// Archives that a workspace needs are kept in every state.
func TestCollectKeepsUsedArchives(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.set.Keep = 0
	for name, c := range map[string]struct {
		do   func(id workspace.ID, keys []string) // two generations
		want []gc.Verdict
		why  string // reason for the first archive
	}{
		"at rest":        {nil, []gc.Verdict{gc.Wait, gc.Keep}, "replaced"},
		"restored":       {func(id workspace.ID, _ []string) { w.live(id) }, []gc.Verdict{gc.Wait, gc.Keep}, "replaced"},
		"archived again": {func(id workspace.ID, _ []string) { w.live(id); w.claim(id) }, []gc.Verdict{gc.Wait, gc.Keep}, "replaced"},
		"in ERROR":       {func(id workspace.ID, _ []string) { w.Exec(`UPDATE workspaces SET phase = 'ERROR' WHERE id = $1`, id) }, []gc.Verdict{gc.Keep, gc.Keep}, "ERROR"},
		"an error on record": {func(id workspace.ID, _ []string) {
			w.Exec(`UPDATE workspaces SET error_reason = 'Timeout' WHERE id = $1`, id)
		}, []gc.Verdict{gc.Keep, gc.Keep}, "ERROR"},
		"to be tried again": {func(id workspace.ID, _ []string) {
			w.Exec(`UPDATE workspaces SET error_reason = 'ActionFailed' WHERE id = $1`, id)
		}, []gc.Verdict{gc.Wait, gc.Keep}, "replaced"},
		"deleted": {func(id workspace.ID, _ []string) { w.delete(id) }, []gc.Verdict{gc.Keep, gc.Keep}, "can be undone until"},
		"to be recovered": {func(id workspace.ID, keys []string) {
			w.Exec(`UPDATE workspaces SET phase = 'ERROR', error_reason = 'DataLost' WHERE id = $1`, id)
			_, err := w.DB.RequestRecoverArchive(t.Context(), w.user, id, opID(keys[0]))
			check(t, err)
			// Even if the error was cleared before the next collection.
			w.Exec(`UPDATE workspaces SET phase = 'ARCHIVED', error_reason = NULL WHERE id = $1`, id)
		}, []gc.Verdict{gc.Keep, gc.Keep}, "chosen for a recovery"},
		"recovered": {func(id workspace.ID, keys []string) {
			w.Exec(`UPDATE workspaces SET archive_key = $2 WHERE id = $1`, id, keys[0])
		}, []gc.Verdict{gc.Keep, gc.Wait}, "current"},
		"started empty": {func(id workspace.ID, keys []string) {
			w.Exec(`UPDATE workspaces SET archive_key = NULL WHERE id = $1`, id)
		}, []gc.Verdict{gc.Wait, gc.Keep}, "replaced"},
		"the current one is gone": {func(id workspace.ID, keys []string) {
			check(t, w.bucket.Delete(t.Context(), keys[1]))
		}, []gc.Verdict{gc.Keep, gc.Missing}, "missing from the bucket"},
		"its object is gone": {func(id workspace.ID, keys []string) {
			check(t, w.store.Store.Delete(t.Context(), keys[1]))
		}, []gc.Verdict{gc.Keep, gc.Missing}, "missing from the bucket"},
		"its .meta is gone": {func(id workspace.ID, keys []string) {
			check(t, w.store.Store.Delete(t.Context(), archive.MetaKey(keys[1])))
		}, []gc.Verdict{gc.Keep, gc.Missing}, "missing from the bucket"},
		"the earlier one is gone": {func(id workspace.ID, keys []string) {
			check(t, w.bucket.Delete(t.Context(), keys[0]))
		}, []gc.Verdict{gc.Missing, gc.Keep}, "earlier"},
	} {
		id := w.workspace(name)
		keys := w.generations(id, 2)
		if c.do != nil {
			c.do(id, keys)
		}
		r := w.collect(gc.Options{})
		for i, want := range c.want {
			why := ""
			if i == 0 {
				why = c.why
			}
			t.Run(name, func(t *testing.T) { wantItem(t, r, keys[i], want, why) })
		}
		// The result for one archive does not depend on the others.
		w.Exec(`DELETE FROM workspaces WHERE id = $1`, id)
		w.Exec(`DELETE FROM archives WHERE workspace_id = $1`, id)
		for k := range w.there() {
			check(t, w.bucket.Delete(t.Context(), k))
		}
	}
}

// Uploads of claims that end in different ways.
func TestCollectUnfinishedUploads(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		id := w.workspace("one")
		current := w.archive(id, "current")
		w.live(id)
		half, _ := w.claim(id)
		w.putHome(id, half, "half")
		w.cancel(id)
		whole, _ := w.claim(id)
		w.upload(id, whole, "whole")
		w.cancel(id)
		nothing, _ := w.claim(id)
		w.cancel(id)
		making, _ := w.claim(id)
		w.putHome(id, making, "making")

		r := w.collect(gc.Options{})
		wantItem(t, r, half, gc.Wait, "unfinished")
		wantItem(t, r, whole, gc.Wait, "ended without it")
		wantItem(t, r, nothing, gc.Wait, "unfinished")
		wantItem(t, r, making, gc.Keep, "being created")
		// A workspace can recover from it until it is removed.
		list, _, err := w.DB.Archives(t.Context(), w.user, id, postgres.Page{})
		check(t, err)
		if len(list) != 2 || list[0].Key != whole || list[0].Digest == "" || list[0].Size == 0 || list[0].Entries != 2 || list[1].Key != current {
			t.Errorf("%+v", list)
		}
		w.pass(delay)
		r = w.collect(gc.Options{})
		wantItem(t, r, half, gc.Remove, "")
		wantItem(t, r, making, gc.Keep, "being created")
		w.wantThere(current)
		// An abandoned job completes its upload: the archive is recognized.
		w.upload(id, half, "half")
		r = w.collect(gc.Options{})
		wantItem(t, r, half, gc.Remove, "removal in progress")
		w.wantThere(current)
		// An archive that is being made can still be completed.
		stored := w.upload(id, making, "making")
		w.keep(stored)
		w.collect(gc.Options{})
		w.pass(delay)
		w.collect(gc.Options{})
		w.wantThere(current, making)
	})
}

func (w *world) delete(id workspace.ID) {
	w.Helper()
	_, err := w.DB.DeleteWorkspace(w.Context(), w.user, id, false)
	check(w, err)
	w.Exec(`UPDATE workspaces SET phase = 'DELETING' WHERE id = $1`, id)
}

// The archives of a deleted workspace are removed together after its grace,
// when its home is gone. Then the workspace is released.
func TestCollectArchivesOfDeletedWorkspace(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		archived, live, other := w.workspace("archived"), w.workspace("live"), w.workspace("other")
		kept := w.generations(other, 1)
		w.generations(archived, 3)
		second := w.generations(live, 2)
		w.live(live)
		unfinished, _ := w.claim(live)
		w.putHome(live, unfinished, "half")
		w.cancel(live)
		keys := map[workspace.ID]string{}
		for _, id := range []workspace.ID{archived, live, other} {
			keys[id] = w.bucket.Installation + "/" + string(id) + "/keys/age1test.age"
			w.putObject(keys[id], []byte("the key"))
		}
		wantKeys := func(ids ...workspace.ID) {
			t.Helper()
			for id, key := range keys {
				if _, err := w.store.Stat(w.Context(), key); (err == nil) != slices.Contains(ids, id) {
					t.Errorf("the key of %s: %v", id, err)
				}
			}
		}
		w.delete(archived)
		w.delete(live)
		w.collect(gc.Options{})
		w.pass(grace - time.Minute)
		w.collect(gc.Options{})
		if n := len(w.there()); n != 6 {
			t.Fatalf("%d archives are left", n)
		}
		w.pass(time.Minute)
		r := w.collect(gc.Options{})
		w.wantThere(append(second, kept...)...)
		wantItem(t, r, second[0], gc.Keep, "not removed yet")
		if r.Released != 1 || fixture.Query[bool](w, `SELECT archive_key IS NOT NULL FROM workspaces WHERE id = $1`, archived) {
			t.Errorf("%d released", r.Released)
		}
		// The controller has removed the other workspace's home.
		w.archived(live)
		r = w.collect(gc.Options{})
		w.wantThere(kept...)
		if r.Released != 1 {
			t.Errorf("%d released", r.Released)
		}
		wantKeys(archived, live, other)
		w.Exec(`UPDATE workspaces SET phase = 'DELETED' WHERE deleted_at IS NOT NULL`)
		backup := w.bucket.ManifestKey(live, time.Now(), unknownOp)
		w.putObject(backup, nil)
		r = w.collect(gc.Options{})
		if n, _ := r.Removed(); n != 0 || len(r.Items) != 1 {
			t.Errorf("%+v", r.Items)
		}
		wantKeys(live, other)
		check(t, w.bucket.DeleteHomeBackup(w.Context(), backup))
		w.collect(gc.Options{})
		wantKeys(other)
		// A late upload is recognized.
		w.upload(live, unfinished, "half")
		late := w.bucket.Key(live, unknownOp)
		w.upload(live, late, "late")
		w.pass(time.Hour)
		r = w.collect(gc.Options{})
		wantItem(t, r, unfinished, gc.Remove, "")
		// The archive is newer than the deletion, so it is kept.
		wantItem(t, r, late, gc.Found, "after its deletion")
	})
}

const unknownOp = "019a7c1e-3f00-7abc-8def-0123456789ab"

// Collecting chosen workspaces lists only their archives.
func TestCollectOnlyListsChosenWorkspaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	id, other := w.workspace("one"), w.workspace("other")
	w.generations(id, 2)
	kept := w.generations(other, 3)
	w.delete(id)
	w.pass(grace)
	c := postgres.NewCollector(w.session)
	due, err := c.DueDeletions(t.Context(), grace, nil, 10)
	check(t, err)
	if len(due) != 1 || due[0] != id {
		t.Fatalf("due are %v", due)
	}
	// Nothing is removed before the marks show that the bucket belongs to the database.
	if _, err := w.tryCollect(gc.Options{Only: due}); !errors.Is(err, gc.ErrRestored) {
		t.Fatal(err)
	}
	w.Exec(`UPDATE workspaces SET deleted_at = now() WHERE id = $1`, id)
	w.collect(gc.Options{})
	w.pass(grace)
	r := w.collect(gc.Options{Only: due})
	w.wantThere(kept...)
	if r.Released != 1 {
		t.Errorf("%+v", r)
	}
	if due, err = c.DueDeletions(t.Context(), grace, nil, 10); err != nil || len(due) != 0 {
		t.Errorf("due are %v, %v", due, err)
	}
}

// A deletion is due exactly if only archives are left by lifecycle's rule.
func TestDueDeletionsMatchRule(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	id := w.workspace("one")
	w.generations(id, 1)
	w.delete(id)
	w.pass(grace)
	c := postgres.NewCollector(w.session)
	for _, op := range workspace.Operations() {
		for _, home := range workspace.HomeStates() {
			w.Exec(`UPDATE workspaces SET operation = $2, op_id = CASE WHEN $2 <> 'NONE' THEN gen_random_uuid() END, home_ctx = jsonb_build_object('state', $3::text) WHERE id = $1`, id, op, home)
			due, err := c.DueDeletions(t.Context(), grace, nil, 10)
			check(t, err)
			if want := lifecycle.OnlyArchives(op, home); (len(due) == 1) != want {
				t.Errorf("%s, home %s: due %v, by the rule %v", op, home, due, want)
			}
		}
	}
}

// Objects that do not belong to this database are reported and kept.
func TestCollectReportsUnknownObjects(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		id := w.workspace("one")
		current := w.archive(id, "current")
		stranger := w.bucket.Key(workspace.ID(unknownOp), unknownOp)
		w.upload(workspace.ID(unknownOp), stranger, "stranger")
		half := w.bucket.Key(id, "019a7c1e-3f00-7abc-8def-000000000001")
		w.putHome(id, half, "half")
		meta := w.bucket.Key(id, "019a7c1e-3f00-7abc-8def-000000000002")
		m := w.putHome(id, meta, "meta")
		check(t, w.store.Store.Delete(t.Context(), meta))
		w.putMeta(meta, m)
		bad := w.bucket.Key(id, "019a7c1e-3f00-7abc-8def-000000000003")
		w.putHome(id, bad, "bad")
		w.putObject(archive.MetaKey(bad), []byte(`{"format": "none"}`))
		foreign := w.bucket.Key(id, "019a7c1e-3f00-7abc-8def-000000000004")
		w.putHome(id, foreign, "foreign")
		w.putMeta(foreign, m) // of another archive
		cut := w.bucket.Key(id, "019a7c1e-3f00-7abc-8def-000000000005")
		m = w.putHome(id, cut, "cut")
		m.Size++
		w.putMeta(cut, m)
		notes := w.bucket.Installation + "/notes.txt"
		w.putObject(notes, []byte("x"))
		beside := w.bucket.Installation + "/" + string(id) + "/" + opID(current) + "/home.tar.zst.sig"
		w.putObject(beside, []byte("x"))

		for range 3 {
			r := w.collect(gc.Options{})
			wantItem(t, r, stranger, gc.Unknown, "workspace not in the database")
			wantItem(t, r, half, gc.Unknown, "incomplete")
			wantItem(t, r, meta, gc.Unknown, "incomplete")
			wantItem(t, r, bad, gc.Unknown, ".meta")
			wantItem(t, r, foreign, gc.Unknown, ".meta")
			wantItem(t, r, cut, gc.Unknown, "bytes")
			wantItem(t, r, notes, gc.Unknown, "not an archive of codehub")
			wantItem(t, r, beside, gc.Unknown, "not an archive of codehub")
			w.pass(10 * delay)
		}
		if len(w.store.deleted) != 0 {
			t.Errorf("deleted %q", w.store.deleted)
		}
	})
}

func opID(key string) string { return key[len(key)-len("/home.tar.zst")-36:][:36] }

// If the listing or a .meta cannot be read completely, nothing is removed.
func TestCollectRemovesNothingOnBucketError(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	id := w.workspace("one")
	keys := w.generations(id, 4)
	w.collect(gc.Options{})
	w.pass(delay)
	marks := fixture.Query[int](w, `SELECT count(*) FROM archives WHERE deleting_at IS NOT NULL OR missing_since IS NOT NULL`)
	for n := 1; n <= 10; n++ {
		w.store.listFailsAt = n
		if r, err := w.tryCollect(gc.Options{}); !errors.Is(err, store.ErrUnavailable) || r != nil {
			t.Errorf("the listing fails at %d: %v", n, err)
		}
	}
	w.store.listFailsAt = 0
	found := w.bucket.Key(id, unknownOp)
	w.upload(id, found, "found")
	w.store.getFails = func(key string) bool { return key == archive.MetaKey(found) }
	if _, err := w.tryCollect(gc.Options{}); !errors.Is(err, store.ErrUnavailable) {
		t.Error(err)
	}
	w.store.getFails = nil
	w.wantThere(append(keys, found)...)
	if n := fixture.Query[int](w, `SELECT count(*) FROM archives WHERE deleting_at IS NOT NULL OR missing_since IS NOT NULL`); n != marks || n != 0 {
		t.Errorf("%d archives are marked", n)
	}

	// A removal that fails is retried; meanwhile the archive cannot be chosen for a recovery.
	w.store.deleteFails = func(key string) bool { return key == keys[0] }
	r := w.collect(gc.Options{})
	if r.Failed != 1 || item(t, r, keys[0]).Error == "" || item(t, r, keys[1]).Error != "" {
		t.Errorf("%+v", r.Items)
	}
	w.wantThere(keys[2], keys[3], found)
	w.Exec(`UPDATE workspaces SET phase = 'ERROR', error_reason = 'DataLost' WHERE id = $1`, id)
	if _, err := w.DB.RequestRecoverArchive(t.Context(), w.user, id, opID(keys[0])); workspace.CodeOf(err) != workspace.CodeArchiveNotFound {
		t.Error(err)
	}
	w.Exec(`UPDATE workspaces SET error_reason = NULL WHERE id = $1`, id)
	w.store.deleteFails = nil
	r = w.collect(gc.Options{})
	wantItem(t, r, keys[0], gc.Remove, "removal in progress")
	if n, _ := r.Removed(); n != 1 {
		t.Errorf("%+v", r.Items)
	}
}

// A bucket that refuses all deletes ends the collection.
func TestCollectEndsIfBucketRefusesDeletes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for range 8 {
		w.generations(w.workspace(rand.Text()), 3)
	}
	w.collect(gc.Options{})
	w.pass(delay)
	tries := 0
	w.store.deleteFails = func(string) bool { tries++; return true }
	r, err := w.tryCollect(gc.Options{})
	if !errors.Is(err, store.ErrUnavailable) || r == nil || r.Failed != tries || tries != 5 {
		t.Errorf("after %d tries: %v", tries, err)
	}
	w.store.deleteFails = nil
	w.collect(gc.Options{})
	if n := len(w.there()); n != 16 {
		t.Errorf("%d archives are left", n)
	}
}

// In a bucket of another installation, no archive counts as missing.
func TestCollectRefusesWrongBucket(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	keys := w.generations(w.workspace("one"), 3)
	w.collect(gc.Options{})
	w.pass(delay)
	right, _ := w.bucket, w.store
	empty := fixture.NewFolder(t)
	w.bucket, _ = openBucket(t, empty, right.Installation) // with a mark of this installation
	noticed := func() {
		t.Helper()
		if !fixture.Query[bool](w, `SELECT COALESCE(restored_at > now() - interval '1 minute', false) FROM gc_state`) {
			t.Error("the waits did not begin anew")
		}
	}
	w.collect(gc.Options{})
	noticed()
	w.pass(10 * delay)
	w.collect(gc.Options{})
	w.bucket = right
	w.wantThere(keys...)
	// With the right bucket again, no record was lost, and every wait starts over.
	r := w.collect(gc.Options{})
	noticed()
	w.wantThere(keys...)
	wantItem(t, r, keys[0], gc.Wait, "")
	wantItem(t, r, keys[2], gc.Keep, "current")
	w.pass(delay)
	w.collect(gc.Options{})
	w.wantThere(keys[1:]...)
}
