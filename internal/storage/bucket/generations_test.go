package bucket

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/storagejob"
	"codehub/internal/testing/archivetest"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// backup runs a backup of a home and returns its job's result.
func (f *fixture) backup(tb testing.TB, row workspace.Workspace, g NewGeneration, home string) storagejob.Result {
	tb.Helper()
	var spec runtime.JobSpec
	check(tb, f.BackupJob(tb.Context(), row, g, &spec))
	result := f.run(tb.Context(), tb, spec, home)
	if result.Claim != g.Claim || result.Kind != "backup" {
		tb.Fatalf("the result is %+v", result)
	}
	return result
}

// A compacted backup has another manifest, from which jobs restore the same home and make the next backup.
func TestCompactedHomeBackup(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		ctx, home, row := t.Context(), t.TempDir(), newRow()
		check(t, os.WriteFile(filepath.Join(home, "changing"), randomBytes(900<<10), 0o600))
		check(t, os.WriteFile(filepath.Join(home, "lasting"), randomBytes(90<<10), 0o600))
		first, _ := f.backedUp(t, row, home, 1000, "")
		check(t, os.Remove(filepath.Join(home, "changing")))
		second, _ := f.backedUp(t, row, home, 2000, first.ArchiveKey)
		m, get, err := f.Generation(ctx, second.ArchiveKey)
		check(t, err)
		var usage archive.Usage
		check(t, usage.Add(m))
		c := usage.Compact(1 << 30)
		key := RewrittenKey(second.ArchiveKey)
		check(t, c.Store(ctx, archive.Generation(path.Base(key)), get, func(ctx context.Context, name string, content []byte) error {
			return f.PutHomeBackup(ctx, path.Dir(key)+"/"+name, content)
		}))
		rewritten, content, err := c.Rewrite(m)
		check(t, err)
		check(t, f.PutHomeBackup(ctx, key, content))
		for name := range m.Packs() {
			check(t, f.DeleteHomeBackup(ctx, path.Dir(key)+"/"+name))
		}
		if k := ParseKey(key); k.Kind != Manifest || k.OpID != ParseKey(second.ArchiveKey).OpID || workspace.BackupOfKey(key) != k.OpID {
			t.Errorf("%s is %+v, of the backup %q", key, k, workspace.BackupOfKey(key))
		}
		if again := RewrittenKey(key); again == key || ParseKey(again) != ParseKey(key) || len(again) != len(key) {
			t.Errorf("the key after %s is %s", key, again)
		}
		second.ArchiveKey, second.ArchiveDigest, second.ArchiveSize = key, rewritten.Digest(), rewritten.Size()
		if a, err := f.State(ctx, second); a != lifecycle.ArchivePresent || err != nil {
			t.Errorf("State: %v, %v", a, err)
		}
		if result := f.drill(t, second); result.Error != nil {
			t.Errorf("the drill ended with %+v", result.Error)
		}
		if _, made := f.backedUp(t, row, home, 3000, key); !made.Unchanged {
			t.Errorf("the next backup is %+v", made)
		}
		if err := f.PutHomeBackup(ctx, newID()+key[strings.Index(key, "/"):], nil); err == nil {
			t.Error("an object of another installation is stored")
		}
	})
}

// backedUp returns the row of a workspace that is to be restored from a backup of a home.
func (f *fixture) backedUp(tb testing.TB, row workspace.Workspace, home string, at int64, former string) (workspace.Workspace, *storagejob.Made) {
	tb.Helper()
	g := NewGeneration{Claim: newID(), Manifest: f.ManifestKey(row.ID, time.Unix(at, 0), newID()), Former: former, SkipUnchanged: true}
	result := f.backup(tb, row, g, home)
	if result.Error != nil || result.Made == nil {
		tb.Fatalf("the job ended with %+v %+v", result, result.Error)
	}
	row.ArchiveKey, row.ArchiveDigest, row.ArchiveSize = g.Manifest, result.Made.Digest, result.Made.Size
	return row, result.Made
}

