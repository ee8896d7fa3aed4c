package bucket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"codehub/internal/archive"
	"codehub/internal/base/setting"
	"codehub/internal/storage/encryption"
	"codehub/internal/storage/storagejob"
	"codehub/internal/storage/store"
	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// raw returns what is stored of an object.
func (f *fixture) raw(tb testing.TB, key string) []byte {
	tb.Helper()
	r, err := f.encrypted.Store.Get(tb.Context(), key, 0)
	check(tb, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	check(tb, err)
	return b
}

func (f *fixture) putRaw(tb testing.TB, key string, b []byte) {
	tb.Helper()
	_, err := f.encrypted.Store.Put(tb.Context(), key, bytes.NewReader(b))
	check(tb, err)
}

// objects returns the keys of all objects of a workspace.
func (f *fixture) objects(tb testing.TB, id workspace.ID) (keys []string) {
	tb.Helper()
	for o, err := range f.encrypted.Store.List(tb.Context(), installation+"/"+string(id)+"/") {
		check(tb, err)
		keys = append(keys, o.Key)
	}
	return keys
}

// keyName returns the key of the workspace's one key.
func (f *fixture) keyName(tb testing.TB, id workspace.ID) string {
	tb.Helper()
	keys := slices.DeleteFunc(f.objects(tb, id), func(key string) bool { return ParseKey(key).Kind != WorkspaceKey })
	if len(keys) != 1 {
		tb.Fatalf("the workspace has the keys %v", keys)
	}
	return keys[0]
}

func (f *fixture) restored(tb testing.TB, row workspace.Workspace) (home string, result storagejob.Result) {
	tb.Helper()
	home = tb.TempDir()
	return home, f.run(tb.Context(), tb, f.restoreJob(tb, row), home)
}

// All content is encrypted, with a key of the workspace that only the key file opens, as age itself does. A job that
// archives gets no secret key.
func TestEncryption(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		keys := newKeyFile(t)
		f.encrypt(t, keys)
		home := t.TempDir()
		check(t, os.WriteFile(filepath.Join(home, "file"), randomBytes(200_000), 0o600))
		before := archivetest.Snapshot(t, home)
		row := newRow()
		if spec := f.archiveJob(t, row); bytes.Contains(spec.Input, []byte("AGE-SECRET")) || !bytes.Contains(spec.Input, []byte(`"recipient":"age1`)) {
			t.Errorf("the job gets %s", spec.Input)
		}
		archived := f.archived(t, home)
		backup, _ := f.backedUp(t, row, home, 1000, "")
		_, err := f.PutBackup(t.Context(), BackupName(time.Unix(1000, 0)), strings.NewReader("a database"))
		check(t, err)
		if f.keyName(t, row.ID) == f.keyName(t, archived.ID) {
			t.Error("two workspaces have one key")
		}
		list, err := f.Backups(t.Context())
		check(t, err)
		for _, key := range slices.Concat(f.objects(t, row.ID), f.objects(t, archived.ID), []string{list[0].Key}) {
			if is := bytes.HasPrefix(f.raw(t, key), []byte("age-encryption.org/v1\n")); is != (ParseKey(key).Kind != Meta) {
				t.Errorf("%s is encrypted: %v", key, is)
			}
		}
		// Without codehub: the key file opens the key of the workspace, which opens the archive.
		r, err := age.Decrypt(bytes.NewReader(f.raw(t, f.keyName(t, archived.ID))), keys.Identities()...)
		check(t, err)
		identities, err := age.ParseIdentities(r)
		check(t, err)
		r, err = age.Decrypt(bytes.NewReader(f.raw(t, archived.ArchiveKey)), identities...)
		check(t, err)
		content, err := io.ReadAll(r)
		check(t, err)
		if int64(len(content)) != archived.ArchiveSize {
			t.Errorf("the archive has %d bytes, want %d", len(content), archived.ArchiveSize)
		}
		if o, err := f.Stat(t.Context(), archived.ArchiveKey); o.Size != archived.ArchiveSize || err != nil {
			t.Errorf("Stat: %+v, %v", o, err)
		}
		for _, n := range []int64{0, 1, 70_000, archived.ArchiveSize - 1, archived.ArchiveSize} {
			r, err := f.Open(t.Context(), archived.ArchiveKey, n)
			check(t, err)
			got, err := io.ReadAll(r)
			check(t, err)
			check(t, r.Close())
			if !bytes.Equal(got, content[n:]) {
				t.Errorf("%d bytes from %d", len(got), n)
			}
		}
		files, err := f.Files(t.Context(), archived.ArchiveKey, archived.ArchiveSize)
		check(t, err)
		in, _, err := files.Open(t.Context(), "file")
		check(t, err)
		got, err := io.ReadAll(in)
		check(t, err)
		check(t, in.Close())
		if want, err := os.ReadFile(filepath.Join(home, "file")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the file in the archive has %d bytes", len(got))
		}
		db, err := f.OpenBackup(t.Context(), list[0].Key)
		check(t, err)
		if got, err := io.ReadAll(db); err != nil || string(got) != "a database" {
			t.Errorf("the database is %q, %v", got, err)
		}
		check(t, db.Close())
		// Another installation can receive what is read.
		other := newRow()
		key := f.Key(other.ID, other.OpID)
		meta, err := f.Meta(t.Context(), archived.ArchiveKey)
		check(t, err)
		moved := *meta
		moved.WorkspaceID, moved.ArchiveOpID = string(other.ID), other.OpID
		check(t, f.Receive(t.Context(), key, &moved, bytes.NewReader(content)))
		other.ArchiveKey, other.ArchiveDigest, other.ArchiveSize = key, moved.SHA256, moved.Size
		if a, err := f.State(t.Context(), other); a != lifecycle.ArchivePresent || err != nil {
			t.Errorf("State of a received archive: %v, %v", a, err)
		}
		for _, row := range []workspace.Workspace{archived, backup, other} {
			restored, result := f.restored(t, row)
			if result.Error != nil {
				t.Fatalf("restore %s: %+v", row.ArchiveKey, result.Error)
			}
			if diff := archivetest.Diff(before, archivetest.Snapshot(t, restored)); diff != "" {
				t.Errorf("the home restored from %s differs:\n%s", row.ArchiveKey, diff)
			}
		}
	})
}

