// Package treewipe removes folder trees of any shape: hundreds of thousands of
// levels deep, with millions of entries, or with owners and modes that forbid
// removal. It needs a few descriptors and little memory, also on a full disk, follows no
// links and does not leave the file system, of which subvolumes of btrfs are a part.
package treewipe

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"codehub/internal/base/treewalk"
)

// maxLevels is about how many levels of a path are remembered. Deeper trees take several passes.
const maxLevels = 1 << 15

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
		if errors.Is(err, unix.ENOTEMPTY) { // something was made in it
			continue
		}
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	}
}

// Empty removes the content of a folder like Remove and keeps the folder.
func Empty(ctx context.Context, dir string, progress func(entries int64)) error {
	top, err := treewalk.Open(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(top)
	w := &wiper{progress: progress}
	for again := true; again; {
		before := w.entries
		w.left = false
		err := treewalk.Visit(ctx, top, w, treewalk.Options{Open: w.open, Changing: true, MaxLevels: maxLevels})
		moved := errors.Is(err, treewalk.ErrChanged) // by a concurrent removal, or it is deeper than maxLevels
		if err != nil && !moved {
			return fmt.Errorf("empty %s: %w", dir, err)
		}
		again = moved || w.left || w.entries > before
	}
	return nil
}

// wiper is the visitor that removes what it visits.
type wiper struct {
	entries  int64
	left     bool // something was made where content was removed
	progress func(int64)
}

func (w *wiper) removed() {
	if w.entries++; w.progress != nil {
		w.progress(w.entries)
	}
}

// unlink removes a name in a folder.
func (w *wiper) unlink(dir int, name string, flags int) error {
	err := unix.Unlinkat(dir, name, flags)
	switch {
	case err == nil:
		w.removed()
	case errors.Is(err, unix.ENOENT):
		return nil
	}
	return err
}

// open opens a folder to remove its content, or removes it if it is empty.
func (w *wiper) open(dir int, name string, flags int) (int, error) {
	if name == ".." {
		return treewalk.Open(dir, name, flags)
	}
	if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err == nil {
		w.removed()
		return -1, unix.ENOENT
	}
	fd, err := treewalk.Open(dir, name, flags)
	if errors.Is(err, unix.EACCES) { // not root: the mode forbids it
		if err := unix.Fchmodat(dir, name, 0o700, 0); err != nil {
			return -1, err
		}
		fd, err = treewalk.Open(dir, name, flags)
	}
	w.left = w.left || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
	return fd, err
}

var errMounted = errors.New("another file system is mounted there")

// Folder makes a folder writable. A subvolume has another device than the folder that it is in.
func (w *wiper) Folder(t *treewalk.Walk, dir *treewalk.Dir, st *unix.Stat_t) error {
	above, _ := t.Above()
	subvolume := isSubvolume(dir.FD, st)
	if above != nil && (dir.Dev() != above.Dev() && !subvolume || mounted(dir.FD, above.FD)) {
		return fmt.Errorf("remove %s: %w", treewalk.Quoted(t.Here()), errMounted)
	}
	if subvolume {
		makeWritable(dir.FD)
	}
	if above != nil && st.Mode&0o300 != 0o300 && os.Geteuid() != 0 {
		return unix.Fchmod(dir.FD, 0o700)
	}
	return nil
}

func (w *wiper) Leaf(t *treewalk.Walk, dir *treewalk.Dir, e treewalk.Entry) error {
	return w.done(t, e.Name, w.unlink(dir.FD, e.Name, 0))
}

func (w *wiper) Leave(t *treewalk.Walk, above *treewalk.Dir, base string) error {
	if above == nil {
		return nil
	}
	return w.done(t, base, w.unlink(above.FD, base, unix.AT_REMOVEDIR))
}

// done leaves what has changed meanwhile to the next pass.
func (w *wiper) done(t *treewalk.Walk, name string, err error) error {
	switch {
	case err == nil:
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTDIR):
		w.left = true
	default:
		return fmt.Errorf("remove %s: %w", treewalk.Quoted(t.Name(name)), err)
	}
	return nil
}