func (f *fixture) drill(tb testing.TB, row workspace.Workspace) storagejob.Result {
	tb.Helper()
	var spec runtime.JobSpec
	a := workspace.Archive{Key: row.ArchiveKey, WorkspaceID: row.ID, Digest: row.ArchiveDigest, Size: row.ArchiveSize}
	check(tb, f.DrillJob(tb.Context(), a, "a-drill", &spec))
	return f.run(tb.Context(), tb, spec, tb.TempDir())
}

// Homes are backed up, restored into another workspace, and drilled by jobs that have only what the server
// gives them.
func TestHomeBackups(t *testing.T) {
	onAll(t, func(t *testing.T, f *fixture) {
		ctx, home, row := t.Context(), t.TempDir(), newRow()
		archivetest.Corpus(t, home)
		check(t, os.WriteFile(filepath.Join(home, "large"), randomBytes(5<<20), 0o600))
		before := archivetest.Snapshot(t, home)
		first, made := f.backedUp(t, row, home, 1000, "")
		if made.Unchanged || made.Entries != int64(len(before)) || made.Added == 0 || made.Modified+made.Removed+made.Problems+made.Changed != 0 || made.Stored < 5<<20 {
			t.Errorf("the first backup is %+v", made)
		}
		if row, made := f.backedUp(t, row, home, 2000, first.ArchiveKey); !made.Unchanged || made.Stored+made.Added+made.Modified+made.Removed != 0 || made.Digest != first.ArchiveDigest || made.Size != first.ArchiveSize {
			t.Errorf("the backup of an unchanged home is %+v", made)
		} else if a, err := f.State(ctx, row); a != lifecycle.ArchiveMissing {
			t.Errorf("it has stored a manifest: %v, %v", a, err)
		}
		check(t, os.WriteFile(filepath.Join(home, "more"), []byte("more"), 0o600))
		check(t, os.WriteFile(filepath.Join(home, "large"), randomBytes(3<<20), 0o600))
		second, made := f.backedUp(t, row, home, 3000, first.ArchiveKey)
		if made.Added != 1 || made.Modified != 1 || made.Removed != 0 || made.Stored > 4<<20 {
			t.Errorf("the second backup is %+v", made)
		}

		list, err := f.HomeBackups(ctx, row.ID)
		check(t, err)
		manifests, packs := 0, 0
		for _, o := range list {
			if o.Parsed.Workspace != string(row.ID) {
				t.Errorf("%s is %+v", o.Key, o.Parsed)
			}
			switch o.Parsed.Kind {
			case Manifest:
				manifests++
			case Pack:
				packs++
			}
		}
		if manifests != 2 || packs < 2 || len(list) != manifests+packs {
			t.Errorf("stored are %d manifests and %d packs: %v", manifests, packs, list)
		}
		all, err := f.List(ctx)
		if all = slices.DeleteFunc(all, func(o Object) bool { return o.Parsed.Kind == WorkspaceKey }); err != nil || len(all) != 0 {
			t.Errorf("List: %v, %v", all, err)
		}

		for _, c := range []struct {
			row  workspace.Workspace
			want map[string]archivetest.State
		}{{first, before}, {second, archivetest.Snapshot(t, home)}} {
			fork := c.row
			fork.ID, fork.OpID = workspace.ID(newID()), newID()
			if a, err := f.State(ctx, fork); a != lifecycle.ArchivePresent || err != nil {
				t.Errorf("State: %v, %v", a, err)
			}
			restored := t.TempDir()
			check(t, os.WriteFile(filepath.Join(restored, "remains"), nil, 0o600))
			meta, err := f.Meta(ctx, fork.ArchiveKey)
			check(t, err)
			var spec runtime.JobSpec
			check(t, f.RestoreJob(ctx, fork, meta, &spec))
			result := f.run(ctx, t, spec, restored)
			if result.Error != nil || result.Claim != fork.OpID || result.Kind != "restore" || result.Stats.SHA256 != fork.ArchiveDigest ||
				result.Stats.SHA256 != meta.SHA256 || result.Stats.Entries != meta.Entries || result.Stats.Bytes != meta.Bytes {
				t.Fatalf("the restore ended with %+v %+v", result, result.Error)
			}
			if diff := archivetest.Diff(c.want, archivetest.Snapshot(t, restored)); diff != "" {
				t.Errorf("the restored home differs:\n%s", diff)
			}
		}

		files, err := f.Files(ctx, second.ArchiveKey, second.ArchiveSize)
		check(t, err)
		r, _, err := files.Open(ctx, "more")
		check(t, err)
		if b, err := io.ReadAll(r); err != nil || string(b) != "more" {
			t.Errorf("read %q, %v", b, err)
		}
		check(t, r.Close())
		if entries, _, err := files.List(ctx, ".", "", 10_000, 1<<20); err != nil || len(entries) < 10 {
			t.Errorf("List: %d entries, %v", len(entries), err)
		}
	})
}