// Objects from before encryption and after it are read all the time, also by one backup.
func TestMixedEncryption(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		home := homeOf(t, 300_000)
		row := newRow()
		plain := f.archived(t, home)
		first, _ := f.backedUp(t, row, home, 1000, "")
		f.encrypt(t, newKeyFile(t))
		check(t, os.WriteFile(filepath.Join(home, "more"), randomBytes(100_000), 0o600))
		second, made := f.backedUp(t, row, home, 2000, first.ArchiveKey)
		if made.Added != 1 || made.Stored > 150_000 {
			t.Errorf("the second backup is %+v", made)
		}
		f.Encrypt = false
		check(t, os.WriteFile(filepath.Join(home, "most"), randomBytes(100_000), 0o600))
		third, _ := f.backedUp(t, row, home, 3000, second.ArchiveKey)
		for key, want := range map[string]bool{plain.ArchiveKey: false, first.ArchiveKey: false, second.ArchiveKey: true, third.ArchiveKey: false} {
			if is := bytes.HasPrefix(f.raw(t, key), []byte("age-encryption.org/v1\n")); is != want {
				t.Errorf("%s is encrypted: %v", key, is)
			}
		}
		for _, row := range []workspace.Workspace{plain, first, second, third} {
			if a, err := f.State(t.Context(), row); a != lifecycle.ArchivePresent || err != nil {
				t.Errorf("State of %s: %v, %v", row.ArchiveKey, a, err)
			}
			if _, result := f.restored(t, row); result.Error != nil {
				t.Errorf("restore %s: %+v", row.ArchiveKey, result.Error)
			}
		}
		if result := f.drill(t, third); result.Error != nil {
			t.Errorf("the drill ended with %+v", result.Error)
		}
	})
}

// Damage is damage, and an archive whose key is missing or locked is neither damaged nor missing: nothing is
// concluded and nothing is stored.
func TestKeysAreMissing(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		ctx, keys := t.Context(), newKeyFile(t)
		f.encrypt(t, keys)
		home := homeOf(t, 200_000)
		row := f.archived(t, home)
		backup, _ := f.backedUp(t, row, home, 1000, "")

		stored := f.raw(t, row.ArchiveKey)
		for at, what := range map[int]string{10_000: "content", len(stored) - 1: "the end", 150: "the header"} {
			b := bytes.Clone(stored)
			b[at] ^= 1
			f.putRaw(t, row.ArchiveKey, b)
			if err := f.Verify(ctx, row.ArchiveKey); !errors.Is(err, archive.ErrCorrupted) {
				t.Errorf("Verify of a change in %s: %v", what, err)
			}
			if _, result := f.restored(t, row); result.Error == nil || result.Error.Kind != storagejob.Corrupted {
				t.Errorf("a restore of a change in %s: %+v", what, result.Error)
			}
		}
		f.putRaw(t, row.ArchiveKey, stored)
		check(t, f.Verify(ctx, row.ArchiveKey))

		locked := func(what string) {
			t.Helper()
			for _, key := range []string{row.ArchiveKey, backup.ArchiveKey} {
				row := row
				row.ArchiveKey, row.ArchiveDigest, row.ArchiveSize = key, "", 0
				if a, err := f.State(ctx, row); a == lifecycle.ArchiveMissing || a == lifecycle.ArchiveCorrupted {
					t.Errorf("%s: State of %s: %v, %v", what, key, a, err)
				}
			}
			if err := f.Verify(ctx, row.ArchiveKey); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, archive.ErrCorrupted) {
				t.Errorf("%s: Verify: %v", what, err)
			}
			if _, _, err := f.Generation(ctx, backup.ArchiveKey); !errors.Is(err, encryption.ErrKey) {
				t.Errorf("%s: Generation: %v", what, err)
			}
		}
		// Another key file: the start is refused, and nothing is stored for a workspace whose key it does not open.
		c := f.Config
		c.Store = f.encrypted.Store
		c.Keys = newKeyFile(t)
		b, err := New(c)
		check(t, err)
		mine := f.Bucket
		f.Bucket = b
		var problem *setting.Problem
		if err := b.Check(ctx, true); !errors.As(err, &problem) || problem.Setting != keySetting || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("Check with another key file: %v", err)
		}
		locked("another key file")
		f.encrypted.checked = true
		if _, err := f.recipient(ctx, row.ID); !errors.Is(err, encryption.ErrKey) {
			t.Errorf("a recipient with another key file: %v", err)
		}
		if n := len(f.objects(t, row.ID)); n != 5 {
			t.Errorf("%d objects: %v", n, f.objects(t, row.ID))
		}
		// No key file.
		c.Keys = nil
		b, err = New(c)
		check(t, err)
		f.Bucket = b
		if err := b.Check(ctx, true); !errors.As(err, &problem) {
			t.Errorf("Check without a key file: %v", err)
		}
		locked("no key file")
		f.Bucket = mine
		// The key of the workspace is missing.
		name := f.keyName(t, row.ID)
		key := f.raw(t, name)
		check(t, f.encrypted.Store.Delete(ctx, name))
		f.forgetKeys(installation, row.ID)
		locked("no key of the workspace")
		// It is that of another one.
		f.putRaw(t, name, f.raw(t, f.keyName(t, f.archived(t, home).ID)))
		locked("another key")
		f.putRaw(t, name, key)
		check(t, f.Verify(ctx, row.ArchiveKey))
	})
}

