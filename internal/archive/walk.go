package archive

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// smallFile is up to which size a file is read ahead, as a whole.
	smallFile = 64 << 10
	// readAhead is how many entries are under way: it bounds the memory, the
	// open files and the requests that a disk sees at a time.
	readAhead = 64
	readers   = 8
)

// item is an entry on its way from the walk to the archive. The walk puts the
// items in order; readers open and read them side by side.
type item struct {
	entry
	dir    *folder
	base   string
	number int64
	stat   unix.Stat_t
	skip   bool
	// ready holds the header and the content of a small file, at once what is
	// to be written.
	ready []byte
	fd    int // of a larger file, to be read; else -1
	err   error
	done  chan struct{} // of capacity 1
}

// walker walks a home in order and reads ahead.
type walker struct {
	ctx     context.Context
	opener  opener
	links   linkTable
	work    chan *item
	ordered chan *item
	items   sync.Pool
	buffers sync.Pool
	running sync.WaitGroup
	dirents []byte
	count   int64
	err     error // why the walk ended early; valid when ordered is closed
}

// walk starts to walk the open folder root. The items come from ordered, which
// is closed at the end; finish must be called in any case.
func walk(ctx context.Context, root int) *walker {
	w := &walker{
		ctx:     ctx,
		links:   linkTable{files: map[fileID]*linked{}},
		work:    make(chan *item, readAhead),
		ordered: make(chan *item, readAhead),
		dirents: make([]byte, 64<<10),
	}
	w.items.New = func() any { return &item{done: make(chan struct{}, 1)} }
	w.buffers.New = func() any { b := make([]byte, 0, smallFile+8<<10); return &b }
	for range readers {
		w.running.Go(func() {
			var h header
			for it := range w.work {
				if it.err = w.ctx.Err(); it.err == nil {
					it.err = w.read(it, &h)
				}
				it.dir.release()
				it.done <- struct{}{}
			}
		})
	}
	w.running.Go(func() {
		defer close(w.ordered)
		defer close(w.work)
		top := &folder{fd: root}
		top.use()
		top.use() // the caller closes it
		w.err = w.folder(top, "")
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

func (w *walker) item(name, base string, dir *folder) *item {
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

// folder walks an open folder, of which it takes one use.
func (w *walker) folder(dir *folder, path string) error {
	defer dir.release()
	it := w.item(path, "", nil)
	if path == "" {
		it.name = "."
	}
	it.done <- struct{}{} // there is nothing to read ahead
	if err := fstat(dir.fd, &it.stat); err != nil {
		return failed(it.name, err)
	}
	before := it.stat
	xs, err := readXattrs(dir.fd)
	if err != nil {
		return failed(it.name, err)
	}
	it.kind, it.xattrs = kindFolder, xs
	describe(&it.entry, &it.stat)
	list, err := readFolder(dir.fd, w.dirents)
	if err != nil {
		return failed(it.name, err)
	}
	name := it.name
	if err := w.send(w.ordered, it); err != nil {
		return err
	}
	for _, d := range list {
		if err := w.child(dir, path, d); err != nil {
			return err
		}
	}
	var after unix.Stat_t
	if err := fstat(dir.fd, &after); err != nil {
		return failed(name, err)
	}
	if !sameFile(&before, &after) {
		return failed(name, ErrChanged)
	}
	return nil
}

func (w *walker) child(dir *folder, path string, d dirent) error {
	name := d.name
	if path != "" {
		name = path + "/" + name
	}
	if d.kind == unix.DT_DIR {
		fd, err := w.opener.open(dir.fd, d.name, unix.O_DIRECTORY)
		if err != nil {
			return failed(name, err)
		}
		sub := &folder{fd: fd}
		sub.use()
		return w.folder(sub, name)
	}
	it := w.item(name, d.name, dir)
	switch d.kind {
	case unix.DT_REG:
		it.kind = kindFile
	case unix.DT_LNK:
		it.kind = kindSymlink
	default: // FIFO, socket, device
		it.skip = true
		it.done <- struct{}{}
		return w.send(w.ordered, it)
	}
	dir.use()
	if err := w.send(w.work, it); err != nil {
		dir.release()
		return err
	}
	// Room in ordered comes as fast as in work, or the context ends.
	if err := w.send(w.ordered, it); err != nil {
		<-it.done
		w.recycle(it)
		return err
	}
	return nil
}

// read opens and describes a file or symbolic link, and reads it if it is small.
func (w *walker) read(it *item, h *header) error {
	if it.kind == kindSymlink {
		return w.readLink(it)
	}
	fd, err := w.opener.open(it.dir.fd, it.base, 0)
	if err != nil {
		return failed(it.name, err)
	}
	it.fd = fd
	if err := fstat(fd, &it.stat); err != nil {
		return failed(it.name, err)
	}
	if it.stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return failed(it.name, ErrChanged)
	}
	if it.xattrs, err = readXattrs(fd); err != nil {
		return failed(it.name, err)
	}
	describe(&it.entry, &it.stat)
	if it.stat.Nlink > 1 && w.links.earlier(it) {
		unix.Close(fd)
		it.fd = -1
		return nil
	}
	if it.size > 0 && it.stat.Blocks*512 < it.size {
		if it.extents, err = findExtents(fd, it.size); err != nil {
			return failed(it.name, err)
		}
	}
	if it.size > smallFile || it.sparse() {
		return nil
	}
	if it.ready, err = h.append((*w.buffers.Get().(*[]byte))[:0], &it.entry); err != nil {
		return failed(it.name, err)
	}
	if it.ready, err = readWhole(fd, it.ready, &it.stat); err != nil {
		return failed(it.name, err)
	}
	unix.Close(fd)
	it.fd = -1
	return nil
}

func (w *walker) readLink(it *item) error {
	if err := unix.Fstatat(it.dir.fd, it.base, &it.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return failed(it.name, err)
	}
	if it.stat.Mode&unix.S_IFMT != unix.S_IFLNK {
		return failed(it.name, ErrChanged)
	}
	describe(&it.entry, &it.stat)
	it.atime = unix.Timespec{} // the look at it that follows may move it
	var buf [maxLink + 1]byte
	n, err := unix.Readlinkat(it.dir.fd, it.base, buf[:])
	if err != nil {
		return failed(it.name, err)
	}
	it.link = string(buf[:n])
	if it.stat.Nlink > 1 {
		w.links.earlier(it)
	}
	return nil
}

// readWhole appends the content of a small file to b, and what fills its last
// block. It must be what stat said.
func readWhole(fd int, b []byte, st *unix.Stat_t) ([]byte, error) {
	start, size := len(b), int(st.Size)
	b = grow(b, size+blockSize)
	got := 0
	for got <= size { // one byte too many is asked for, to see the end
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

func failed(name string, err error) error { return fmt.Errorf("pack %q: %w", name, err) }
