package maintenance

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"codehub/internal/archive"
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
