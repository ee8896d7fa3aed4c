package bucket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/archive"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

func readFull(r io.Reader, b []byte) (int, error) {
	n, err := io.ReadFull(r, b)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	return n, err
}

func TestList(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		list, err := f.List(ctx)
		check(t, err)
		if len(list) > 0 {
			t.Errorf("a bucket without archives holds %v", list)
		}
		row := f.archived(t, homeOf(t, 1000))
		opID := ParseKey(row.ArchiveKey).OpID
		f.put(t, installation+"/readme.txt", []byte("hello"))
		f.put(t, installation+"/"+string(row.ID)+"/notes", nil)
		f.put(t, another+"/"+string(row.ID)+"/"+opID+"/home.tar.zst", nil)
		f.put(t, another+"/"+markerName, nil)
		f.put(t, "somebody/elses/file", nil)
		list, err = f.List(ctx)
		check(t, err)
		kinds := map[string]Key{}
		for _, o := range list {
			kinds[o.Key] = o.Parsed
			if time.Since(o.Modified) > time.Hour || time.Until(o.Modified) > time.Hour || (o.Key == row.ArchiveKey) != (o.Size == row.ArchiveSize) {
				t.Errorf("%+v", o)
			}
		}
		of := func(k Kind) Key { return Key{installation, string(row.ID), opID, k} }
		want := map[string]Key{
			row.ArchiveKey:                                 of(Home),
			archive.MetaKey(row.ArchiveKey):                of(Meta),
			installation + "/readme.txt":                   {Installation: installation},
			installation + "/" + string(row.ID) + "/notes": {Installation: installation},
		}
		if diff := cmp.Diff(want, kinds); diff != "" {
			t.Errorf("listed (-want +got):\n%s", diff)
		}
		if got := of(Meta).Archive(); got != row.ArchiveKey {
			t.Errorf("the archive of the .meta is %s", got)
		}
		ids, err := f.Installations(ctx)
		check(t, err)
		if diff := cmp.Diff([]string{installation, another}, ids); diff != "" {
			t.Errorf("installations:\n%s", diff)
		}
		others, err := f.ListOf(ctx, another)
		check(t, err)
		if len(others) != 1 || others[0].Parsed.Kind != Home || others[0].Parsed.Installation != another {
			t.Errorf("the other installation's: %+v", others)
		}
	})
}

func TestParseKey(t *testing.T) {
	t.Parallel()
	ws, op := newID(), newID()
	home := installation + "/" + ws + "/" + op + "/home.tar.zst"
	for key, want := range map[string]Key{
		home:                            {installation, ws, op, Home},
		home + ".meta":                  {installation, ws, op, Meta},
		installation + "/" + markerName: {Installation: installation, Kind: Marker},
		installation + "/database/20270301T081500Z.backup.zst": {Installation: installation, Kind: Backup},
		installation + "/database/notes":                       {Installation: installation},
		home + ".meta.meta":                                    {Installation: installation},
		home + "/":                                             {Installation: installation},
		installation:                                           {Installation: installation},
		installation + "/" + ws:                                {Installation: installation},
		installation + "/../" + op + "/home.tar.zst":           {Installation: installation},
		installation + "//" + op + "/home.tar.zst":             {Installation: installation},
		"/" + home:                             {},
		"x/" + ws + "/" + op + "/home.tar.zst": {},
		"":                                     {},
	} {
		if diff := cmp.Diff(want, ParseKey(key)); diff != "" {
			t.Errorf("%q:\n%s", key, diff)
		}
	}
}

// failingDelete is a store whose nth Delete fails.
type failingDelete struct {
	*store.Folder
	left int
}

func (s *failingDelete) Delete(ctx context.Context, key string) error {
	if s.left--; s.left < 0 {
		return store.ErrUnavailable
	}
	return s.Folder.Delete(ctx, key)
}

// An interrupted removal leaves nothing that looks like an archive.
func TestDelete(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		row := f.archived(t, homeOf(t, 1000))
		kept := f.archived(t, homeOf(t, 1000))
		for range 2 {
			check(t, f.Delete(t.Context(), row.ArchiveKey))
		}
		list, err := f.List(t.Context())
		check(t, err)
		if len(list) != 2 {
			t.Errorf("left: %v", list)
		}
		if a, err := f.State(t.Context(), kept); a != lifecycle.ArchivePresent || err != nil {
			t.Errorf("the other archive: %v, %v", a, err)
		}
	})
	f := newFolder(t)
	row := f.archived(t, homeOf(t, 1000))
	f.Store = &failingDelete{store.NewFolder(f.Folder), 1}
	wantErr(t, f.Delete(t.Context(), row.ArchiveKey), store.ErrUnavailable)
	if a, err := f.State(t.Context(), row); a != lifecycle.ArchiveMissing || err != nil {
		t.Errorf("an interrupted removal: %v, %v", a, err)
	}
	list, err := f.List(t.Context())
	check(t, err)
	if len(list) != 1 || list[0].Parsed.Kind != Home {
		t.Errorf("an interrupted removal left %v", list)
	}
	f.Store = store.NewFolder(f.Folder)
	check(t, f.Delete(t.Context(), row.ArchiveKey))
	if _, err := os.Stat(filepath.Join(f.Folder, installation, string(row.ID))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folders remain: %v", err)
	}
}

