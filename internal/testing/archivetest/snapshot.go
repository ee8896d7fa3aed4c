package archivetest

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// State is the observable state of a file.
type State struct {
	Mode, UID, GID uint32
	Size           int64
	Mtime, Atime   string
	Link           string
	SameAs         string // the first of several names
	Xattrs         map[string]string
	Data           [][2]int64
	SHA256         string
}

// Snapshot reads a tree with its own code and without changing access times.
// Kinds that are not archived are left out.
func Snapshot(tb testing.TB, root string) map[string]State {
	tb.Helper()
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOATIME, 0)
	check(tb, err)
	s := &snapshotter{tb, map[string]State{}, map[uint64]string{}}
	s.visit(fd, ".", ".")
	return s.states
}

type snapshotter struct {
	testing.TB
	states map[string]State
	seen   map[uint64]string
}

// visit adds the entry that is open as fd to the snapshot, and closes fd, which is -1 for a
// symbolic link.
func (s *snapshotter) visit(fd int, base, name string) {
	defer unix.Close(fd)
	var st unix.Stat_t
	check(s, unix.Fstat(fd, &st))
	v := State{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Mtime: stamp(st.Mtim), Atime: stamp(st.Atim), Xattrs: map[string]string{}}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		v.Atime = "" // reading changes it
		buf := make([]byte, 5000)
		n, err := unix.Readlinkat(fd, "", buf)
		check(s, err)
		v.Link, v.Size = string(buf[:n]), st.Size
		v.SameAs = s.first(&st, name)
	case unix.S_IFREG:
		v.Size = st.Size
		if v.SameAs = s.first(&st, name); v.SameAs == name || v.SameAs == "" {
			v.SHA256, v.Data = content(s, fd, &st)
		}
		v.Xattrs = xattrsOf(s, fd)
	case unix.S_IFDIR:
		v.Xattrs = xattrsOf(s, fd)
		for _, child := range childrenOf(s, fd) {
			s.child(fd, child, name+"/"+child)
		}
	}
	s.states[name] = v
}

func (s *snapshotter) child(dir int, base, name string) {
	var st unix.Stat_t
	check(s, unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW))
	flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NOATIME
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFDIR:
	case unix.S_IFLNK:
		flags = unix.O_PATH | unix.O_NOFOLLOW
	default:
		return
	}
	fd, err := unix.Openat(dir, base, flags, 0)
	if err != nil {
		s.Fatalf("open %q: %v", name, err)
	}
	s.visit(fd, base, name)
}

func (s *snapshotter) first(st *unix.Stat_t, name string) string {
	if st.Nlink < 2 {
		return ""
	}
	if s.seen[st.Ino] == "" {
		s.seen[st.Ino] = name
	}
	return s.seen[st.Ino]
}

func stamp(t unix.Timespec) string { return fmt.Sprintf("%d.%09d", t.Sec, t.Nsec) }

func childrenOf(tb testing.TB, fd int) []string {
	copied, err := unix.Dup(fd)
	check(tb, err)
	f := os.NewFile(uintptr(copied), "folder")
	defer f.Close()
	names, err := f.Readdirnames(-1)
	check(tb, err)
	slices.Sort(names)
	return names
}

func xattrsOf(tb testing.TB, fd int) map[string]string {
	buf := make([]byte, 64<<10)
	n, err := unix.Flistxattr(fd, buf)
	check(tb, err)
	all := map[string]string{}
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if name != "" {
			value := make([]byte, 64<<10)
			n, err := unix.Fgetxattr(fd, name, value)
			check(tb, err)
			all[name] = string(value[:n])
		}
	}
	return all
}

// content hashes the data of a file and returns its extents. A file with disk
// space for its whole size has no holes, even if the space was never written,
// as with fallocate or after a power cut: it reads as zeros.
func content(tb testing.TB, fd int, st *unix.Stat_t) (string, [][2]int64) {
	sum := sha256.New()
	var data [][2]int64
	size, allocated := st.Size, st.Blocks*512 >= st.Size
	for at := int64(0); at < size; {
		from, to := int64(0), size
		if !allocated {
			var err error
			from, err = unix.Seek(fd, at, unix.SEEK_DATA)
			if err == unix.ENXIO {
				break
			}
			check(tb, err)
			to, err = unix.Seek(fd, from, unix.SEEK_HOLE)
			check(tb, err)
		}
		data = append(data, [2]int64{from, to - from})
		for from < to {
			buf := make([]byte, min(to-from, 1<<20))
			n, err := unix.Pread(fd, buf, from)
			check(tb, err)
			if n == 0 {
				tb.Fatal(io.ErrUnexpectedEOF)
			}
			sum.Write(buf[:n])
			from += int64(n)
		}
		at = to
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), data
}

// Allocated returns the disk space of a tree, as du does.
func Allocated(tb testing.TB, root string) int64 {
	tb.Helper()
	out, err := exec.Command("du", "-s", "-B1", root).Output()
	check(tb, err)
	var n int64
	_, err = fmt.Sscan(string(out), &n)
	check(tb, err)
	return n
}
