package bucket

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/store"
	"codehub/internal/testing/archivetest"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// A home is archived and restored unchanged, by jobs that have only what the server gives them.
func TestRoundTrip(t *testing.T) {
	onAll(t, func(t *testing.T, f *fixture) {
		home, restored := t.TempDir(), t.TempDir()
		archivetest.Corpus(t, home)
		check(t, os.WriteFile(filepath.Join(home, "several-parts"), randomBytes(20<<20), 0o600))
		before := archivetest.Snapshot(t, home)
		row := f.archived(t, home)
		if a, err := f.State(t.Context(), row); a != lifecycle.ArchivePresent || err != nil {
			t.Errorf("State: %v, %v", a, err)
		}
		meta, err := f.Meta(t.Context(), row.ArchiveKey)
		check(t, err)
		if meta.WorkspaceID != string(row.ID) || meta.WorkspaceName != row.Name || meta.Owner != "alice" || meta.CodehubVersion != "test" ||
			f.Key(row.ID, meta.ArchiveOpID) != row.ArchiveKey || meta.CreatedAt.IsZero() || meta.Skipped != archivetest.Skipped {
			t.Errorf("the .meta is %+v", meta)
		}
		result := f.run(t.Context(), t, f.restoreJob(t, row), restored)
		if result.Error != nil || result.Claim != row.OpID {
			t.Fatalf("the job ended with %+v %+v", result, result.Error)
		}
		if diff := archivetest.Diff(before, archivetest.Snapshot(t, restored)); diff != "" {
			t.Errorf("the restored home differs:\n%s", diff)
		}
	})
}

func TestPutEmpty(t *testing.T) {
	onAll(t, func(t *testing.T, f *fixture) {
		row := newRow()
		for range 2 { // steps may be repeated
			meta, err := f.PutEmpty(t.Context(), row, "alice")
			check(t, err)
			if meta.Entries != 0 || meta.ArchiveOpID != row.OpID {
				t.Errorf("the .meta is %+v", meta)
			}
		}
		row.ArchiveKey = f.Key(row.ID, row.OpID)
		if a, err := f.State(t.Context(), row); a != lifecycle.ArchivePresent || err != nil {
			t.Errorf("State: %v, %v", a, err)
		}
	})
}

// Each state of an archive is recognized.
func TestState(t *testing.T) {
	onAll(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		good := f.archived(t, homeOf(t, 10_000))
		object := func(row workspace.Workspace) []byte {
			r, err := f.Open(ctx, row.ArchiveKey, 0)
			check(t, err)
			defer r.Close()
			b := make([]byte, row.ArchiveSize)
			_, err = r.Read(b[:1])
			check(t, err)
			return b
		}
		for name, c := range map[string]struct {
			change func(t *testing.T, row *workspace.Workspace)
			want   lifecycle.Archive
		}{
			"present":             {func(*testing.T, *workspace.Workspace) {}, lifecycle.ArchivePresent},
			"row without figures": {func(_ *testing.T, row *workspace.Workspace) { row.ArchiveDigest, row.ArchiveSize = "", 0 }, lifecycle.ArchivePresent},
			"no .meta": {func(t *testing.T, row *workspace.Workspace) {
				check(t, f.Store.Delete(ctx, archive.MetaKey(row.ArchiveKey)))
			}, lifecycle.ArchiveMissing},
			"no object": {func(t *testing.T, row *workspace.Workspace) {
				check(t, f.Store.Delete(ctx, row.ArchiveKey))
			}, lifecycle.ArchiveMissing},
			"nothing": {func(t *testing.T, row *workspace.Workspace) { check(t, f.Delete(ctx, row.ArchiveKey)) }, lifecycle.ArchiveMissing},
			"truncated object": {func(t *testing.T, row *workspace.Workspace) {
				f.put(t, row.ArchiveKey, object(*row)[1:])
			}, lifecycle.ArchiveCorrupted},
			"another digest": {func(_ *testing.T, row *workspace.Workspace) {
				row.ArchiveDigest = strings.Repeat("0", 64)
			}, lifecycle.ArchiveCorrupted},
			"another size":  {func(_ *testing.T, row *workspace.Workspace) { row.ArchiveSize++ }, lifecycle.ArchiveCorrupted},
			".meta damaged": {func(t *testing.T, row *workspace.Workspace) { f.put(t, archive.MetaKey(row.ArchiveKey), []byte("{")) }, lifecycle.ArchiveCorrupted},
			".meta empty":   {func(t *testing.T, row *workspace.Workspace) { f.put(t, archive.MetaKey(row.ArchiveKey), nil) }, lifecycle.ArchiveCorrupted},
			".meta of another workspace": {func(t *testing.T, row *workspace.Workspace) {
				f.putMeta(t, row.ArchiveKey, func(m *archive.Meta) { m.WorkspaceID = newID() })
			}, lifecycle.ArchiveCorrupted},
			".meta of another operation": {func(t *testing.T, row *workspace.Workspace) {
				f.putMeta(t, row.ArchiveKey, func(m *archive.Meta) { m.ArchiveOpID = newID() })
			}, lifecycle.ArchiveCorrupted},
			"archive of a fork's source": {func(_ *testing.T, row *workspace.Workspace) { row.ID = workspace.ID(newID()) }, lifecycle.ArchivePresent},
			"archive of another workspace, row without figures": {func(_ *testing.T, row *workspace.Workspace) {
				row.ID, row.ArchiveDigest, row.ArchiveSize = workspace.ID(newID()), "", 0
			}, lifecycle.ArchiveCorrupted},
			"archive of another workspace": {func(_ *testing.T, row *workspace.Workspace) {
				row.ID, row.ArchiveKey = workspace.ID(newID()), good.ArchiveKey
			}, lifecycle.ArchiveCorrupted},
		} {
			row := f.archived(t, homeOf(t, 5_000))
			c.change(t, &row)
			a, err := f.State(ctx, row)
			if a != c.want || err != nil {
				t.Errorf("%s: %v, %v; want %v", name, a, err, c.want)
			}
		}
		for _, key := range []string{"", "x", "../../etc/passwd", installation + "/" + markerName, good.ArchiveKey + ".meta", good.ArchiveKey + "/"} {
			row := good
			row.ArchiveKey = key
			if a, err := f.State(ctx, row); a != lifecycle.ArchiveUnknown || err == nil {
				t.Errorf("archive_key %q: %v, %v", key, a, err)
			}
		}
	})
}