// A drill passes on a good backup, and names a damaged or missing pack.
func TestDrill(t *testing.T) {
	onAll(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		row, _ := f.backedUp(t, newRow(), homeOf(t, 2<<20), 1000, "")
		if result := f.drill(t, row); result.Error != nil || result.Kind != "drill" || result.Stats.SHA256 != row.ArchiveDigest || result.Stats.Files != 1 {
			t.Fatalf("the drill ended with %+v %+v", result, result.Error)
		}
		list, err := f.HomeBackups(ctx, row.ID)
		check(t, err)
		var pack string
		for _, o := range list {
			if o.Parsed.Kind == Pack {
				pack = o.Key
			}
		}
		r, err := f.Store.Get(ctx, pack, 0)
		check(t, err)
		content, err := io.ReadAll(r)
		check(t, err)
		check(t, r.Close())
		damaged := func(what string) {
			t.Helper()
			result := f.drill(t, row)
			if result.Error == nil || result.Error.Kind != storagejob.Corrupted || !strings.Contains(result.Error.Message, filepath.Base(pack)) {
				t.Errorf("%s: %+v", what, result.Error)
			}
		}
		flipped := bytes.Clone(content)
		flipped[len(content)/2] ^= 4
		f.put(t, pack, flipped)
		damaged("a flipped bit")
		f.put(t, pack, content[:len(content)/2])
		damaged("half of a pack")
		if a, err := f.State(ctx, row); a != lifecycle.ArchiveCorrupted || err != nil {
			t.Errorf("State: %v, %v", a, err)
		}
		check(t, f.DeleteHomeBackup(ctx, pack))
		damaged("a missing pack")
		if a, err := f.State(ctx, row); a != lifecycle.ArchiveCorrupted || err != nil {
			t.Errorf("State: %v, %v", a, err)
		}
		f.put(t, pack, content)
		row.ArchiveDigest = strings.Repeat("0", 64)
		if a, err := f.State(ctx, row); a != lifecycle.ArchiveCorrupted || err != nil {
			t.Errorf("State with another digest: %v, %v", a, err)
		}
		check(t, f.DeleteHomeBackup(ctx, row.ArchiveKey))
		check(t, f.DeleteHomeBackup(ctx, row.ArchiveKey))
		if a, err := f.State(ctx, row); a != lifecycle.ArchiveMissing || err != nil {
			t.Errorf("State of a missing backup: %v, %v", a, err)
		}
	})
}

// A backup that adds more packs than requests were signed for says so, and succeeds with more.
func TestBackupNeedsMorePacks(t *testing.T) {
	t.Parallel()
	f, row := newS3(t), newRow()
	home := homeOf(t, 40<<20)
	g := NewGeneration{Claim: newID(), Manifest: f.ManifestKey(row.ID, time.Unix(1000, 0), newID()), Packs: 1}
	result := f.backup(t, row, g, home)
	if result.Error == nil || result.Error.Kind != storagejob.MorePacks {
		t.Fatalf("with one pack: %+v", result.Error)
	}
	g.Manifest, g.Packs = f.ManifestKey(row.ID, time.Unix(1001, 0), newID()), 8
	if result := f.backup(t, row, g, home); result.Error != nil || result.Made.Stored < 40<<20 {
		t.Errorf("with eight packs: %+v, %+v", result.Made, result.Error)
	}
	g.Packs = storagejob.MaxPacks + 1
	if err := f.BackupJob(t.Context(), row, g, &runtime.JobSpec{}); err == nil || !strings.Contains(err.Error(), "30001") {
		t.Errorf("too many packs: %v", err)
	}
}

func TestBackupsOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	f, row := newFolder(t), newRow()
	key := f.ManifestKey(row.ID, time.Unix(1000, 0), newID())
	foreign := strings.Replace(key, installation, another, 1)
	for what, err := range map[string]error{
		"installation": f.BackupJob(t.Context(), row, NewGeneration{Claim: "c", Manifest: foreign}, &runtime.JobSpec{}),
		"workspace":    f.BackupJob(t.Context(), newRow(), NewGeneration{Claim: "c", Manifest: key}, &runtime.JobSpec{}),
		"former":       f.BackupJob(t.Context(), row, NewGeneration{Claim: "c", Manifest: key, Former: f.ManifestKey(newRow().ID, time.Unix(1, 0), newID())}, &runtime.JobSpec{}),
		"no key":       f.BackupJob(t.Context(), row, NewGeneration{Claim: "c"}, &runtime.JobSpec{}),
		"archive":      f.DeleteHomeBackup(t.Context(), f.Key(row.ID, newID())),
		"delete":       f.DeleteHomeBackup(t.Context(), foreign),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	for key, kind := range map[string]Kind{
		key: Manifest, foreign: Manifest,
		f.homeBackups(row.ID) + archive.PackName("20260101T000000Z-x", 7):             Pack,
		f.homeBackups(row.ID) + "20260101T000000Z-not-an-id.manifest.zst":             Other,
		f.homeBackups(row.ID) + "monday-" + newID() + ".manifest.zst":                 Other,
		f.homeBackups(row.ID) + "packs/deeper/20260101T000000Z-x-00001.zst":           Other,
		f.homeBackups("not-an-id") + archive.PackName("20260101T000000Z-x", 7):        Other,
		f.Installation + "/backups/" + archive.ManifestName(time.Unix(1, 0), newID()): Other,
	} {
		if got := ParseKey(key).Kind; got != kind {
			t.Errorf("%s is of kind %d", key, got)
		}
	}
}

// A backup ends with its context, and a temporary file that it leaves is removed later.
func TestInterruptedBackup(t *testing.T) {
	t.Parallel()
	f, row := newFolder(t), newRow()
	g := NewGeneration{Claim: newID(), Manifest: f.ManifestKey(row.ID, time.Unix(1000, 0), newID())}
	var spec runtime.JobSpec
	check(t, f.BackupJob(t.Context(), row, g, &spec))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if result := f.run(ctx, t, spec, homeOf(t, 1<<20)); result.Error == nil || result.Error.Kind != storagejob.Stopped {
		t.Errorf("the job ended with %+v", result)
	}
	temp := filepath.Join(f.Folder, filepath.FromSlash(f.homeBackups(row.ID)), "packs/.put-X-20260101T000000Z-x-00000.zst")
	check(t, os.MkdirAll(filepath.Dir(temp), 0o700))
	check(t, os.WriteFile(temp, []byte("part"), 0o600))
	n, err := f.AbortIncomplete(t.Context(), 0, func(string) bool { return true })
	if _, failed := os.Stat(temp); err != nil || n != 1 || failed == nil {
		t.Errorf("removed %d: %v; stat: %v", n, err, failed)
	}
}

// While the bucket is not responding a backup fails as unavailable, without a manifest.
func TestBackupDuringOutage(t *testing.T) {
	t.Parallel()
	f, row := newS3(t), newRow()
	g := NewGeneration{Claim: newID(), Manifest: f.ManifestKey(row.ID, time.Unix(1000, 0), newID())}
	var spec runtime.JobSpec
	check(t, f.BackupJob(t.Context(), row, g, &spec))
	f.proxy.on(func(w http.ResponseWriter, r *http.Request) bool {
		return r.Method == http.MethodPut && answer(w, r, http.StatusServiceUnavailable, "SlowDown")
	})
	if result := f.run(t.Context(), t, spec, homeOf(t, 1<<20)); result.Error == nil || result.Error.Kind != storagejob.Unavailable || result.Made != nil {
		t.Errorf("the job ended with %+v %+v", result, result.Error)
	}
	f.proxy.on(nil)
	if list, err := f.HomeBackups(t.Context(), row.ID); err != nil || len(list) != 0 {
		t.Errorf("stored are %v, %v", list, err)
	}
}
