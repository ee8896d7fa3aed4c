package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// openFolders is how many folders of the current path are open at a time.
	// Others are reopened by "..".
	openFolders = 32
	// chunkBytes is about how much of a folder's listing is read at a time.
	chunkBytes = 128 << 10
	// maxPath is the longest path inside a home. A tar has the whole path of
	// each entry, so archives grow with the square of the depth.
	maxPath = 256 << 10
	// maxHeld limits the attributes of the folders of one path, in bytes.
	// Unpacking keeps them in memory until the innermost folder is complete.
	maxHeld = 64 << 20
)

// visitor receives the entries of a traversal, from one goroutine.
type visitor interface {
	// folder is called for each open folder before its content. It returns how
	// many bytes of the folder's attributes unpacking keeps in memory.
	folder(dir *folder, t *traverser, st *unix.Stat_t) (held int, err error)
	// leaf is called for each name that is not a folder.
	leaf(dir *folder, t *traverser, d dirent) error
	// checkPath returns an error if a folder's path of this length is too long to visit.
	checkPath(length int) error
}

// checkRestorable is the checkPath of a home that is packed.
func checkRestorable(length int) error {
	if length > maxPath {
		return fmt.Errorf("%w: its path is longer than %d bytes", ErrUnrestorable, maxPath)
	}
	return nil
}

// traverser visits a tree: a folder before its content, and the files of a
// folder before its folders. It uses a bounded number of descriptors, and
// memory that grows only with the length of a path. A folder that changes
// meanwhile is ErrChanged.
type traverser struct {
	ctx     context.Context
	opener  *opener
	visitor visitor
	path    []byte // of the current folder; empty for the top
	levels  []level
	held    int
	buf     []byte
	leaves  []dirent
}

// level is a folder on the current path.
type level struct {
	dir    *folder // nil: closed temporarily
	print  [32]byte
	name   int // length of its name in the path
	held   int
	before unix.Stat_t

	// The part of the listing between two positions is being visited.
	from, to int64
	last     bool     // nothing follows on it
	begun    bool     // it is read
	folders  []string // folders still to visit, sorted
	visited  string   // the last visited folder
	left     int      // folders still to visit when it was closed
}

// traverse visits the tree under an open folder, which stays open.
func traverse(ctx context.Context, o *opener, top int, v visitor) error {
	t := &traverser{ctx: ctx, opener: o, visitor: v, buf: make([]byte, 64<<10)}
	root := &folder{fd: top}
	root.use()
	root.use() // the caller closes it
	defer t.abandon()
	if err := t.enter(root, ""); err != nil {
		return err
	}
	for len(t.levels) > 0 {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		if err := t.step(); err != nil {
			return err
		}
	}
	return nil
}

// name returns the path of a name in the current folder.
func (t *traverser) name(base string) string {
	if len(t.path) == 0 {
		return base
	}
	return string(t.path) + "/" + base
}

// here returns the path of the current folder.
func (t *traverser) here() string {
	if len(t.path) == 0 {
		return "."
	}
	return string(t.path)
}

func (t *traverser) failed(err error) error { return failed(t.here(), err) }

func (t *traverser) abandon() {
	for _, l := range t.levels {
		if l.dir != nil {
			l.dir.release()
		}
	}
}

// step visits the next part of the current folder's listing or its next folder,
// or leaves it.
func (t *traverser) step() error {
	l := &t.levels[len(t.levels)-1]
	switch {
	case len(l.folders) > 0:
		base := l.folders[0]
		l.folders, l.visited = l.folders[1:], base
		fd, err := t.opener.open(l.dir.fd, base, unix.O_DIRECTORY)
		if err != nil {
			return failed(t.name(base), gone(err))
		}
		sub := &folder{fd: fd}
		sub.use()
		return t.enter(sub, base)
	case l.begun && l.last:
		return t.leave()
	}
	if l.begun {
		l.from = l.to
	}
	to, last, err := t.list(l.dir.fd, l.from, func(dirent) bool { return false })
	if err != nil {
		return t.failed(err)
	}
	l.begun, l.to, l.last, l.visited = true, to, last, ""
	l.folders = l.folders[:0]
	for _, d := range t.leaves {
		if d.kind == unix.DT_DIR {
			l.folders = append(l.folders, d.name)
			continue
		}
		if err := t.visitor.leaf(l.dir, t, d); err != nil {
			return err
		}
	}
	return nil
}

