package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"codehub/internal/base/treewalk"
)

const (
	// smallFile is the largest size of a file that is read ahead as a whole.
	smallFile = 64 << 10
	// readAhead is how many entries are in progress. It limits memory, open
	// files and concurrent disk requests.
	readAhead = 64
	readers   = 8
	// maxHeld limits the attributes of the folders of one path, in bytes.
	// Unpacking keeps them in memory until the innermost folder is complete.
	maxHeld = 64 << 20
)

// item is an entry between walk and archive. The walk orders the items;
// concurrent readers open and read them.
type item struct {
	entry
	dir    *treewalk.Dir
	base   string
	number int64
	stat   unix.Stat_t
	skip   bool
	print  [4]uint64 // its part of the fingerprint
	found            // in a home that may change
	// ready is the header and content of a small file, as written to the
	// archive.
	ready []byte
	fd    int // of a larger file; otherwise -1
	err   error
	done  chan struct{} // of capacity 1
}

// walker walks a home in order and reads ahead.
type walker struct {
	ctx     context.Context
	opener  opener
	prover  *prover
	owner   OwnerMap
	links   linkTable
	work    chan *item
	ordered chan *item
	items   sync.Pool
	buffers sync.Pool
	running sync.WaitGroup
	pending sync.WaitGroup // what the readers have not read yet
	count   int64
	kept    []int // sizes of the attributes of the current path's folders
	held    int   // their sum
	err     error // why the walk ended early; valid when ordered is closed
	live    *live // nil: the home must not change
}

// walk starts to walk the open folder root. It sends the items to ordered and
// closes it at the end. finish must always be called. live is nil for a home that must not change.
func walk(ctx context.Context, root int, prover *prover, owner OwnerMap, live *live) *walker {
	w := &walker{
		ctx:     ctx,
		prover:  prover,
		owner:   owner,
		links:   linkTable{files: map[fileID]*linked{}},
		work:    make(chan *item, readAhead),
		ordered: make(chan *item, readAhead),
		live:    live,
	}
	w.items.New = func() any { return &item{done: make(chan struct{}, 1)} }
	w.buffers.New = func() any { b := make([]byte, 0, smallFile+8<<10); return &b }
	for range readers {
		w.running.Go(func() {
			for it := range w.work {
				if it.err = w.ctx.Err(); it.err == nil {
					if w.live != nil {
						it.err = w.readLive(it)
					} else {
						it.err = w.read(it)
						it.print = entryPrint(it.dir.Tag, it.base, &it.stat)
					}
				}
				it.dir.Release()
				it.done <- struct{}{}
				w.pending.Done()
			}
		})
	}
	w.running.Go(func() {
		defer close(w.ordered)
		defer close(w.work)
		w.err = traverse(w.ctx, &w.opener, root, w, live != nil)
	})
	return w
}

// finish ends the walk; its context must have ended unless ordered is drained.
func (w *walker) finish() {
	for it := range w.ordered {
		<-it.done
		w.recycle(it)
	}
	w.running.Wait()
}

func (w *walker) recycle(it *item) {
	if it.fd >= 0 {
		unix.Close(it.fd)
	}
	if it.ready != nil {
		b := it.ready[:0]
		w.buffers.Put(&b)
	}
	*it = item{done: it.done}
	w.items.Put(it)
}

func (w *walker) item(name, base string, dir *treewalk.Dir) *item {
	it := w.items.Get().(*item)
	it.name, it.base, it.dir, it.fd = name, base, dir, -1
	it.number = w.count
	w.count++
	return it
}

