// Package treewalk visits folder trees of any shape with few descriptors. It follows no links.
package treewalk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// OpenFolders is how many folders of the current path are open at a time.
	// Others are reopened by "..".
	OpenFolders = 16
	// chunkBytes is about how much of a folder's listing is read at a time.
	chunkBytes = 128 << 10
	// shownFolders limits the folders in the error of a tree that may change.
	shownFolders = 10
)

// ErrChanged means that the tree has changed so that the walk cannot go on.
var ErrChanged = errors.New("folder changed while it was read")

// Visitor receives the entries of a walk, from one goroutine: a folder before its content, and
// the files of a folder before its folders. An error ends the walk.
type Visitor interface {
	// Folder is called for each open folder before its content.
	Folder(w *Walk, dir *Dir, st *unix.Stat_t) error
	// Leaf is called for each name in a folder that is not a folder.
	Leaf(w *Walk, dir *Dir, e Entry) error
	// Leave is called after the content of a folder, the entry base of the folder above, which is
	// nil for the top.
	Leave(w *Walk, above *Dir, base string) error
}

// Options are how a tree is walked.
type Options struct {
	// Open opens a name in a folder, also "..". It must not follow a link. nil: Open.
	Open func(dir int, name string, flags int) (fd int, err error)
	// Changing allows the tree to change: what disappears is left out. Otherwise a change that
	// the walk notices is ErrChanged. A folder that was moved always is.
	Changing bool
	// Last is the name of folders that are visited after the other folders of theirs; empty: none.
	Last string
	// MaxLevels bounds the memory that a deep path needs: the walk forgets its outermost folders,
	// and is ErrChanged when it has to go back to them. 0: no bound. It is for trees that may change.
	MaxLevels int
	// Failed describes an error at a path; nil: by the path.
	Failed func(path string, err error) error
}

// Walk is a walk through a tree. It needs memory that grows only with the length of a path.
type Walk struct {
	Options
	ctx       context.Context
	visitor   Visitor
	path      []byte // of the current folder; empty for the top, and if the tree may change
	levels    []level
	forgotten bool // levels does not begin with the top
	buf       []byte
	entries   []Entry
}

// Dir is an open folder. It is closed after its last use.
type Dir struct {
	FD  int
	Tag [32]byte // the visitor's; in a tree that must not change it stays when the folder is closed and opened again

	dev, ino uint64
	users    atomic.Int32
}

// Use adds a use of the folder, also after the walk has left it.
func (d *Dir) Use() { d.users.Add(1) }

// Release ends a use of the folder.
func (d *Dir) Release() {
	if d.users.Add(-1) == 0 {
		unix.Close(d.FD)
	}
}

// Dev is the device of the folder.
func (d *Dir) Dev() uint64 { return d.dev }

// level is a folder on the current path.
type level struct {
	dir      *Dir // nil: closed temporarily
	dev, ino uint64
	kept     *kept // nil: the tree may change

	// The part of the listing between two positions is being visited.
	from, to int64
	last     bool     // nothing follows on it
	end      string   // the entry before to, unless it is the last
	begun    bool     // it is read
	folders  []string // folders still to visit, sorted
	visited  string   // the last visited folder
	left     int      // folders still to visit when it was closed
}

// kept is what is kept of a folder of a tree that must not change.
type kept struct {
	tag    [32]byte
	before state
	name   int // length of its name in the path, with the slash
}

// state is what changes if a folder or its listing does.
type state struct {
	mode, uid, gid uint32
	size           int64
	mtime, ctime   unix.Timespec
}

func stateOf(st *unix.Stat_t) state {
	return state{mode: st.Mode, uid: st.Uid, gid: st.Gid, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}
}

// Open opens a name in a folder for reading, without following a link or waiting.
func Open(dir int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// Visit visits the tree under an open folder, which stays open.
func Visit(ctx context.Context, top int, v Visitor, o Options) error {
	if o.Open == nil {
		o.Open = Open
	}
	if o.Failed == nil {
		o.Failed = func(path string, err error) error { return fmt.Errorf("%s: %w", Quoted(path), err) }
	}
	w := &Walk{Options: o, ctx: ctx, visitor: v, buf: make([]byte, 64<<10)}
	defer w.abandon()
	root := &Dir{FD: top}
	root.Use() // the caller closes it
	if err := w.enter(root, ""); err != nil {
		return err
	}
	for len(w.levels) > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.step(); err != nil {
			return err
		}
	}
	return nil
}

// Name returns the path of a name in the current folder.
func (w *Walk) Name(base string) string {
	if len(w.levels) < 2 {
		return base
	}
	return w.Here() + "/" + base
}