// While the disk of the archives is not mounted, the folder proves nothing about any archive,
// and no archive is stored in its mount point, where it would be hidden once the disk is back.
// The same holds for a server that starts then, which recognizes the folder by its marker.
func TestUnmountedDisk(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	ctx, row := t.Context(), f.archived(t, homeOf(t, 1000))
	fresh := func() *Bucket {
		c := f.Config
		c.Store = store.NewFolder(f.Folder)
		b, err := New(c)
		check(t, err)
		return b
	}
	unavailable := func(what string) {
		t.Helper()
		for _, b := range []*Bucket{f.Bucket, fresh()} {
			if a, err := b.State(ctx, row); a != lifecycle.ArchiveUnknown || !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s: State: %v, %v", what, a, err)
			}
			for name, call := range map[string]func() error{
				"Meta":       func() error { _, err := b.Meta(ctx, row.ArchiveKey); return err },
				"Stat":       func() error { _, err := b.Stat(ctx, row.ArchiveKey); return err },
				"Open":       func() error { _, err := b.Open(ctx, row.ArchiveKey, 0); return err },
				"List":       func() error { _, err := b.List(ctx); return err },
				"ReadBack":   func() error { _, err := b.ReadBack(ctx, row.ArchiveKey, archive.Stats{}, nil); return err },
				"Check":      func() error { return b.Check(ctx, true) },
				"ArchiveJob": func() error { return b.ArchiveJob(ctx, newRow(), "ada", &runtime.JobSpec{}) },
				"PutEmpty":   func() error { _, err := b.PutEmpty(ctx, newRow(), "ada"); return err },
			} {
				if err := call(); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrNotFound) {
					t.Errorf("%s: %s: %v, want ErrUnavailable", what, name, err)
				}
			}
		}
	}
	check(t, os.Rename(f.Folder, f.Folder+".elsewhere"))
	unavailable("no folder")
	check(t, os.Mkdir(f.Folder, 0o700))
	unavailable("empty folder")
	if list, err := os.ReadDir(f.Folder); err != nil || len(list) > 0 {
		t.Errorf("the empty folder holds %v, %v", list, err)
	}
	// The archive of an earlier job, stored in the mount point.
	check(t, os.CopyFS(f.Folder, os.DirFS(f.Folder+".elsewhere")))
	check(t, os.Remove(filepath.Join(f.Folder, installation, markerName)))
	if a, err := fresh().State(ctx, row); a != lifecycle.ArchiveUnknown || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("an archive in the mount point is %v, %v", a, err)
	}
	check(t, os.RemoveAll(f.Folder))
	check(t, os.Rename(f.Folder+".elsewhere", f.Folder))
	if a, err := f.State(ctx, row); a != lifecycle.ArchivePresent || err != nil {
		t.Errorf("with its disk back: %v, %v", a, err)
	}
	check(t, fresh().Check(ctx, true))
}

func TestCheck(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		before, err := f.Store.Stat(ctx, f.marker())
		check(t, err)
		for _, used := range []bool{false, true} {
			check(t, f.Check(ctx, used))
		}
		after, err := f.Store.Stat(ctx, f.marker())
		check(t, err)
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("the marker was written again:\n%s", diff)
		}
	})
}

