package maintenance

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codehub/internal/archive"
	"codehub/internal/storage/encryption"
	"codehub/internal/storage/store"
	"codehub/internal/testing/archivetest"
)

func TestUnpackRestoresGeneration(t *testing.T) {
	t.Parallel()
	home, bucket, out := t.TempDir(), t.TempDir(), t.TempDir()
	archivetest.Corpus(t, home)
	put := func(_ context.Context, name string, b []byte) error {
		if err := os.MkdirAll(filepath.Join(bucket, filepath.Dir(name)), 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(bucket, name), b, 0o600)
	}
	name := archive.ManifestName(time.Now(), "id")
	if _, err := archive.Backup(t.Context(), home, name, put, archive.BackupOptions{}); err != nil {
		t.Fatal(err)
	}
	c := unpackCmd{Manifest: filepath.Join(bucket, name), Dir: filepath.Join(out, "home")}
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := archivetest.Diff(archivetest.Snapshot(t, home), archivetest.Snapshot(t, c.Dir)); diff != "" {
		t.Errorf("the unpacked home differs:\n%s", diff)
	}
	if err := c.Run(t.Context()); err == nil {
		t.Error("a folder that is not empty is unpacked into")
	}
	c.Archive, c.Dir = true, out
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := exec.Command("tar", "--zstd", "-tf", filepath.Join(out, "home.tar.zst")).Output()
	if err != nil || bytes.Count(list, []byte("\n")) < 50 {
		t.Errorf("tar lists %q, %v", list, err)
	}
	check := os.Remove(filepath.Join(bucket, name))
	if err := c.Run(t.Context()); err == nil || check != nil {
		t.Errorf("a missing manifest is no error: %v", check)
	}
}

// What a server has encrypted is unpacked with the key file, from a copy of the bucket.
func TestUnpackDecrypts(t *testing.T) {
	t.Parallel()
	home, top := t.TempDir(), t.TempDir()
	archivetest.Corpus(t, home)
	want := archivetest.Snapshot(t, home)
	file, err := encryption.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	key, err := encryption.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	store := store.NewFolder(top)
	put := func(recipient string) func(context.Context, string, []byte) error {
		return func(ctx context.Context, name string, b []byte) error {
			b, err := encryption.EncryptBytes(recipient, b)
			if err == nil {
				_, err = store.Put(ctx, name, bytes.NewReader(b))
			}
			return err
		}
	}
	inBackups := func(ctx context.Context, name string, b []byte) error {
		return put(key.Recipient())(ctx, "ws/backups/"+name, b)
	}
	name := archive.ManifestName(time.Now(), "id")
	if _, err := archive.Backup(t.Context(), home, name, inBackups, archive.BackupOptions{}); err != nil {
		t.Fatal(err)
	}
	var content bytes.Buffer
	stats, err := archive.Pack(t.Context(), home, &content, archive.PackOptions{})
	if err != nil {
		t.Fatal(err)
	}
	meta := archive.Meta{CodehubVersion: "test", WorkspaceID: "ws", WorkspaceName: "a", Owner: "b", ArchiveOpID: "op", CreatedAt: time.Now()}
	meta.Describe(stats)
	described, err := meta.Encode()
	if err != nil {
		t.Fatal(err)
	}
	keys := filepath.Join(top, "archive.key")
	err = errors.Join(
		put(key.Recipient())(t.Context(), "ws/op/home.tar.zst", content.Bytes()),
		put("")(t.Context(), "ws/op/home.tar.zst.meta", described),
		put(file.Recipient())(t.Context(), "ws/keys/"+key.Recipient()+".age", []byte(key.String()+"\n")),
		os.WriteFile(keys, []byte(file.String()), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range []string{"ws/backups/" + name, "ws/op/home.tar.zst"} {
		c := unpackCmd{Manifest: filepath.Join(top, object), Dir: filepath.Join(t.TempDir(), "home")}
		if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--key") {
			t.Errorf("%s without its key: %v", object, err)
		}
		c.Key = keys
		if err := c.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := archivetest.Diff(want, archivetest.Snapshot(t, c.Dir)); diff != "" {
			t.Errorf("%s differs:\n%s", object, diff)
		}
		c.Archive, c.Dir = true, t.TempDir()
		if err := c.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := exec.Command("tar", "--zstd", "-tf", filepath.Join(c.Dir, "home.tar.zst")).Run(); err != nil {
			t.Errorf("%s: tar: %v", object, err)
		}
	}
}

// Several generations of a folder, of which the rule keeps one, and what an interrupted backup left.
func TestPackKeepsGenerations(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	home, backup := filepath.Join(top, "home"), filepath.Join(top, "backups/home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	archivetest.Corpus(t, home)
	pack := func(keep string) (manifests, packs []string) {
		t.Helper()
		if err := (packCmd{Dir: home, Backup: backup, Keep: keep}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		manifests, err := filepath.Glob(filepath.Join(backup, "*.manifest.zst"))
		if err != nil {
			t.Fatal(err)
		}
		packs, err = filepath.Glob(filepath.Join(backup, "packs/*"))
		if err != nil {
			t.Fatal(err)
		}
		return manifests, packs
	}
	restored := func(manifest string) map[string]archivetest.State {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "home")
		if err := (unpackCmd{Manifest: manifest, Dir: dir}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		return archivetest.Snapshot(t, dir)
	}
	first := archivetest.Snapshot(t, home)
	_, before := pack("")
	manifests, packs := pack("")
	if len(manifests) != 2 || len(packs) != len(before) {
		t.Errorf("an unchanged folder has stored %d packs, %d before", len(packs), len(before))
	}
	if err := os.WriteFile(filepath.Join(home, "new"), bytes.Repeat([]byte("new"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	manifests, _ = pack("")
	if diff := archivetest.Diff(first, restored(manifests[0])); diff != "" {
		t.Errorf("the first generation:\n%s", diff)
	}
	if diff := archivetest.Diff(archivetest.Snapshot(t, home), restored(manifests[2])); diff != "" {
		t.Errorf("the last generation:\n%s", diff)
	}
	left, other := filepath.Join(backup, "packs/interrupted-00000.zst"), filepath.Join(backup, "packs/other.zst")
	for _, name := range []string{left, other} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	renamed := filepath.Join(backup, "monday.manifest.zst")
	if err := os.Rename(manifests[0], renamed); err != nil {
		t.Fatal(err)
	}
	if manifests, _ = pack("1d"); len(manifests) != 2 || manifests[1] != renamed {
		t.Errorf("kept %v", manifests)
	}
	if diff := archivetest.Diff(first, restored(renamed)); diff != "" {
		t.Errorf("the renamed generation:\n%s", diff)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("a pack that no generation needs stays")
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
	if diff := archivetest.Diff(archivetest.Snapshot(t, home), restored(manifests[0])); diff != "" {
		t.Errorf("the kept generation:\n%s", diff)
	}
	if err := (packCmd{Dir: home, Backup: filepath.Join(home, "a/b")}).Run(t.Context()); err == nil {
		t.Error("a backup in its own folder is accepted")
	}
}