// The key of a workspace is removed after everything else of it.
func TestDeleteKeys(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		f.encrypt(t, newKeyFile(t))
		home := homeOf(t, 1000)
		row := f.archived(t, home)
		backup, _ := f.backedUp(t, row, home, 1000, "")
		check(t, f.DeleteKeys(ctx, row.ID))
		check(t, f.Delete(ctx, row.ArchiveKey))
		check(t, f.DeleteKeys(ctx, row.ID))
		name := f.keyName(t, row.ID)
		list, err := f.HomeBackups(ctx, row.ID)
		check(t, err)
		copied := f.raw(t, backup.ArchiveKey)
		for _, o := range list {
			check(t, f.DeleteHomeBackup(ctx, o.Key))
		}
		check(t, f.DeleteKeys(ctx, row.ID))
		if keys := f.objects(t, row.ID); len(keys) != 0 {
			t.Errorf("%v remain, and %s was the key", keys, name)
		}
		// A copy cannot be read any more.
		f.putRaw(t, backup.ArchiveKey, copied)
		if _, _, err := f.Generation(ctx, backup.ArchiveKey); !errors.Is(err, encryption.ErrKey) {
			t.Errorf("a copy: %v", err)
		}
		check(t, f.DeleteKeys(ctx, row.ID))
	})
}

// With other recipients, the keys of workspaces are encrypted again, and the former secret key is not needed any more.
func TestRewrap(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		former, next, kept := newSecret(t), newSecret(t), newSecret(t)
		f.encrypt(t, parseKeys(t, former.String()))
		home := homeOf(t, 1000)
		rows := []workspace.Workspace{f.archived(t, home), f.archived(t, home)}
		if n, err := f.Rewrap(ctx); n != 0 || err != nil {
			t.Errorf("the same recipients: %d, %v", n, err)
		}
		f.encrypt(t, parseKeys(t, next.String(), former.String(), kept.Recipient()))
		if _, err := f.recipient(ctx, newRow().ID); !errors.Is(err, encryption.ErrKey) {
			t.Errorf("a new key before all have the same recipients: %v", err)
		}
		for i := range 2 {
			if n, err := f.Rewrap(ctx); n != 2*(1-i) || err != nil {
				t.Errorf("further recipients: %d, %v", n, err)
			}
		}
		for _, key := range []encryption.Key{next, kept} {
			f.encrypt(t, parseKeys(t, key.String()))
			for _, row := range rows {
				check(t, f.Verify(ctx, row.ArchiveKey))
			}
		}
		done, cancel := context.WithCancel(ctx)
		ended := make(chan error)
		go func() { ended <- f.KeepKeys(done) }()
		harness.Eventually(t, "recipients of the key file", func() bool {
			content, err := f.readSecret(ctx, installation+"/"+keysName)
			check(t, err)
			return strings.TrimSpace(string(content)) == kept.Recipient()
		})
		cancel()
		check(t, <-ended)
		if base := path.Base(f.keyName(t, rows[0].ID)); !strings.HasPrefix(base, "age1") || !strings.HasSuffix(base, ".age") {
			t.Errorf("the key is %s", base)
		}
	})
}

func newSecret(tb testing.TB) encryption.Key {
	tb.Helper()
	key, err := encryption.NewKey()
	check(tb, err)
	return key
}

func parseKeys(tb testing.TB, lines ...string) *encryption.KeyFile {
	tb.Helper()
	keys, err := encryption.ParseKeyFile([]byte(strings.Join(lines, "\n")))
	check(tb, err)
	return keys
}
