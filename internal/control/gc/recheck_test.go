package gc_test

import (
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	"codehub/internal/archive"
	"codehub/internal/control/gc"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// resting creates workspaces that rest in ARCHIVED, and returns their archives.
func (w *world) resting(n int) (ids []workspace.ID, keys []string) {
	w.Helper()
	for i := range n {
		id := w.workspace("resting" + string(rune('a'+i)))
		keys = append(keys, w.archive(id, "home of "+string(id)))
		w.conditions(id, keys[i], true)
		ids = append(ids, id)
	}
	return ids, keys
}

// conditions records an observation of an archive.
func (w *world) conditions(id workspace.ID, key string, ready bool) {
	w.Helper()
	status, reason, phase, lost := "True", "Ready", "ARCHIVED", any(nil)
	if !ready {
		status, reason, phase, lost = "False", "ArchiveMissing", "ERROR", "DataLost"
	}
	b, err := json.Marshal(map[string]any{
		"infra.container_ready": map[string]string{"status": "False", "reason": "NoContainer"},
		"storage.volume_ready":  map[string]string{"status": "False", "reason": "NoVolume"},
		"storage.archive_ready": map[string]string{"status": status, "reason": reason, "message": key},
	})
	check(w, err)
	w.Exec(`UPDATE workspaces SET conditions = $2, phase = $3, error_reason = $4, desired_state = 'ARCHIVED' WHERE id = $1`, id, b, phase, lost)
}

// rechecks lists the workspaces with a request to observe their archive again.
func (w *world) rechecks() []workspace.ID {
	w.Helper()
	return fixture.Query[[]workspace.ID](w, `SELECT COALESCE(array_agg(id ORDER BY id), '{}') FROM workspaces
		WHERE recover_requested_at IS NOT NULL AND recover_action = '`+workspace.RecoverAfresh+`'`)
}

func (w *world) wantRechecks(what string, want ...workspace.ID) {
	w.Helper()
	got := w.rechecks()
	if len(got) != len(want) || len(got) == 1 && got[0] != want[0] {
		w.Errorf("%s: to be observed again are %v, want %v", what, got, want)
	}
	w.Exec(`UPDATE workspaces SET recover_requested_at = NULL, recover_action = NULL`)
}

// take removes an object and returns its content.
func (w *world) take(key string) []byte {
	w.Helper()
	r, err := w.store.Store.Get(w.Context(), key, 0)
	check(w, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	check(w, err)
	check(w, w.store.Store.Delete(w.Context(), key))
	return b
}

func TestMissingArchiveIsRechecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	ids, keys := w.resting(6)
	w.collect(gc.Options{})
	w.wantRechecks("all archives are there")

	home := w.take(keys[2])
	w.collect(gc.Options{DryRun: true})
	w.wantRechecks("dry run")
	r := w.collect(gc.Options{})
	wantItem(t, r, keys[2], gc.Missing, "current")
	w.wantRechecks("home.tar.zst is missing", ids[2])

	w.putObject(keys[2], home)
	w.collect(gc.Options{})
	w.wantRechecks("it is back, and nobody saw it missing")
	meta := w.take(archive.MetaKey(keys[2]))
	w.collect(gc.Options{})
	w.wantRechecks("the .meta is missing", ids[2])
	w.putObject(archive.MetaKey(keys[2]), meta)
	w.putObject(keys[2], home[:len(home)-1])
	w.collect(gc.Options{})
	w.wantRechecks("the object is truncated", ids[2])

	// After the controller has recorded it as missing, nothing is requested until it is back.
	w.conditions(ids[2], keys[2], false)
	w.collect(gc.Options{})
	w.wantRechecks("it is known to be missing")
	w.putObject(keys[2], home)
	w.collect(gc.Options{})
	w.wantRechecks("it is back", ids[2])
}

// An archive that a restore found damaged is read again in each pass, and counts as back once its
// content is good.
func TestDamagedArchiveIsRechecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	ids, keys := w.resting(1)
	w.Exec(`UPDATE workspaces SET phase = 'ERROR', error_reason = 'ArchiveCorrupted', home_ctx = '{"state": "filling", "claim": "c"}', desired_state = 'RUNNING' WHERE id = $1`, ids[0])
	good := w.take(keys[0])
	bad := slices.Clone(good)
	bad[len(bad)/2] ^= 1
	w.putObject(keys[0], bad)
	w.collect(gc.Options{})
	w.wantRechecks("it is still damaged")
	w.putObject(keys[0], good)
	w.collect(gc.Options{})
	w.wantRechecks("it is good again", ids[0])
	if got := fixture.Query[string](w, `SELECT desired_state FROM workspaces WHERE id = $1`, ids[0]); got != "ARCHIVED" {
		t.Errorf("desired state %s", got)
	}
}

// A workspace with a live home does not depend on its archive.
func TestMissingArchiveOfLiveHomeIsNotRechecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	ids, keys := w.resting(1)
	w.live(ids[0])
	check(t, w.bucket.Store.Delete(t.Context(), keys[0]))
	wantItem(t, w.collect(gc.Options{}), keys[0], gc.Missing, "current")
	w.wantRechecks("the home is live")
}

// A listing without more than a fifth of the archives is not believed, and
// changes no workspace.
func TestManyMissingArchivesAreAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	_, keys := w.resting(6)
	for _, key := range keys[:2] {
		check(t, w.bucket.Store.Delete(t.Context(), key))
	}
	check(t, w.mark())
	r, err := w.tryCollect(gc.Options{})
	if err == nil || !strings.Contains(err.Error(), "2 of 6 archives are missing") {
		t.Errorf("Collect: %v", err)
	}
	if n, _ := r.Count(gc.Missing); n != 2 {
		t.Errorf("%d archives are reported as missing", n)
	}
	w.wantRechecks("a third is missing")
}

// Known losses do not hide another one.
func TestKnownLossesDoNotHideAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	ids, keys := w.resting(6)
	w.take(keys[0])
	w.conditions(ids[0], keys[0], false)
	w.take(keys[1])
	w.collect(gc.Options{})
	w.wantRechecks("a second archive is lost", ids[1])
}

// The listing shows only that the objects are there: an archive whose .meta is
// damaged is still lost.
func TestDamagedMetaIsNotRecheckedAsComplete(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	ids, keys := w.resting(1)
	w.conditions(ids[0], keys[0], false)
	w.putObject(archive.MetaKey(keys[0]), []byte("{}"))
	w.collect(gc.Options{})
	w.wantRechecks("the .meta is damaged")
}