func TestNew(t *testing.T) {
	t.Parallel()
	s3, err := store.Open("s3://b?region=us-east-1")
	check(t, err)
	folder := store.NewFolder("/x")
	for name, c := range map[string]Config{
		"installation":    {Store: folder, Installation: "../x", Version: "1", Folder: "/x", HostFolder: "/x"},
		"no store":        {Installation: installation, Version: "1", Folder: "/x", HostFolder: "/x"},
		"no version":      {Store: folder, Installation: installation, Folder: "/x", HostFolder: "/x"},
		"no host folder":  {Store: folder, Installation: installation, Version: "1", Folder: "/x"},
		"folder as s3":    {Store: folder, Installation: installation, Version: "1", SocketDir: "/x", HostSocketDir: "/x"},
		"s3 as folder":    {Store: s3, Installation: installation, Version: "1", Folder: "/x", HostFolder: "/x"},
		"s3, host socket": {Store: s3, Installation: installation, Version: "1", SocketDir: "/x"},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := New(Config{Store: s3, Installation: installation, Version: "1"}); err != nil {
		t.Errorf("jobs with a network: %v", err)
	}
}

// The read-back trusts neither the job nor the .meta nor the object alone.
func TestReadBack(t *testing.T) {
	onAll(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		row := newRow()
		result := f.run(ctx, t, f.archiveJob(t, row), homeOf(t, 100_000))
		key := f.Key(row.ID, row.OpID)
		calls := 0
		_, err := f.ReadBack(ctx, key, result.Stats, func(_, _ int64) { calls++ })
		check(t, err)
		if calls == 0 {
			t.Error("no progress")
		}
		for name, change := range map[string]func(*archive.Stats){
			"digest": func(s *archive.Stats) { s.SHA256 = strings.Repeat("0", 64) }, "size": func(s *archive.Stats) { s.Size++ },
			"bytes": func(s *archive.Stats) { s.Bytes++ }, "entries": func(s *archive.Stats) { s.Entries-- }, "skipped": func(s *archive.Stats) { s.Skipped++ },
		} {
			made := result.Stats
			change(&made)
			if _, err := f.ReadBack(ctx, key, made, nil); !errors.Is(err, archive.ErrCorrupted) {
				t.Errorf("the job reports another %s: %v", name, err)
			}
		}
		// The same size with different bytes.
		r, err := f.Open(ctx, key, 0)
		check(t, err)
		content := make([]byte, result.Stats.Size)
		_, err = readFull(r, content)
		check(t, err)
		check(t, r.Close())
		content[len(content)/2] ^= 4
		f.put(t, key, content)
		_, err = f.ReadBack(ctx, key, result.Stats, nil)
		wantErr(t, err, archive.ErrCorrupted)
		check(t, f.Store.Delete(ctx, key))
		_, err = f.ReadBack(ctx, key, result.Stats, nil)
		wantErr(t, err, store.ErrNotFound)
	})
}

// Jobs know how much of a disk must stay free; archives, which free space, may use half of the
// rest.
func TestJobsKeepTheReserve(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		row := f.archived(t, homeOf(t, 1000))
		f.MinFreeShare = 0.08
		for spec, want := range map[*runtime.JobSpec]string{new(f.archiveJob(t, newRow())): `"min_free":0.04`, new(f.restoreJob(t, row)): `"min_free":0.08`} {
			if !strings.Contains(string(spec.Input), want) {
				t.Errorf("%s is not in the instructions: %.1000s", want, spec.Input)
			}
		}
		meta, err := f.Meta(t.Context(), row.ArchiveKey)
		check(t, err)
		spec := runtime.JobSpec{OwnDisk: true, SharesDisk: true}
		check(t, f.RestoreJob(t.Context(), row, meta, &spec))
		if in := string(spec.Input); !strings.Contains(in, `"shared_min_free":0.08`) || strings.Contains(in, `"min_free"`) {
			t.Errorf("the instructions for a home with a limit: %.1000s", in)
		}
	})
}

// A row with the key of another installation gets no job.
func TestKeyOfAnotherInstallationIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		row := f.archived(t, homeOf(t, 1000))
		meta, err := f.Meta(t.Context(), row.ArchiveKey)
		check(t, err)
		for _, key := range []string{strings.Replace(row.ArchiveKey, installation, another, 1), "", "../" + row.ArchiveKey, row.ArchiveKey + ".meta"} {
			bad := row
			bad.ArchiveKey = key
			var spec runtime.JobSpec
			if err := f.RestoreJob(t.Context(), bad, meta, &spec); err == nil || spec.Input != nil {
				t.Errorf("a job for %q", key)
			}
			if err := f.Delete(t.Context(), key); err == nil {
				t.Errorf("Delete of %q", key)
			}
		}
		bad := row
		bad.ArchiveDigest = strings.Repeat("0", 64)
		var spec runtime.JobSpec
		wantErr(t, f.RestoreJob(t.Context(), bad, meta, &spec), archive.ErrCorrupted)
		for _, op := range []string{"", "..", "x/y"} {
			bad := newRow()
			bad.OpID = op
			if err := f.ArchiveJob(t.Context(), bad, "alice", &spec); err == nil {
				t.Errorf("a job for the claim %q", op)
			}
			if _, err := f.PutEmpty(t.Context(), bad, "alice"); err == nil {
				t.Errorf("an empty archive for the claim %q", op)
			}
		}
	})
}
