package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// spaceOpen is how many nested folders spaceOf has open at a time. Others are
	// reopened by "..".
	spaceOpen = 32
	// spaceTries is how often spaceOf starts if folders are moved meanwhile.
	spaceTries = 3
)

var errFolderMoved = errors.New("a folder was moved while its home was measured")

// spaceOf is the disk space of a folder's files. Each name of a file with several names counts
// its share. Files that disappear meanwhile do not count. It follows no links, and needs few
// descriptors and little memory for a tree of any shape.
func spaceOf(ctx context.Context, root string) (n int64, err error) {
	for range spaceTries {
		if n, err = spaceOfTree(ctx, root); !errors.Is(err, errFolderMoved) {
			break
		}
	}
	return n, err
}

// spaceFolder is a folder on the path of spaceOf.
type spaceFolder struct {
	fd         int // -1: closed temporarily
	device     uint64
	inode      uint64
	from, next int64    // the part of the listing that is visited
	begun      bool     // that part was read
	folders    []string // of that part, still to visit, sorted
	visited    string   // the last visited one of that part
}

type spaceWalk struct {
	path []spaceFolder
	buf  []byte
	used int64
}

func spaceOfTree(ctx context.Context, root string) (int64, error) {
	w := &spaceWalk{buf: make([]byte, 32<<10)}
	defer func() {
		for i := range w.path {
			w.path[i].close()
		}
	}()
	if err := w.enter(unix.AT_FDCWD, root); err != nil {
		return 0, fmt.Errorf("measure %s: %w", root, err)
	}
	for len(w.path) > 0 {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := w.step(); err != nil {
			return 0, fmt.Errorf("measure %s: %w", root, err)
		}
	}
	return w.used, nil
}

// enter opens a folder and counts it.
func (w *spaceWalk) enter(at int, name string) error {
	fd, err := openSpaceFolder(at, name)
	if err != nil {
		return err
	}
	w.path = append(w.path, spaceFolder{fd: fd})
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	here := &w.path[len(w.path)-1]
	here.device, here.inode = uint64(st.Dev), st.Ino
	w.used += st.Blocks * 512
	if far := len(w.path) - 1 - spaceOpen; far >= 0 {
		w.path[far].close()
	}
	return nil
}

// step visits the next folder of the current one or the next part of its listing, or leaves it.
func (w *spaceWalk) step() error {
	here := &w.path[len(w.path)-1]
	if len(here.folders) > 0 {
		name := here.folders[0]
		here.folders, here.visited = here.folders[1:], name
		return unlessRemoved(w.enter(here.fd, name))
	}
	if here.begun {
		here.from = here.next
	}
	here.visited = ""
	ended, err := w.list(here, true)
	if err != nil || !ended {
		return err
	}
	if len(w.path) > 1 {
		if err := w.reopen(&w.path[len(w.path)-2], here.fd); err != nil {
			return err
		}
	}
	here.close()
	w.path = w.path[:len(w.path)-1]
	return nil
}

// list reads the part of a folder's listing at its position, and counts its files if told to.
func (w *spaceWalk) list(f *spaceFolder, count bool) (ended bool, err error) {
	if _, err := unix.Seek(f.fd, f.from, unix.SEEK_SET); err != nil {
		return false, err
	}
	n, err := unix.ReadDirent(f.fd, w.buf)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.ReadDirent(f.fd, w.buf)
	}
	if n == 0 && (err == nil || errors.Is(err, unix.ENOENT)) { // ENOENT: the folder was removed
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if f.next, err = unix.Seek(f.fd, 0, unix.SEEK_CUR); err != nil {
		return false, err
	}
	f.begun, f.folders = true, f.folders[:0]
	_, _, names := unix.ParseDirent(w.buf[:n], -1, nil)
	for _, name := range names {
		var st unix.Stat_t
		switch err := unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return false, err
		case st.Mode&unix.S_IFMT == unix.S_IFDIR:
			if name > f.visited {
				f.folders = append(f.folders, name)
			}
		case count:
			w.used += st.Blocks * 512 / int64(max(st.Nlink, 1))
		}
	}
	slices.Sort(f.folders)
	return false, nil
}

// reopen opens a closed folder by one of its folders, and lists what is left to visit.
func (w *spaceWalk) reopen(f *spaceFolder, below int) error {
	if f.fd >= 0 {
		return nil
	}
	fd, err := openSpaceFolder(below, "..")
	if errors.Is(err, unix.ENOENT) {
		return errFolderMoved
	}
	if err != nil {
		return err
	}
	f.fd = fd
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if uint64(st.Dev) != f.device || st.Ino != f.inode {
		return errFolderMoved
	}
	_, err = w.list(f, false)
	return err
}

func (f *spaceFolder) close() {
	if f.fd >= 0 {
		unix.Close(f.fd)
	}
	f.fd, f.folders = -1, nil
}

func openSpaceFolder(at int, name string) (int, error) {
	for {
		fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// unlessRemoved is nil for a listed folder that is gone or no longer a folder.
func unlessRemoved(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	return err
}
