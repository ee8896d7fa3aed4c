package archive

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// create creates a new file that other users cannot access.
func create(dir *target, base string) (int, error) {
	fd, err := unix.Openat(dir.fd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, made(err)
	}
	return fd, nil
}

func (u *unpacker) small(j *job) error {
	fd, err := create(j.dir, j.base)
	if err != nil {
		return err
	}
	if err := writeAt(fd, *j.content, 0); err != nil {
		unix.Close(fd)
		return err
	}
	if err := u.trail.owner.apply(fd, j.entry); err != nil {
		unix.Close(fd)
		return err
	}
	return closeFile(fd)
}

// large writes a file from the decompressed frames.
func (u *unpacker) large(ctx context.Context, dir *target, base string, e *entry) error {
	fd, err := create(dir, base)
	if err != nil {
		return err
	}
	if err := u.content(ctx, fd, e); err != nil {
		unix.Close(fd)
		return err
	}
	if err := u.trail.owner.apply(fd, e); err != nil {
		unix.Close(fd)
		return err
	}
	return closeFile(fd)
}

func (u *unpacker) content(ctx context.Context, fd int, e *entry) error {
	if e.sparse() {
		if err := unix.Ftruncate(fd, e.size); err != nil {
			return fmt.Errorf("set size: %w", err)
		}
		for _, x := range e.extents {
			if err := u.extent(ctx, fd, x); err != nil {
				return err
			}
		}
		return nil
	}
	return u.extent(ctx, fd, extent{0, e.size})
}

func (u *unpacker) extent(ctx context.Context, fd int, x extent) error {
	at, end, flushed := x.offset, x.offset+x.length, x.offset
	for at < end {
		b, err := u.tar.content(end - at)
		if errors.Is(err, io.EOF) {
			return corrupted("file is cut short")
		}
		if err != nil {
			return err
		}
		if err := writeAt(fd, b, at); err != nil {
			return err
		}
		at += int64(len(b))
		u.Bytes += int64(len(b))
		u.tick()
		if at-flushed >= flushEvery {
			// Writing to disk starts now, so that the final sync is short. A Pacer has to know how long it takes.
			// Failure is ignored.
			how := unix.SYNC_FILE_RANGE_WRITE
			if u.pacer != nil {
				how |= unix.SYNC_FILE_RANGE_WAIT_AFTER
			}
			began := u.pacer.Begin(ctx)
			_ = unix.SyncFileRange(fd, flushed, at-flushed, how)
			u.pacer.End(began, at-flushed)
			flushed = at
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeAt(fd int, b []byte, at int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, at)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}

func closeFile(fd int) error {
	if err := unix.Close(fd); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
