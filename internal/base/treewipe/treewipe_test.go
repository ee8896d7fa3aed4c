package treewipe

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// A home may be nested deeper than this process has descriptors; to remove it
// must not take them from everybody else. Nothing that a link leads to is
// touched.
func TestRemoveTreeOfAnyDepth(t *testing.T) { // not parallel: the limit is the process's
	const depth, descriptors = 2000, 64
	dir := t.TempDir()
	outside := filepath.Join(dir, "outside")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	top := filepath.Join(dir, "top")
	if err := os.Mkdir(top, 0o700); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for i := 0; i < depth && err == nil; i++ {
		at := fd
		err = errors.Join(
			unix.Symlinkat(outside, at, "link"), unix.Symlinkat(dir, at, "folder-link"), unix.Mkdirat(at, "empty", 0),
			unix.Mkdirat(at, "a", 0o700), unix.Mknodat(at, "file"+strconv.Itoa(i), unix.S_IFREG|0o400, 0),
		)
		if err == nil {
			fd, err = unix.Openat(at, "a", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		unix.Close(at)
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)

	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	less := limit
	less.Cur = descriptors
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &less); err != nil {
		t.Fatal(err)
	}
	var two errgroup.Group
	for range 2 {
		two.Go(func() error { return Remove(t.Context(), top, nil) })
	}
	err = two.Wait()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(top); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := os.Lstat(outside); err != nil {
		t.Errorf("what a link leads to: %v", err)
	}
	for _, name := range []string{"outside", "none"} { // a file, and nothing
		if err := Remove(t.Context(), filepath.Join(dir, name), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}

func TestRemoveManyFolders(t *testing.T) {
	t.Parallel()
	top := filepath.Join(t.TempDir(), "top")
	const folders = 3000 // more than one part of a listing
	for i := range folders {
		if err := os.MkdirAll(filepath.Join(top, "one", strconv.Itoa(i), "a"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	last := int64(0)
	if err := Empty(t.Context(), top, func(n int64) { last = n }); err != nil {
		t.Fatal(err)
	}
	if list, err := os.ReadDir(top); err != nil || len(list) > 0 || last != 1+2*folders {
		t.Errorf("Empty left %d entries (%v) and reported %d", len(list), err, last)
	}
}

func TestEmptyEndsWithItsContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if err := Empty(ctx, dir, nil); !errors.Is(err, cause) {
		t.Errorf("Empty = %v, want %v", err, cause)
	}
}
