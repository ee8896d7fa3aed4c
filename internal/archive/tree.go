package archive

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"codehub/internal/base/treewalk"
)

// opener opens files without changing their access times, if permitted.
type opener struct{ refused atomic.Bool }

func (o *opener) open(dir int, name string, flags int) (int, error) {
	if !o.refused.Load() {
		fd, err := treewalk.Open(dir, name, flags|unix.O_NOATIME)
		if !errors.Is(err, unix.EPERM) {
			return fd, err
		}
		o.refused.Store(true) // only the owner and root may set it
	}
	return treewalk.Open(dir, name, flags)
}

// maxPath is the longest path inside a home. A tar has the whole path of
// each entry, so archives grow with the square of the depth.
const maxPath = 256 << 10

// checkRestorable returns an error if a path of this length cannot be archived.
func checkRestorable(length int) error {
	if length > maxPath {
		return fmt.Errorf("%w: its path is longer than %d bytes", ErrUnrestorable, maxPath)
	}
	return nil
}

// readLast is the name of folders that are read after the others beside them. Git stores objects before
// anything refers to them, so a repository to which is committed meanwhile is complete if its references were read before.
const readLast = "objects"

// traverse visits a home under an open folder.
func traverse(ctx context.Context, o *opener, root int, v treewalk.Visitor, changing bool) error {
	return treewalk.Visit(ctx, root, v, treewalk.Options{Open: o.open, Failed: failed, Changing: changing, Last: readLast})
}

// enterFolder checks the path of a folder that is visited, and gives it the hash of its path.
func enterFolder(t *treewalk.Walk, dir *treewalk.Dir) error {
	if err := checkRestorable(t.PathLen()); err != nil {
		return failed(t.Here(), err)
	}
	var parent [32]byte
	above, base := t.Above()
	if above != nil {
		parent = above.Tag
	}
	dir.Tag = pathPrint(parent, base)
	return nil
}

// sameFile reports whether a file is unchanged between two stats, except for
// its access time, which reading changes.
func sameFile(a, b *unix.Stat_t) bool {
	return a.Dev == b.Dev && a.Ino == b.Ino && a.Mode == b.Mode && a.Size == b.Size &&
		a.Mtim == b.Mtim && a.Ctim == b.Ctim && a.Uid == b.Uid && a.Gid == b.Gid
}

// readXattrs reads the attributes of an open file that belong to a home, in the
// file system's order. Set in this order they fit again.
func readXattrs(fd int) ([]xattr, error) {
	var small [256]byte
	names := small[:]
	n, err := unix.Flistxattr(fd, names)
	if errors.Is(err, unix.ERANGE) {
		names = make([]byte, 64<<10) // the kernel's limit
		n, err = unix.Flistxattr(fd, names)
	}
	if errors.Is(err, unix.ENOTSUP) || (err == nil && n == 0) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list attributes: %w", err)
	}
	var xs []xattr
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if !wantedXattr(name) {
			continue
		}
		value := make([]byte, 256)
		n, err := unix.Fgetxattr(fd, name, value)
		if errors.Is(err, unix.ERANGE) {
			value = make([]byte, 64<<10) // the kernel's limit
			n, err = unix.Fgetxattr(fd, name, value)
		}
		if errors.Is(err, unix.ENODATA) {
			return nil, fmt.Errorf("%w: attribute %q is gone", ErrChanged, name)
		}
		if err != nil {
			return nil, fmt.Errorf("read attribute %q: %w", name, err)
		}
		xs = append(xs, xattr{name, value[:n:n]})
	}
	return xs, nil
}

// describe fills an entry from a stat.
func describe(e *entry, st *unix.Stat_t) {
	e.mode = st.Mode & 0o7777
	e.uid, e.gid = st.Uid, st.Gid
	e.mtime, e.atime = st.Mtim, st.Atim
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		e.size = st.Size
	}
}