// Here returns the path of the current folder, or of a tree that may change the end of it.
func (w *Walk) Here() string {
	switch {
	case len(w.levels) < 2:
		return "."
	case !w.Changing:
		return string(w.path)
	}
	var names []string
	for _, l := range w.levels[max(0, len(w.levels)-shownFolders) : len(w.levels)-1] {
		names = append(names, l.visited)
	}
	return strings.Join(names, "/")
}

// PathLen is the length of the path of the current folder; 0 for the top. It is for trees that
// must not change.
func (w *Walk) PathLen() int { return len(w.path) }

// Above returns the folder that the current one is in, and its name there; nil for the top. It is
// open within Visitor.Folder.
func (w *Walk) Above() (above *Dir, base string) {
	n := len(w.levels)
	if n < 2 {
		return nil, ""
	}
	return w.levels[n-2].dir, w.levels[n-2].visited
}

func (w *Walk) failed(err error) error { return w.Failed(w.Here(), err) }

func (w *Walk) abandon() {
	for _, l := range w.levels {
		if l.dir != nil {
			l.dir.Release()
		}
	}
}

// step visits the next part of the current folder's listing or its next folder,
// or leaves it.
func (w *Walk) step() error {
	l := &w.levels[len(w.levels)-1]
	switch {
	case len(l.folders) > 0:
		base := l.folders[0]
		l.folders, l.visited = l.folders[1:], base
		fd, err := w.Open(l.dir.FD, base, unix.O_DIRECTORY)
		if w.Changing && isGone(err) {
			return nil
		}
		if err != nil {
			return w.Failed(w.Name(base), Gone(err))
		}
		return w.enter(&Dir{FD: fd}, base)
	case l.begun && l.last:
		return w.leave()
	}
	if l.begun {
		l.from = l.to
	}
	if err := w.list(l, chunkBytes, func(Entry) bool { return false }); err != nil {
		return w.failed(err)
	}
	l.begun, l.visited, l.folders = true, "", l.folders[:0]
	for _, e := range w.entries {
		if e.Kind == unix.DT_DIR {
			l.folders = append(l.folders, e.Name)
			continue
		}
		if err := w.visitor.Leaf(w, l.dir, e); err != nil {
			return err
		}
	}
	return nil
}

// enter goes into an open folder and takes it over.
func (w *Walk) enter(dir *Dir, base string) error {
	dir.Use()
	l := level{dir: dir}
	if !w.Changing {
		length := len(w.path)
		if length > 0 {
			w.path = append(w.path, '/')
		}
		w.path = append(w.path, base...)
		l.kept = &kept{name: len(w.path) - length}
	}
	w.levels = append(w.levels, l)
	var st unix.Stat_t
	if err := unix.Fstat(dir.FD, &st); err != nil {
		return w.failed(fmt.Errorf("stat: %w", err))
	}
	dir.dev, dir.ino = uint64(st.Dev), st.Ino
	if err := w.visitor.Folder(w, dir, &st); err != nil {
		return err
	}
	here := &w.levels[len(w.levels)-1]
	here.dev, here.ino = dir.dev, dir.ino
	if here.kept != nil {
		here.kept.tag, here.kept.before = dir.Tag, stateOf(&st)
	}
	if far := len(w.levels) - 1 - OpenFolders; far >= 0 && w.levels[far].dir != nil {
		w.levels[far].close()
	}
	if w.MaxLevels > 0 && len(w.levels) >= 2*w.MaxLevels {
		w.forget(w.MaxLevels)
	}
	return nil
}

// forget drops the outermost levels, which are closed.
func (w *Walk) forget(n int) {
	w.levels, w.forgotten = slices.Delete(w.levels, 0, n), true
}

// close closes a folder that is reopened later.
func (l *level) close() {
	l.dir.Release()
	l.dir, l.left, l.folders = nil, len(l.folders), nil
}

// leave goes back to the parent folder.
func (w *Walk) leave() error {
	l := &w.levels[len(w.levels)-1]
	if l.kept != nil {
		var after unix.Stat_t
		if err := unix.Fstat(l.dir.FD, &after); err != nil {
			return w.failed(fmt.Errorf("stat: %w", err))
		}
		if stateOf(&after) != l.kept.before {
			return w.failed(ErrChanged)
		}
	}
	var above *Dir
	if len(w.levels) > 1 {
		up := &w.levels[len(w.levels)-2]
		if up.dir == nil {
			if err := w.reopen(up, l.dir.FD); err != nil {
				return w.failed(err)
			}
		}
		above = up.dir
	} else if w.forgotten {
		return ErrChanged
	}
	_, base := w.Above()
	l.dir.Release()
	if l.kept != nil {
		w.path = w.path[:len(w.path)-l.kept.name]
	}
	w.levels = w.levels[:len(w.levels)-1]
	return w.visitor.Leave(w, above, base)
}