// enter goes into an open folder and takes over one use of it.
func (t *traverser) enter(dir *folder, base string) error {
	l := level{dir: dir}
	parent := len(t.levels) - 1
	if parent >= 0 {
		before := len(t.path)
		t.path = append(t.path, t.slash()...)
		t.path = append(t.path, base...)
		l.name = len(t.path) - before
		l.print = t.levels[parent].print
	}
	l.print = pathPrint(l.print, base)
	dir.print = l.print
	t.levels = append(t.levels, l)
	if err := t.visitor.checkPath(len(t.path)); err != nil {
		return t.failed(err)
	}
	here := &t.levels[len(t.levels)-1]
	if err := fstat(dir.fd, &here.before); err != nil {
		return t.failed(err)
	}
	held, err := t.visitor.folder(dir, t, &here.before)
	if err != nil {
		return err
	}
	here.held = held
	if t.held += held; t.held > maxHeld {
		return t.failed(fmt.Errorf("%w: the attributes of it and its parent folders are larger than %d bytes", ErrUnrestorable, maxHeld))
	}
	if far := len(t.levels) - 1 - openFolders; far > 0 && t.levels[far].dir != nil {
		t.levels[far].close()
	}
	return nil
}

func (t *traverser) slash() string {
	if len(t.path) == 0 {
		return ""
	}
	return "/"
}

// close closes a folder that is reopened later.
func (l *level) close() {
	l.dir.release()
	l.dir, l.left, l.folders = nil, len(l.folders), nil
}

// leave goes back to the parent folder.
func (t *traverser) leave() error {
	l := &t.levels[len(t.levels)-1]
	var after unix.Stat_t
	if err := fstat(l.dir.fd, &after); err != nil {
		return t.failed(err)
	}
	if !sameFile(&l.before, &after) {
		return t.failed(ErrChanged)
	}
	if len(t.levels) > 1 {
		if up := &t.levels[len(t.levels)-2]; up.dir == nil {
			if err := t.reopen(up, l.dir.fd); err != nil {
				return t.failed(err)
			}
		}
	}
	l.dir.release()
	t.held -= l.held
	t.path = t.path[:len(t.path)-l.name]
	t.levels = t.levels[:len(t.levels)-1]
	return nil
}

// reopen reopens the parent of a folder and restores its position.
func (t *traverser) reopen(l *level, below int) error {
	fd, err := t.opener.open(below, "..", unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("open parent folder: %w", err)
	}
	l.dir = &folder{fd: fd, print: l.print}
	l.dir.use()
	var st unix.Stat_t
	if err := fstat(fd, &st); err != nil {
		return err
	}
	if st.Dev != l.before.Dev || st.Ino != l.before.Ino {
		return fmt.Errorf("%w: it was moved", ErrChanged)
	}
	if l.left == 0 {
		return nil
	}
	last := l.to
	if l.last {
		last = -1
	}
	if _, _, err := t.list(fd, l.from, func(d dirent) bool { return d.next == last }); err != nil {
		return err
	}
	for _, d := range t.leaves {
		if d.kind == unix.DT_DIR && d.name > l.visited {
			l.folders = append(l.folders, d.name)
		}
	}
	if len(l.folders) != l.left {
		return fmt.Errorf("%w: its parent folder lists other entries", ErrChanged)
	}
	return nil
}

// list reads a part of a folder's listing from a position, sorted by name, into
// t.leaves. It ends after an entry for which end returns true, or when the part
// is large enough, and returns the new position and whether the listing has
// ended.
func (t *traverser) list(fd int, from int64, end func(dirent) bool) (to int64, last bool, err error) {
	if _, err := unix.Seek(fd, from, unix.SEEK_SET); err != nil {
		return 0, false, fmt.Errorf("list folder: %w", err)
	}
	t.leaves, to = t.leaves[:0], from
	for read, ended := 0, false; !ended && read < chunkBytes; {
		n, err := unix.Getdents(fd, t.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, false, fmt.Errorf("list folder: %w", err)
		}
		if n == 0 {
			last = true
			break
		}
		read += n
		for b := t.buf[:n]; len(b) > 0 && !ended; {
			var d dirent
			d, b = nextDirent(b)
			to = d.next
			if d.name != "." && d.name != ".." {
				t.leaves = append(t.leaves, d)
			}
			ended = end(d)
		}
	}
	slices.SortFunc(t.leaves, func(a, b dirent) int { return strings.Compare(a.name, b.name) })
	for i := range t.leaves {
		d := &t.leaves[i]
		if d.kind != unix.DT_UNKNOWN {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstatat(fd, d.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return 0, false, fmt.Errorf("stat %q: %w", d.name, gone(err))
		}
		d.kind = byte(st.Mode & unix.S_IFMT >> 12)
	}
	return to, last, nil
}

// dirent is a name in a folder, its kind (unix.DT_*), and the position in the
// listing after it.
type dirent struct {
	name string
	kind byte
	next int64
}

// nextDirent splits the first struct linux_dirent64 off b: ino 8, off 8, reclen
// 2, type 1, name.
func nextDirent(b []byte) (dirent, []byte) {
	length := int(b[16]) | int(b[17])<<8
	name := b[19:length]
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	var next uint64
	for i := range 8 {
		next |= uint64(b[8+i]) << (8 * i)
	}
	return dirent{string(name), b[18], int64(next)}, b[length:]
}

// gone turns a missing listed name into ErrChanged.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}
