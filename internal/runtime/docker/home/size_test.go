package home

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"codehub/internal/base/treewipe"
)

// A file with several names counts once, a sparse one what it uses, and an ended context ends the
// measurement.
func TestMeasureTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	check(t, os.WriteFile(large, make([]byte, 1<<20), 0o600))
	one, err := measureTree(t.Context(), dir)
	if err != nil || one.space < 1<<20 || one.bytes != 1<<20 || one.entries != 2 {
		t.Fatal(one, err)
	}
	check(t, os.Link(large, filepath.Join(dir, "link")))
	sparse := filepath.Join(dir, "sparse")
	check(t, os.WriteFile(sparse, nil, 0o600))
	check(t, os.Truncate(sparse, 1<<40))
	if n, err := measureTree(t.Context(), dir); err != nil || n.space > one.space+64<<10 || n.entries != 4 {
		t.Errorf("%v, %v before: %v", n, one, err)
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	if _, err := measureTree(ended, dir); err == nil {
		t.Error("an ended context ends nothing")
	}
}

// A tree that is deeper than the kernel accepts paths, and a folder with many entries, are
// measured with few descriptors and little memory.
func TestMeasureDeepAndWideTree(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "codehub-space-") // creating the files on a disk takes long
	check(t, err)
	t.Cleanup(func() { _ = treewipe.Remove(context.WithoutCancel(t.Context()), dir, nil) })
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	const depth, wide = 600, 20_000
	name := strings.Repeat("n", 100)
	for i := 0; i < depth && err == nil; i++ {
		at := fd
		err = errors.Join(unix.Mkdirat(at, "a", 0o700), unix.Mkdirat(at, name, 0o700), unix.Mkdirat(at, "z", 0o700))
		for _, in := range []string{"a", "z"} { // one before and one after the folder that leads on
			f, e := unix.Openat(at, in+"/file", unix.O_WRONLY|unix.O_CREAT, 0o600)
			if err = errors.Join(err, e); err == nil {
				_, err = unix.Write(f, make([]byte, 4096))
				unix.Close(f)
			}
		}
		if err == nil {
			fd, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		unix.Close(at)
	}
	for i := 0; i < wide && err == nil; i++ {
		err = unix.Mknodat(fd, strconv.Itoa(i), unix.S_IFREG|0o600, 0)
	}
	unix.Close(fd)
	check(t, err)
	// The kernel may give a file more than the page that it needs, so du says what is right.
	out, err := exec.CommandContext(t.Context(), "du", "--summarize", "--block-size=1", dir).Output()
	check(t, err)
	text, _, _ := strings.Cut(string(out), "\t")
	want, err := strconv.ParseInt(text, 10, 64)
	if err != nil || want < 2*depth*4096 {
		t.Fatalf("du: %s, %v", out, err)
	}
	if n, err := measureTree(t.Context(), dir); err != nil || n.space != want {
		t.Errorf("%v, %v, want %d bytes", n, err, want)
	}
}

// A folder that a link takes the place of is not followed.
func TestMeasureFollowsNoLink(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(outside, "large"), make([]byte, 1<<20), 0o600),
		os.Symlink(outside, filepath.Join(dir, "link")),
	); err != nil {
		t.Fatal(err)
	}
	if n, err := measureTree(t.Context(), dir); err != nil || n.space >= 1<<20 {
		t.Errorf("%v, %v", n, err)
	}
}
