package storagejob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// wipe removes all that is in a folder, whomever it belongs to. It follows no
// links and does not leave the file system.
func wipe(ctx context.Context, dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	return empty(ctx, f, st.Dev)
}

func empty(ctx context.Context, f *os.File, device uint64) error {
	return eachName(ctx, f, func(name string) error {
		err := unix.Unlinkat(int(f.Fd()), name, 0)
		if errors.Is(err, unix.EISDIR) {
			err = removeFolder(ctx, f, name, device)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove %q: %w", name, err)
		}
		return nil
	})
}

func removeFolder(ctx context.Context, parent *os.File, name string, device uint64) error {
	flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(parent.Fd()), name, flags, 0)
	if errors.Is(err, unix.EACCES) { // not root: it is the mode that forbids it
		if err := unix.Fchmodat(int(parent.Fd()), name, 0o700, 0); err != nil {
			return err
		}
		fd, err = unix.Openat(int(parent.Fd()), name, flags, 0)
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Dev != device {
		return errors.New("another file system is mounted there")
	}
	if st.Mode&0o300 != 0o300 && os.Geteuid() != 0 {
		if err := unix.Fchmod(fd, 0o700); err != nil {
			return err
		}
	}
	if err := empty(ctx, f, device); err != nil {
		return err
	}
	return unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR)
}

// eachName calls take, which removes the name, for all names in a folder, a
// bounded number at a time.
func eachName(ctx context.Context, f *os.File, take func(name string) error) error {
	for {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := f.Readdirnames(4096)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			if err := take(name); err != nil {
				return err
			}
		}
	}
}
