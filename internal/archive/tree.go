package archive

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// folder is an open folder of the home. It is closed after its walk, when all
// of its files are open.
type folder struct {
	fd    int
	print [32]byte // see pathPrint
	users atomic.Int32
}

func (d *folder) use() { d.users.Add(1) }

func (d *folder) release() {
	if d.users.Add(-1) == 0 {
		unix.Close(d.fd)
	}
}

// opener opens files without changing their access times, if permitted.
type opener struct{ refused atomic.Bool }

const openFlags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC

func (o *opener) open(dir int, name string, flags int) (int, error) {
	flags |= openFlags
	for {
		noAtime := !o.refused.Load()
		f := flags
		if noAtime {
			f |= unix.O_NOATIME
		}
		fd, err := unix.Openat(dir, name, f, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case noAtime && errors.Is(err, unix.EPERM):
			o.refused.Store(true) // only the owner and root may set it
		default:
			return fd, err
		}
	}
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
