// Package treewipe removes folder trees of any shape: hundreds of thousands of
// levels deep, with millions of entries, or with owners and modes that forbid
// removal. It needs a few descriptors and little memory, follows no links and
// does not leave the file system, of which subvolumes of btrfs are a part.
package treewipe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Remove removes a file, or a folder with its content. A missing name is not an
// error, and concurrent removals of the same folder are safe. progress, if not
// nil, gets the number of removed entries.
func Remove(ctx context.Context, path string, progress func(entries int64)) error {
	for {
		err := Empty(ctx, path, progress)
		switch {
		case errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
			return os.Remove(path)
		case err != nil:
			return err
		}
		err = os.Remove(path)
		if errors.Is(err, unix.ENOTEMPTY) { // a concurrent removal has moved something up
			continue
		}
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	}
}

// Empty removes the content of a folder like Remove and keeps the folder.
// Nested folders are moved up into dir before they are removed, so an
// interrupted Empty may leave them there under other names.
func Empty(ctx context.Context, dir string, progress func(entries int64)) error {
	top, err := open(unix.AT_FDCWD, dir)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer top.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(top.Fd()), &st); err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	if isSubvolume(top, &st) {
		makeWritable(top)
	}
	w := &wiper{top: top, device: st.Dev, progress: progress}
	if err := w.each(ctx, top, w.entry); err != nil {
		return fmt.Errorf("empty %s: %w", dir, err)
	}
	return nil
}

// queueMax is how many folders that were moved up are remembered. The next
// listing finds the others.
const queueMax = 1024

type wiper struct {
	top      *os.File
	device   uint64
	above    *wiper   // empties the folder that the subvolume top is in; nil: top is to be emptied
	queue    []string // folders that were moved up into top
	entries  int64
	progress func(int64)
}

func (w *wiper) removed() {
	if w.above != nil {
		w.above.removed()
		return
	}
	if w.entries++; w.progress != nil {
		w.progress(w.entries)
	}
}

// entry removes a name in top, and all folders that are moved up from it.
func (w *wiper) entry(ctx context.Context, name string) error {
	for {
		if err := w.flat(ctx, name); err != nil {
			return fmt.Errorf("remove %q: %w", name, err)
		}
		if len(w.queue) == 0 {
			return nil
		}
		name, w.queue = w.queue[len(w.queue)-1], w.queue[:len(w.queue)-1]
	}
}

// flat removes a name in top. If it is a folder, its folders are moved up into
// top.
func (w *wiper) flat(ctx context.Context, name string) error {
	if folder, err := w.unlink(w.top, name); !folder {
		return err
	}
	dir, st, err := w.open(w.top, w.device, name)
	if err != nil {
		return unlessGone(err)
	}
	defer dir.Close()
	switch {
	case st.Dev == w.device:
		err = w.moveContent(ctx, dir)
	case w.above != nil: // only one of nested subvolumes is open at a time
		return unlessGone(w.above.moveUp(ctx, w.top, name))
	default:
		in := &wiper{top: dir, device: st.Dev, above: w}
		err = in.each(ctx, dir, in.entry)
	}
	if err != nil {
		return err
	}
	err = unix.Unlinkat(int(w.top.Fd()), name, unix.AT_REMOVEDIR) // a subvolume, too
	if err == nil {
		w.removed()
	}
	return unlessGone(err)
}

// moveContent removes the content of a folder in top, and moves its folders up into top.
func (w *wiper) moveContent(ctx context.Context, dir *os.File) error {
	return w.each(ctx, dir, func(ctx context.Context, name string) error {
		folder, err := w.unlink(dir, name)
		if folder {
			err = unlessGone(w.moveUp(ctx, dir, name))
		}
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		return nil
	})
}

// moveUp moves a folder in dir up into top, or removes it if there is no space for that.
func (w *wiper) moveUp(ctx context.Context, dir *os.File, name string) error {
	to := rand.Text()
	err := unix.Renameat(int(dir.Fd()), name, int(w.top.Fd()), to)
	if errors.Is(err, unix.EACCES) { // not root: the folder's own mode forbids the move
		if err := unix.Fchmodat(int(dir.Fd()), name, 0o700, 0); err != nil {
			return err
		}
		err = unix.Renameat(int(dir.Fd()), name, int(w.top.Fd()), to)
	}
	if errors.Is(err, unix.EROFS) { // a subvolume; its top cannot get another parent
		if err := writableIn(dir, name); err != nil {
			return err
		}
		err = unix.Renameat(int(dir.Fd()), name, int(w.top.Fd()), to)
	}
	if errors.Is(err, unix.EXDEV) && endInheritance(w.top) { // it has another project than what is made in top
		err = unix.Renameat(int(dir.Fd()), name, int(w.top.Fd()), to)
	}
	if errors.Is(err, unix.ENOTEMPTY) { // in a snapshot, the empty place of another subvolume
		if err = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR); err == nil {
			w.removed()
		}
		return err
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return w.removeInPlace(ctx, dir, name)
	}
	if err == nil && len(w.queue) < queueMax {
		w.queue = append(w.queue, to)
	}
	return err
}

var errMounted = errors.New("another file system is mounted there")

// open opens an entry of a folder on a device to remove its content. A subvolume has another
// device than the folder.
func (*wiper) open(at *os.File, device uint64, name string) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	dir, err := open(int(at.Fd()), name)
	if errors.Is(err, unix.EACCES) { // not root: the mode forbids it
		if err := unix.Fchmodat(int(at.Fd()), name, 0o700, 0); err != nil {
			return nil, st, err
		}
		dir, err = open(int(at.Fd()), name)
	}
	if err != nil {
		return nil, st, err
	}
	err = unix.Fstat(int(dir.Fd()), &st)
	if err == nil && st.Dev != device {
		if !isSubvolume(dir, &st) || mounted(dir) {
			err = errMounted
		} else {
			makeWritable(dir)
		}
	}
	if err == nil && st.Mode&0o300 != 0o300 && os.Geteuid() != 0 {
		err = unix.Fchmod(int(dir.Fd()), 0o700)
	}
	if err != nil {
		dir.Close()
		return nil, st, err
	}
	return dir, st, nil
}

// unlink removes a name, or reports that it is a folder.
func (w *wiper) unlink(dir *os.File, name string) (folder bool, err error) {
	err = unix.Unlinkat(int(dir.Fd()), name, 0)
	switch {
	case err == nil:
		w.removed()
	case errors.Is(err, unix.EISDIR):
		return true, nil
	}
	return false, unlessGone(err)
}

// each calls take, which removes a name, for all names in a folder until it is
// empty. It reads each listing to its end before the next one, since gaps of
// removed entries are slow to read.
func (w *wiper) each(ctx context.Context, dir *os.File, take func(ctx context.Context, name string) error) error {
	for {
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		empty := true
		for {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			names, err := dir.Readdirnames(1024)
			if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) { // the folder itself is gone
				break
			}
			if err != nil {
				return err
			}
			empty = false
			for _, name := range names {
				if err := take(ctx, name); err != nil {
					return err
				}
			}
		}
		if empty {
			return nil
		}
	}
}

func open(dir int, name string) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func unlessGone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
