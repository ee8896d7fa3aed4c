package treewipe

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"codehub/internal/base/treewalk"
)

// A tree on a full disk is removed.
func TestRemoveOnFullDisk(t *testing.T) {
	t.Parallel()
	for kind, mkfs := range map[string][]string{
		"ext4": {"mkfs.ext4", "-q", "-m", "0"},
		"xfs":  {"mkfs.xfs", "-q", "-f"},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			image, disk := filepath.Join(t.TempDir(), "image"), t.TempDir()
			shell := func(name string, args ...string) {
				t.Helper()
				if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
					t.Fatalf("%s %v: %v: %s (scripts/setup.sh installs what is missing)", name, args, err, out)
				}
			}
			shell("truncate", "-s", "320M", image)
			shell(mkfs[0], append(mkfs[1:], image)...)
			shell("mount", "-o", "loop", image, disk)
			t.Cleanup(func() { shell("umount", disk) })

			top := filepath.Join(disk, "top")
			const packages = 2000
			for i := range packages {
				in := filepath.Join(top, "modules", strconv.Itoa(i), "lib")
				if err := os.MkdirAll(in, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(in, "file"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			// Deeper than folders are open at a time, with several folders on each level.
			const depth = 3 * treewalk.OpenFolders
			for i := range depth {
				in := filepath.Join(top, "modules", "deep", strings.Repeat("in/", i))
				for _, name := range []string{"a", "b/c", "z"} {
					if err := os.MkdirAll(filepath.Join(in, name), 0o700); err != nil {
						t.Fatal(err)
					}
				}
			}
			fill(t, filepath.Join(disk, "fill"))
			if err := Remove(t.Context(), top, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(top); !os.IsNotExist(err) {
				t.Errorf("it is still there: %v", err)
			}
		})
	}
}

// fill fills the disk of a file.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var size int64
	for n := int64(64 << 20); n >= 512; n /= 2 {
		for err = nil; err == nil; {
			if err = unix.Fallocate(int(f.Fd()), 0, size, n); err == nil {
				size += n
			}
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// A tree with more levels than are remembered, and links, is removed completely.
func TestRemoveVeryDeepTree(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "codehub-deep-") // creating the folders on a disk takes long
	if err != nil {
		t.Fatal(err)
	}
	in, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	const depth = 3*maxLevels + 1
	for i := 0; i < depth && err == nil; i++ {
		at := in
		if err = unix.Mkdirat(at, "b", 0o700); err == nil {
			in, err = unix.Openat(at, "b", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		unix.Close(at)
	}
	unix.Close(in)
	last := int64(0)
	if err := errors.Join(err, Remove(t.Context(), dir, func(n int64) { last = n })); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) || last != depth {
		t.Errorf("%d entries were removed, want %d: %v", last, depth, err)
	}
}