func (w *walker) send(to chan *item, it *item) error {
	select {
	case to <- it:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// Folder adds an open folder to the order.
func (w *walker) Folder(t *treewalk.Walk, dir *treewalk.Dir, st *unix.Stat_t) error {
	here := ""
	if w.live != nil {
		here = w.live.enter(t)
		if baseOf(here) == readLast {
			w.pending.Wait()
		}
		if err := checkRestorable(len(here)); err != nil {
			return failed(here, err)
		}
	} else {
		if err := enterFolder(t, dir); err != nil {
			return err
		}
		here = t.Here()
	}
	it := w.item(here, "", nil)
	it.done <- struct{}{} // nothing to read ahead
	xs, err := readXattrs(dir.FD)
	if w.live != nil && errors.Is(err, ErrChanged) {
		xs, err = readXattrs(dir.FD)
	}
	if err != nil {
		return failed(it.name, err)
	}
	it.kind, it.xattrs, it.stat = kindFolder, xs, *st
	it.print = entryPrint(dir.Tag, "", st)
	describe(&it.entry, st)
	w.owner.apply(&it.entry)
	if err := w.prover.prove(&it.entry, baseOf(it.name)); err != nil {
		return failed(it.name, err)
	}
	if err := w.send(w.ordered, it); err != nil {
		return err
	}
	size := sizeOf(xs)
	if w.kept, w.held = append(w.kept, size), w.held+size; w.held > maxHeld {
		return failed(here, fmt.Errorf("%w: the attributes of it and its parent folders are larger than %d bytes", ErrUnrestorable, maxHeld))
	}
	return nil
}

func (w *walker) Leave(_ *treewalk.Walk, _ *treewalk.Dir, base string) error {
	if w.live != nil {
		w.live.leave(base)
	}
	last := len(w.kept) - 1
	w.kept, w.held = w.kept[:last], w.held-w.kept[last]
	return nil
}

func baseOf(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

func sizeOf(xs []xattr) int {
	n := 0
	for _, x := range xs {
		n += len(x.name) + len(x.value)
	}
	return n
}

// Leaf passes a file to the readers and adds it to the order.
func (w *walker) Leaf(t *treewalk.Walk, dir *treewalk.Dir, e treewalk.Entry) error {
	var name string
	if w.live != nil {
		name = w.live.name(e.Name)
	} else {
		name = t.Name(e.Name)
	}
	it := w.item(name, e.Name, dir)
	if err := checkRestorable(len(it.name)); err != nil {
		return failed(it.name, err)
	}
	switch e.Kind {
	case unix.DT_REG:
		it.kind = kindFile
	case unix.DT_LNK:
		it.kind = kindSymlink
	default: // FIFO, socket, device
		if err := unix.Fstatat(dir.FD, e.Name, &it.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil && w.live == nil {
			return failed(it.name, treewalk.Gone(err))
		}
		it.skip = true
		it.print = entryPrint(dir.Tag, e.Name, &it.stat)
		it.done <- struct{}{}
		return w.send(w.ordered, it)
	}
	dir.Use()
	w.pending.Add(1)
	if err := w.send(w.work, it); err != nil {
		w.pending.Done()
		dir.Release()
		return err
	}
	// ordered has as much room as work, or the context has ended.
	if err := w.send(w.ordered, it); err != nil {
		<-it.done
		w.recycle(it)
		return err
	}
	return nil
}

// read opens and describes a file or symbolic link, and reads it if it is small.
func (w *walker) read(it *item) error {
	if it.kind == kindSymlink {
		return w.readLink(it)
	}
	fd, err := w.opener.open(it.dir.FD, it.base, 0)
	if err != nil {
		return failed(it.name, treewalk.Gone(err))
	}
	it.fd = fd
	if err := w.describeFile(it); err != nil {
		return failed(it.name, err)
	}
	if it.stat.Nlink > 1 && w.links.earlier(it) {
		unix.Close(fd)
		it.fd = -1
		return nil
	}
	if it.size > 0 && it.stat.Blocks*512 < it.size {
		if it.extents, err = findExtents(fd, &it.stat, maxExtents); err != nil {
			return failed(it.name, err)
		}
	}
	if it.size > smallFile || it.sparse() {
		return nil
	}
	if it.ready, err = appendHeader((*w.buffers.Get().(*[]byte))[:0], &it.entry); err != nil {
		return failed(it.name, err)
	}
	if it.ready, err = readWhole(fd, it.ready, &it.stat); err != nil {
		return failed(it.name, err)
	}
	unix.Close(fd)
	it.fd = -1
	return nil
}

// describeFile fills the entry of an open file, except for its extents.
func (w *walker) describeFile(it *item) error {
	err := fstat(it.fd, &it.stat)
	if err != nil {
		return err
	}
	if it.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return ErrChanged
	}
	if it.xattrs, err = readXattrs(it.fd); err != nil {
		return err
	}
	describe(&it.entry, &it.stat)
	if it.size > maxFileSize {
		return fmt.Errorf("%w: its size is %d bytes, and the maximum is %d bytes", ErrUnrestorable, it.size, int64(maxFileSize))
	}
	w.owner.apply(&it.entry)
	return w.prover.prove(&it.entry, it.base)
}

func (w *walker) readLink(it *item) error {
	if err := unix.Fstatat(it.dir.FD, it.base, &it.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return failed(it.name, err)
	}
	if it.stat.Mode&unix.S_IFMT != unix.S_IFLNK {
		return failed(it.name, ErrChanged)
	}
	describe(&it.entry, &it.stat)
	w.owner.apply(&it.entry)
	it.atime = unix.Timespec{} // the following read may change it
	var buf [maxLink + 1]byte
	n, err := unix.Readlinkat(it.dir.FD, it.base, buf[:])
	if err != nil {
		return failed(it.name, err)
	}
	it.link = string(buf[:n])
	if err := w.prover.prove(&it.entry, it.base); err != nil {
		return failed(it.name, err)
	}
	if it.stat.Nlink > 1 {
		w.links.earlier(it)
	}
	return nil
}

// readWhole appends the content of a small file and its padding to b. Its size
// must match the stat.
func readWhole(fd int, b []byte, st *unix.Stat_t) ([]byte, error) {
	start, size := len(b), int(st.Size)
	b = slices.Grow(b, size+blockSize)[:start+size+blockSize]
	got := 0
	for got <= size { // one byte more than the size, to detect the end
		n, err := unix.Read(fd, b[start+got:start+size+1])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return b, fmt.Errorf("read: %w", err)
		}
		if got += n; n == 0 || got == size {
			break
		}
	}
	if got != size {
		return b, ErrChanged
	}
	var after unix.Stat_t
	if err := fstat(fd, &after); err != nil {
		return b, err
	}
	if !sameFile(st, &after) {
		return b, ErrChanged
	}
	return appendZeros(b[:start+size], padding(st.Size)), nil
}

func fstat(fd int, st *unix.Stat_t) error {
	if err := unix.Fstat(fd, st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	return nil
}

func failed(name string, err error) error { return fmt.Errorf("pack %s: %w", quoted(name), err) }

var quoted = treewalk.Quoted
