package archive

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/base/treewalk"
)

// settled is the age from which a ctime shows each later change. A change soon after the file was read
// could have the same ctime, because file systems take the time from a coarse clock.
const settled = 2 * time.Second

// errGone means that a name disappeared during the walk.
var errGone = errors.New("name is gone")

// live is how a walk reads a home that may change.
type live struct {
	former *formerFiles // nil: every file is read
	now    func() time.Time
	pacer  *Pacer
	path   []byte // of the current folder, which a walk of a changing tree does not know
}

// found is what a live walk knows of a file in addition to its entry.
type found struct {
	sum      [sha256.Size]byte // of the content of a small file
	segments []segment         // of an unchanged file
	read     bool              // ready or segments have the content
	changed  bool              // while it was read, also the second time
	settled  bool              // the next backup may compare the file by its inode
	linked   bool              // not read: an earlier item is of the same file
}

// enter adds a folder to the path and returns it.
func (l *live) enter(t *treewalk.Walk) string {
	if above, base := t.Above(); above != nil {
		l.path = append(append(l.path, '/'), base...)
	}
	return l.here()
}

func (l *live) leave(base string) {
	if len(l.path) > 0 {
		l.path = l.path[:len(l.path)-len(base)-1]
	}
}

func (l *live) here() string {
	if len(l.path) == 0 {
		return "."
	}
	return string(l.path[1:])
}

func (l *live) name(base string) string {
	if len(l.path) == 0 {
		return base
	}
	return string(l.path[1:]) + "/" + base
}

// readLive is read for a home that may change: a file that changes is read a second time.
func (w *walker) readLive(it *item) error {
	began := w.live.pacer.Begin(w.ctx)
	err := w.tryLive(it, false)
	if errors.Is(err, ErrChanged) {
		it.drop()
		err = w.tryLive(it, true)
	}
	w.live.pacer.End(began, int64(len(it.ready)))
	return err
}

// drop forgets what was read of an item.
func (it *item) drop() {
	if it.fd >= 0 {
		unix.Close(it.fd)
	}
	it.fd, it.ready, it.found = -1, it.ready[:0], found{}
	it.entry = entry{name: it.name, kind: it.kind}
}

// tryLive reads a file or symbolic link. The last attempt takes a file as it was read.
func (w *walker) tryLive(it *item, last bool) error {
	if it.kind == kindSymlink {
		err := w.readLink(it)
		if errors.Is(err, unix.ENOENT) {
			return errGone
		}
		return err
	}
	fd, err := w.opener.open(it.dir.FD, it.base, 0)
	if errors.Is(err, unix.ENOENT) {
		return errGone
	}
	if err != nil {
		return err
	}
	it.fd = fd
	if err := w.describeFile(it); err != nil {
		return err
	}
	if it.stat.Nlink > 1 && w.links.earlier(it) {
		it.linked = true // it stays open: the earlier item may be left out
		return nil
	}
	it.settled = w.live.now().Sub(time.Unix(it.stat.Ctim.Sec, it.stat.Ctim.Nsec)) > settled
	if w.live.former.find(it) {
		unix.Close(fd)
		it.fd = -1
		return nil
	}
	if it.size > 0 && it.stat.Blocks*512 < it.size {
		if it.extents, err = findExtents(fd, &it.stat, maxExtents); err != nil {
			return err
		}
	}
	if it.size > smallFile || it.sparse() {
		return nil
	}
	if it.ready == nil {
		it.ready = (*w.buffers.Get().(*[]byte))[:0]
	}
	size := int(it.size)
	it.ready = slices.Grow(it.ready[:0], size)[:size]
	n, err := io.ReadFull(&extentReader{fd: fd, extents: []extent{{0, it.size}}}, it.ready)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return err
	}
	it.ready = it.ready[:n]
	if err := it.ended(int64(n), last); err != nil {
		return err
	}
	it.sum, it.read = sha256.Sum256(it.ready), true
	unix.Close(fd)
	it.fd = -1
	return nil
}

// ended is called after so many bytes of content were read. If the file has changed meanwhile, it is
// ErrChanged, or the last time an entry of what was read.
func (it *item) ended(read int64, last bool) error {
	var after unix.Stat_t
	if err := fstat(it.fd, &after); err != nil {
		return err
	}
	if read == it.stored() && sameFile(&it.stat, &after) {
		return nil
	}
	if !last {
		return ErrChanged
	}
	it.changed, it.settled = true, false
	if !it.sparse() {
		it.size = read
		return nil
	}
	for i, x := range it.extents {
		if x.length > read {
			it.extents[i].length = read
			if read > 0 {
				i++
			}
			if it.extents, it.size = it.extents[:i], 0; i > 0 {
				it.size = it.extents[i-1].end()
			}
			break
		}
		read -= x.length
	}
	return nil
}

// extentReader reads the data of a file, up to its end if that is earlier.
type extentReader struct {
	fd      int
	extents []extent
	done    int64 // of the first extent
	read    int64
}

func (r *extentReader) Read(p []byte) (int, error) {
	for len(r.extents) > 0 && r.done == r.extents[0].length {
		r.extents, r.done = r.extents[1:], 0
	}
	if len(r.extents) == 0 {
		return 0, io.EOF
	}
	x := r.extents[0]
	p = p[:min(int64(len(p)), x.length-r.done, 1<<20)]
	n, err := unix.Pread(r.fd, p, x.offset+r.done)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Pread(r.fd, p, x.offset+r.done)
	}
	if err != nil {
		return 0, fmt.Errorf("read: %w", err)
	}
	if n == 0 {
		return 0, io.EOF
	}
	r.done, r.read = r.done+int64(n), r.read+int64(n)
	return n, nil
}

// pacedReader rests after slow reads.
type pacedReader struct {
	extentReader
	ctx   context.Context
	pacer *Pacer
}

func (r *pacedReader) Read(p []byte) (int, error) {
	began := r.pacer.Begin(r.ctx)
	n, err := r.extentReader.Read(p)
	r.pacer.End(began, int64(n))
	return n, err
}

// formerFiles are the files of the former manifest, by inode.
type formerFiles struct {
	files []formerFile
	more  [][]segment
	holes map[uint64][]extent // of the files that have some, by inode
}

// formerFile is an unchanged file if a file has the same numbers: a user cannot set a ctime.
type formerFile struct {
	inode        uint64
	size         int64
	mtime, ctime unix.Timespec
	at           int64 // address; negative: -1 minus its place in more
}

// dropRepeated drops the files with an inode that occurs twice: it was reused during the former walk.
func (f *formerFiles) dropRepeated() {
	kept := f.files[:0]
	for i := 0; i < len(f.files); {
		next := i + 1
		for next < len(f.files) && f.files[next].inode == f.files[i].inode {
			next++
		}
		if next == i+1 {
			kept = append(kept, f.files[i])
		}
		i = next
	}
	f.files = kept
}

// find sets the content of an item that is unchanged.
func (f *formerFiles) find(it *item) bool {
	if f == nil || !it.settled {
		return false
	}
	i, ok := slices.BinarySearchFunc(f.files, it.stat.Ino, func(x formerFile, inode uint64) int { return cmp.Compare(x.inode, inode) })
	if !ok {
		return false
	}
	x := &f.files[i]
	if x.size != it.size || x.mtime != it.stat.Mtim || x.ctime != it.stat.Ctim {
		return false
	}
	it.read, it.extents = true, f.holes[x.inode]
	switch stored := it.stored(); {
	case stored == 0:
	case x.at < 0:
		it.segments = f.more[-1-x.at]
	default:
		it.segments = []segment{{x.at, stored}}
	}
	return true
}