// reopen reopens the parent of a folder and restores its position.
func (w *Walk) reopen(l *level, below int) error {
	fd, err := w.Open(below, "..", unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("open parent folder: %w", Gone(err))
	}
	l.dir = &Dir{FD: fd, dev: l.dev, ino: l.ino}
	if l.kept != nil {
		l.dir.Tag = l.kept.tag
	}
	l.dir.Use()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	if uint64(st.Dev) != l.dev || st.Ino != l.ino {
		return fmt.Errorf("%w: it was moved", ErrChanged)
	}
	if l.left == 0 {
		return nil
	}
	// The same part again. A signal ends reads early, and the position after an entry depends on where
	// a read has ended: so the part ends at a name, after at most as many bytes as it can have.
	last, end := l.last, l.end
	if err := w.list(l, chunkBytes+cap(w.buf), func(e Entry) bool { return !last && e.Name == end }); err != nil {
		return err
	}
	for _, e := range w.entries {
		if e.Kind == unix.DT_DIR && w.compare(e.Name, l.visited) > 0 {
			l.folders = append(l.folders, e.Name)
		}
	}
	if len(l.folders) != l.left && !w.Changing {
		return fmt.Errorf("%w: its parent folder lists other entries", ErrChanged)
	}
	return nil
}

// compare compares two names in the order in which they are visited.
func (w *Walk) compare(a, b string) int {
	if w.Last != "" && a != b && (a == w.Last || b == w.Last) {
		if a == w.Last {
			return 1
		}
		return -1
	}
	return strings.Compare(a, b)
}

// list reads the part of a folder's listing from l.from, in the order of compare, into w.entries. It ends
// after an entry for which end returns true, or when the part has that many bytes.
func (w *Walk) list(l *level, most int, end func(Entry) bool) error {
	fd := l.dir.FD
	if _, err := unix.Seek(fd, l.from, unix.SEEK_SET); err != nil {
		return fmt.Errorf("list folder: %w", err)
	}
	w.entries, l.to, l.last, l.end = w.entries[:0], l.from, false, ""
	before := ""
	for read, ended := 0, false; !ended && read < most; {
		n, err := unix.Getdents(fd, w.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if w.Changing && errors.Is(err, unix.ENOENT) { // it was removed
			n, err = 0, nil
		}
		if err != nil {
			return fmt.Errorf("list folder: %w", Gone(err))
		}
		if n == 0 {
			l.last = true
			break
		}
		read += n
		for b := w.buf[:n]; len(b) > 0 && !ended; {
			var e Entry
			e, b = nextEntry(b)
			l.to, before = e.next, e.Name
			if e.Name != "." && e.Name != ".." {
				w.entries = append(w.entries, e)
			}
			ended = end(e)
		}
	}
	if !l.last {
		l.end = before
	}
	slices.SortFunc(w.entries, func(a, b Entry) int { return w.compare(a.Name, b.Name) })
	for i := range w.entries {
		e := &w.entries[i]
		if e.Kind != unix.DT_UNKNOWN {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstatat(fd, e.Name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil && !(w.Changing && isGone(err)) {
			return fmt.Errorf("stat %q: %w", e.Name, Gone(err))
		}
		e.Kind = byte(st.Mode & unix.S_IFMT >> 12)
	}
	return nil
}

// Entry is a name in a folder and its kind (unix.DT_*).
type Entry struct {
	Name string
	Kind byte
	next int64 // the position in the listing after it
}

// nextEntry splits the first struct linux_dirent64 off b: ino 8, off 8, reclen
// 2, type 1, name.
func nextEntry(b []byte) (Entry, []byte) {
	length := binary.NativeEndian.Uint16(b[16:])
	return Entry{unix.ByteSliceToString(b[19:length]), b[18], int64(binary.NativeEndian.Uint64(b[8:]))}, b[length:]
}

func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// Gone turns the error for a listed name that is missing into ErrChanged.
func Gone(err error) error {
	if isGone(err) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}

// Quoted returns a name for an error message; a long name is shortened in the
// middle.
func Quoted(name string) string {
	const most = 400
	if len(name) > most {
		return fmt.Sprintf("%q…%q", name[:most/2], name[len(name)-most/2:])
	}
	return fmt.Sprintf("%q", name)
}
