package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// removeTree removes a folder and all that is in it, however deep: what people
// leave in their homes may be nested hundreds of thousands of times, for which
// os.RemoveAll takes a descriptor and some stack each. Folders within folders
// are moved up instead. It follows no links. Two may remove the same.
func removeTree(ctx context.Context, path string) error {
	top, err := openTree(unix.AT_FDCWD, path)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return os.Remove(path)
	case err != nil:
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer top.Close()
	err = eachIn(ctx, top, func(name string) error { return removeFlat(ctx, top, name) })
	if err != nil {
		return fmt.Errorf("empty %s: %w", path, err)
	}
	return removeIfThere(path)
}

// removeFlat removes what has this name in top; if it is a folder, those in it
// come to be in top.
func removeFlat(ctx context.Context, top *os.File, name string) error {
	if folder, err := unlink(top, name); !folder {
		return err
	}
	dir, err := openTree(int(top.Fd()), name)
	if err != nil {
		return unlessGone(err)
	}
	defer dir.Close()
	err = eachIn(ctx, dir, func(name string) error {
		folder, err := unlink(dir, name)
		if folder {
			err = unlessGone(unix.Renameat(int(dir.Fd()), name, int(top.Fd()), rand.Text()))
		}
		return err
	})
	if err != nil {
		return err
	}
	return unlessGone(unix.Unlinkat(int(top.Fd()), name, unix.AT_REMOVEDIR))
}

// unlink removes a name, or reports that it is a folder's.
func unlink(dir *os.File, name string) (folder bool, err error) {
	err = unix.Unlinkat(int(dir.Fd()), name, 0)
	if errors.Is(err, unix.EISDIR) {
		return true, nil
	}
	return false, unlessGone(err)
}

func unlessGone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func openTree(dir int, name string) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// eachIn calls take, which removes the name, for all names in a folder.
func eachIn(ctx context.Context, dir *os.File, take func(name string) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := dir.Readdirnames(1024)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) { // it is gone itself
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := take(name); err != nil {
				return err
			}
		}
	}
}
