package dockertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Btrfs mounts a new btrfs with quotas, from a file.
func Btrfs(t testing.TB, quotas bool) string {
	t.Helper()
	dir := t.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "btrfs")
	shell := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v: %s (scripts/setup.sh installs what is missing)", name, args, err, out)
		}
	}
	shell("truncate", "-s", "4G", image)
	shell("mkfs.btrfs", "-q", image)
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	shell("mount", "-o", "loop", image, at)
	t.Cleanup(func() { shell("umount", at) })
	if quotas {
		shell("btrfs", "quota", "enable", at)
	}
	return at
}
