package treewipe

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// Subvolumes that a program has made in a home, nested and read-only, are removed with it. What is
// mounted in it is not touched.
func TestRemoveSubvolumes(t *testing.T) {
	t.Parallel()
	at := t.TempDir()
	shell := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v: %s (scripts/setup.sh installs what is missing)", name, args, err, out)
		}
	}
	image := filepath.Join(t.TempDir(), "image")
	shell("truncate", "-s", "64M", image)
	shell("mkfs.btrfs", "-q", "--mixed", image)
	shell("mount", "-o", "loop", image, at)
	t.Cleanup(func() { shell("umount", at) })

	top := filepath.Join(at, "top")
	shell("btrfs", "subvolume", "create", top)
	in := top
	for i := range 10 {
		folder := filepath.Join(in, "folder", strconv.Itoa(i))
		if err := os.MkdirAll(filepath.Join(folder, "a", "b"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		in = filepath.Join(folder, "subvolume")
		shell("btrfs", "subvolume", "create", in)
		shell("btrfs", "subvolume", "create", filepath.Join(folder, "empty"))
	}
	// In a snapshot, other subvolumes are empty folders of a special kind.
	shell("btrfs", "subvolume", "snapshot", "-r", top, filepath.Join(top, "snapshot"))
	for dir := in; dir != at; dir = filepath.Dir(dir) {
		if filepath.Base(dir) == "subvolume" || dir == top {
			shell("btrfs", "property", "set", "-ts", dir, "ro", "true")
		}
	}
	other := filepath.Join(at, "other")
	shell("btrfs", "subvolume", "create", other)
	kept := filepath.Join(at, "mounts", "mounted")
	if err := os.MkdirAll(kept, 0o700); err != nil {
		t.Fatal(err)
	}
	shell("mount", "--bind", other, kept)
	t.Cleanup(func() { shell("umount", kept) })
	if err := os.WriteFile(filepath.Join(other, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	if err := Remove(t.Context(), top, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(top); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
	if err := Remove(t.Context(), filepath.Join(at, "mounts"), nil); err == nil {
		t.Error("what is mounted was removed")
	}
	if _, err := os.Lstat(filepath.Join(other, "file")); err != nil {
		t.Error(err)
	}
}
