package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"iter"
	"time"

	"golang.org/x/sys/unix"
)

// CompareRestored compares a folder into which the generation was unpacked with it: all names, the content of all
// files, and everything that Unpack sets except for the times of access. The first difference is
// ErrCorrupted. Nothing may change the folder meanwhile. Of the packs it reads little more than their
// indexes, which have the digests that the content had in the home. pacer may be nil. It needs about 60 bytes of memory for
// each entry, and 30 for each chunk.
func (m *Manifest) CompareRestored(ctx context.Context, get GetRange, dir string, progress Progress, pacer *Pacer) error {
	var o opener
	root, err := o.open(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("open the restored home: %w", err)
	}
	defer unix.Close(root)
	c := &comparison{
		meter: meter{report: progress}, pacer: pacer, m: m, get: get, seed: maphash.MakeSeed(), store: chunkStore{known: map[chunkID]int64{}}, cutter: newCutter(),
		entries: make(map[uint64]expected, m.s.Entries), groups: map[uint64]uint64{}, special: map[string]*generationEntry{}, files: map[fileID]uint64{},
	}
	at := int64(0)
	for i := range m.s.packs {
		p := &m.s.packs[i]
		if !p.gone {
			if err := c.store.learn(ctx, get, p, at); err != nil {
				return err
			}
		}
		at += p.length
	}
	if err := c.expect(); err != nil {
		return err
	}
	walkCtx, cancel := context.WithCancel(ctx)
	walker := walk(walkCtx, root, &prover{}, OwnerMap{}, &live{now: time.Now, pacer: pacer})
	for it := range walker.ordered {
		<-it.done
		if err = walkCtx.Err(); err == nil {
			err = c.compare(walkCtx, it)
		}
		walker.recycle(it)
		if err != nil {
			break
		}
	}
	cancel()
	walker.finish()
	if err == nil && walker.err != nil {
		err = fmt.Errorf("read the restored home: %w", walker.err)
	}
	if err == nil {
		err = c.complete()
	}
	if err == nil {
		c.done()
	}
	return err
}

// comparison compares a restored home with a generation. Another file system may list the names of a
// folder in another order.
type comparison struct {
	meter
	pacer   *Pacer
	m       *Manifest
	get     GetRange
	seed    maphash.Seed
	store   chunkStore // of which only known is used
	cutter  *cutter
	entries map[uint64]expected         // by the hashes of their names; those that were not found yet
	groups  map[uint64]uint64           // how many names a file with hard links has, by its first one
	special map[string]*generationEntry // files whose content cannot be compared by chunks
	files   map[fileID]uint64           // which of the groups a file belongs to
}

// expected is an entry of the generation.
type expected struct {
	state uint64 // hash of its attributes and places
	first uint64 // of a hard link: the hash of the name of its file
}

func (c *comparison) id(name string) uint64 { return maphash.String(c.seed, name) }

func (c *comparison) expect() error {
	for e, err := range c.m.entries() {
		if err != nil {
			return err
		}
		x := expected{}
		switch {
		case e.kind == kindHardLink:
			x.first = c.id(e.link)
			c.groups[x.first] = max(c.groups[x.first], 1) + 1
		case e.sparse() || e.changed:
			// Another file system may have other holes, and a file that changed may have been cut as one of
			// another size.
			c.special[e.name] = e
		default:
			x.state = c.state(e)
		}
		c.entries[c.id(e.name)] = x
	}
	return nil
}

// state returns a hash of what a restore sets, and of the places of the content.
func (c *comparison) state(e *generationEntry) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	fmt.Fprint(&h, e.kind, e.mode, e.uid, e.gid, e.size, e.mtime.Sec, e.mtime.Nsec, len(e.link), e.link, merged(e.segments))
	for _, x := range sorted(e.xattrs) {
		fmt.Fprint(&h, len(x.name), x.name, len(x.value), x.value)
	}
	return h.Sum64()
}

func (c *comparison) compare(ctx context.Context, it *item) error {
	if it.err != nil {
		return fmt.Errorf("read %s of the restored home: %w", quoted(it.name), it.err)
	}
	id := c.id(it.name)
	want, ok := c.entries[id]
	if it.skip || !ok {
		return corrupted("%s was restored, and is not in the backup", quoted(it.name))
	}
	delete(c.entries, id)
	c.Entries++
	c.tick()
	if it.kind != kindFolder {
		if err := c.names(it, id, want); err != nil {
			return err
		}
	}
	if want.first != 0 {
		return nil // compared under its first name
	}
	if e := c.special[it.name]; e != nil {
		return c.content(ctx, it, e)
	}
	got := &generationEntry{entry: it.entry}
	if it.kind == kindFile {
		c.Bytes += it.size
		known, err := c.places(ctx, it, got)
		if err != nil {
			return fmt.Errorf("read %s of the restored home: %w", quoted(it.name), err)
		}
		if !known {
			return corrupted("the content of %s differs from the backup", quoted(it.name))
		}
	}
	if c.state(got) == want.state {
		return nil
	}
	e, err := c.m.find(it.name)
	if err != nil {
		return err
	}
	return c.content(ctx, it, e)
}