// Interrupted uploads are removed, except those that may still be running and those of another
// installation.
func TestAbortIncomplete(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		begun, running := newRow(), newRow()
		for _, row := range []workspace.Workspace{begun, running} {
			f.archiveJob(t, row) // on S3 it begins an upload
			f.halfOf(t, f.Key(row.ID, row.OpID))
		}
		foreign := another + "/" + string(begun.ID) + "/" + begun.OpID + "/home.tar.zst"
		f.halfOf(t, foreign)
		keep := func(key string) bool { return key == f.Key(running.ID, running.OpID) }
		count := func(age time.Duration, keep func(string) bool) int {
			n, err := f.AbortIncomplete(ctx, age, keep)
			check(t, err)
			return n
		}
		if n := count(time.Hour, nil); n != 0 {
			t.Errorf("%d recent ones were removed", n)
		}
		each := 1
		if f.server != nil {
			each = 2
		}
		if n := count(0, keep); n != each {
			t.Errorf("%d were removed, want %d", n, each)
		}
		if n := count(0, nil); n != each {
			t.Errorf("then %d were removed, want %d", n, each)
		}
		n, err := f.Store.AbortIncomplete(ctx, another+"/", 0, nil)
		if err != nil || n != 1 {
			t.Errorf("%d of the other installation's are left, %v", n, err)
		}
		if f.server == nil {
			// A removal makes a folder look recent, so a later call removes it.
			harness.Eventually(t, "the folders are removed", func() bool {
				count(0, nil)
				_, err := os.Stat(filepath.Join(f.Folder, installation, string(begun.ID)))
				return errors.Is(err, os.ErrNotExist)
			})
		}
		check(t, f.Check(ctx, true))
	})
}

// halfOf leaves an incomplete upload behind, as a killed job does.
func (f *fixture) halfOf(tb testing.TB, key string) {
	tb.Helper()
	if f.server != nil {
		_, err := f.presigner.PresignUpload(tb.Context(), key, 1<<20, time.Hour)
		check(tb, err)
		return
	}
	check(tb, f.folders.MakeFolder(tb.Context(), key))
	check(tb, os.WriteFile(filepath.Join(f.Folder, filepath.Dir(key), ".put-X-"+filepath.Base(key)), bytes.Repeat([]byte("x"), 100), 0o600))
}

// Backups of the database are no archives: no list has them but their own. Only the installation
// that has made one removes it.
func TestBackups(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		for _, at := range []string{"2027-03-01T08:15:00Z", "2027-02-01T08:15:00+09:00"} {
			made, err := time.Parse(time.RFC3339, at)
			check(t, err)
			_, err = f.PutBackup(ctx, BackupName(made), bytes.NewReader([]byte(at)))
			check(t, err)
		}
		foreign := another + "/database/20200101T000000Z.backup.zst"
		f.put(t, foreign, nil)
		list, err := f.List(ctx)
		check(t, err)
		if len(list) > 0 {
			t.Errorf("archives: %v", list)
		}
		all, err := f.AllBackups(ctx)
		check(t, err)
		own, err := f.Backups(ctx)
		check(t, err)
		if len(all) != 3 || len(own) != 2 || own[0].Name != "20270131T231500Z" || own[1].Name != "20270301T081500Z" || own[0].Installation != installation {
			t.Fatalf("all %+v, own %+v", all, own)
		}
		r, err := f.OpenBackup(ctx, own[1].Key)
		check(t, err)
		content, err := io.ReadAll(r)
		if r.Close(); err != nil || string(content) != "2027-03-01T08:15:00Z" {
			t.Errorf("%q, %v", content, err)
		}
		if err := f.DeleteBackup(ctx, foreign); err == nil {
			t.Error("a backup of another installation was removed")
		}
		check(t, f.DeleteBackup(ctx, own[0].Key))
		if own, err := f.Backups(ctx); err != nil || len(own) != 1 {
			t.Errorf("left: %+v, %v", own, err)
		}
		check(t, f.Store.Delete(ctx, f.marker()))
		if _, err := f.PutBackup(ctx, "20270301T081500Z", bytes.NewReader(nil)); err == nil {
			t.Error("stored in a bucket that is not this installation's")
		}
	})
}
