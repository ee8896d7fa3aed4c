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