// names checks that the file of an item has the names that the generation says, and no others.
func (c *comparison) names(it *item, id uint64, want expected) error {
	group := id
	if want.first != 0 {
		group = want.first
	}
	names := max(c.groups[group], 1)
	if n := uint64(it.stat.Nlink); n != names {
		return corrupted("%s has %d names, and %d in the backup", quoted(it.name), n, names)
	}
	if names == 1 {
		return nil
	}
	file := idOf(&it.stat)
	if other, ok := c.files[file]; ok && other != group {
		return corrupted("%s is a hard link to another file than in the backup", quoted(it.name))
	}
	c.files[file] = group
	return nil
}

// places sets where the content of a file is in the packs. It reports whether they have all of its chunks.
func (c *comparison) places(ctx context.Context, it *item, e *generationEntry) (known bool, err error) {
	if it.changed {
		return false, ErrChanged
	}
	add := func(chunk []byte, sum [sha256.Size]byte) error {
		at, ok := c.store.known[chunkID(sum[:])]
		if !ok {
			return errUnknownChunk
		}
		e.segments = appendSegment(e.segments, segment{at, int64(len(chunk))})
		return nil
	}
	switch {
	case it.read && len(it.ready) > 0:
		err = add(it.ready, it.sum)
	case it.read:
	default:
		err = c.cutter.split(&pacedReader{*wholeOf(it), ctx, c.pacer}, it.size, func(chunk []byte) error {
			c.tick()
			return add(chunk, sha256.Sum256(chunk))
		})
	}
	if errors.Is(err, errUnknownChunk) {
		return false, nil
	}
	return err == nil, err
}

var errUnknownChunk = errors.New("no pack has a chunk of it")

// wholeOf reads an open file.
func wholeOf(it *item) *extentReader {
	return &extentReader{fd: it.fd, extents: []extent{{0, it.size}}}
}

// content compares an item with its entry byte by byte.
func (c *comparison) content(ctx context.Context, it *item, e *generationEntry) error {
	if !sameAttributes(&it.entry, &e.entry) {
		return corrupted("%s was restored with other attributes: %s instead of %s", quoted(it.name), described(&it.entry), described(&e.entry))
	}
	if e.kind != kindFile {
		return nil
	}
	different := corrupted("the content of %s differs from the backup", quoted(it.name))
	failed := func(err error) error {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return different
		}
		return fmt.Errorf("read %s of the restored home: %w", quoted(it.name), err)
	}
	var got io.ReaderAt = bytes.NewReader(it.ready)
	data, filled := []extent{{0, e.size}}, []extent{{0, e.size}}
	if e.sparse() {
		data = e.extents
	}
	if !it.read {
		got = openFile(it.fd)
		var err error
		if it.stat.Blocks*512 < it.size {
			if filled, err = findExtents(it.fd, &it.stat, maxExtents); err != nil {
				return failed(err)
			}
		}
	}
	r, err := c.m.contents(ctx, c.get, single(e), e)
	if err != nil {
		return err
	}
	defer r.stop()
	var buf [64 << 10]byte
	for _, x := range data {
		for at := x.offset; at < x.end(); {
			want, err := r.next(min(x.end()-at, int64(len(buf))))
			if err != nil {
				return err
			}
			b := buf[:len(want)]
			if _, err := got.ReadAt(b, at); err != nil {
				return failed(err)
			}
			if !bytes.Equal(b, want) {
				return different
			}
			at += int64(len(b))
		}
	}
	// What is a hole in the backup must be zeros.
	for _, x := range filled {
		for at := x.offset; at < x.end(); {
			for len(data) > 0 && data[0].end() <= at {
				data = data[1:]
			}
			end := x.end()
			if len(data) > 0 {
				if data[0].offset <= at {
					at = min(data[0].end(), end)
					continue
				}
				end = min(end, data[0].offset)
			}
			b := buf[:min(end-at, int64(len(buf)))]
			if _, err := got.ReadAt(b, at); err != nil {
				return failed(err)
			}
			if len(bytes.TrimLeft(b, "\x00")) > 0 {
				return different
			}
			at += int64(len(b))
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// openFile is an open file, by its descriptor.
type openFile int

func (f openFile) ReadAt(p []byte, at int64) (int, error) {
	r := &extentReader{fd: int(f), extents: []extent{{at, int64(len(p))}}}
	return io.ReadFull(r, p)
}

func single(e *generationEntry) iter.Seq2[*generationEntry, error] {
	return func(yield func(*generationEntry, error) bool) { yield(e, nil) }
}

// described describes an entry for an error.
func described(e *entry) string {
	s := fmt.Sprintf("kind %q, mode %04o, owner %d:%d, %d bytes, time %d.%09d", e.kind, e.mode, e.uid, e.gid, e.size, e.mtime.Sec, e.mtime.Nsec)
	if e.link != "" {
		s += ", target " + quoted(e.link)
	}
	for _, x := range sorted(e.xattrs) {
		s += fmt.Sprintf(", %q", x.name)
	}
	return s
}

// complete returns an error if an entry of the generation was not found.
func (c *comparison) complete() error {
	if len(c.entries) == 0 {
		return nil
	}
	for e, err := range c.m.entries() {
		if err != nil {
			return err
		}
		if _, missing := c.entries[c.id(e.name)]; missing {
			return corrupted("%s is in the backup, and was not restored", quoted(e.name))
		}
	}
	return nil
}
