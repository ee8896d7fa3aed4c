package archive

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tailSize is how many bytes of the end of an archive are read first. They have the index of
	// about 70,000 entries.
	tailSize = 1 << 20
	// Limits of an index: of the frames in the seek table, of the frames of the table of
	// contents, and of all its records. A larger one is ErrNoIndex.
	maxSeekFrames = 1 << 20
	maxTOCFrames  = 256
	maxTOC        = 4 << 30
)

// ErrNoIndex: the archive has no index that this version reads. It can only be read as a whole.
var ErrNoIndex = errors.New("archive has no index")

// OpenRange reads so many bytes of an archive from an offset, in one request.
type OpenRange func(ctx context.Context, offset, length int64) (io.ReadCloser, error)

// Index is the index of an archive. It may be used concurrently.
type Index struct {
	open   OpenRange
	frames []seekFrame
	toc    []int // which of the frames are the table of contents
	tail   []byte
	tailAt int64
}

// seekFrame is where a frame ends in the archive and in its content.
type seekFrame struct{ end, content int64 }

// Entry is an entry of an archive.
type Entry struct {
	Name     string // path inside the home, of any bytes; "." for the home itself
	Mode     fs.FileMode
	UID, GID uint32
	Size     int64 // of a file
	ModTime  time.Time
	Link     string // target of a symbolic link
	SameAs   string // name of the file of which this is a further hard link
	Changed  bool   // while a backup read it
}

// CleanName returns the name of an entry for a path that begins at the home, with or without slashes
// at its beginning. The home itself is ".".
func CleanName(p string) string { return path.Clean(strings.TrimLeft(p, "/")) }

// OpenIndex reads the seek table of an archive of this size: with one request, or two if it is
// large. An error of open is returned unchanged.
func OpenIndex(ctx context.Context, size int64, open OpenRange) (*Index, error) {
	x := &Index{open: open, tailAt: size}
	if err := x.extend(ctx, size-min(size, tailSize), size); err != nil {
		return nil, err
	}
	footer := x.tail[max(0, len(x.tail)-seekFooter):]
	if len(footer) < seekFooter || binary.LittleEndian.Uint32(footer[5:]) != seekMark || footer[4] != 0 {
		return nil, ErrNoIndex
	}
	n := int64(binary.LittleEndian.Uint32(footer))
	length := n*seekEntry + seekFooter
	if n > maxSeekFrames {
		return nil, ErrNoIndex
	}
	if length+skipHeader > size {
		return nil, corrupted("seek table of %d frames", n)
	}
	if err := x.extend(ctx, size-length-skipHeader, size); err != nil {
		return nil, err
	}
	table := x.tail[int64(len(x.tail))-length-skipHeader:]
	if binary.LittleEndian.Uint32(table) != magicSeek || int64(binary.LittleEndian.Uint32(table[4:])) != length {
		return nil, corrupted("malformed seek table")
	}
	if err := x.setFrames(table[skipHeader:skipHeader+n*seekEntry], size-length-skipHeader); err != nil {
		return nil, err
	}
	if len(x.toc) == 0 || len(x.toc) > maxTOCFrames {
		return nil, ErrNoIndex
	}
	return x, nil
}

// setFrames sets the frames, which end at an offset.
func (x *Index) setFrames(table []byte, end int64) error {
	x.frames = make([]seekFrame, len(table)/seekEntry)
	var at seekFrame
	for i := range x.frames {
		content := binary.LittleEndian.Uint32(table[i*seekEntry+4:])
		at.end += int64(binary.LittleEndian.Uint32(table[i*seekEntry:]))
		at.content += int64(content)
		x.frames[i] = at
		if content > maxFrame {
			return corrupted("frame of %d bytes in the seek table", content)
		}
		if content == 0 {
			x.toc = append(x.toc, i)
		}
	}
	if at.end != end {
		return corrupted("the seek table describes another archive")
	}
	return nil
}

// start is where a frame begins.
func (x *Index) start(frame int) int64 {
	if frame == 0 {
		return 0
	}
	return x.frames[frame-1].end
}

// total returns the bytes of content up to the end of a frame.
func (x *Index) total(frame int) int64 {
	if frame < 0 {
		return 0
	}
	return x.frames[frame].content
}

// extend makes the tail of an archive of this size begin at an offset.
func (x *Index) extend(ctx context.Context, from, size int64) error {
	if from >= x.tailAt {
		return nil
	}
	r, err := x.open(ctx, from, x.tailAt-from)
	if err != nil {
		return err
	}
	defer r.Close()
	b := make([]byte, size-from)
	_, err = io.ReadFull(r, b[:x.tailAt-from])
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = corrupted("archive is cut short")
	}
	copy(b[x.tailAt-from:], x.tail)
	x.tail, x.tailAt = b, from
	return err
}

// reader reads a range of the archive.
func (x *Index) reader(ctx context.Context, from, to int64) (io.ReadCloser, error) {
	if from >= x.tailAt {
		return io.NopCloser(bytes.NewReader(x.tail[from-x.tailAt : to-x.tailAt])), nil
	}
	return x.open(ctx, from, to-from)
}

// Entries yields the entries in the order of the archive: a folder, then its content. It takes one
// request for each frame of the table of contents that is not in the last MiB. It ends after the
// first error, which may be ErrNoIndex. The entries before an error may be wrong.
func (x *Index) Entries(ctx context.Context) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for r, err := range x.records(ctx) {
			if err != nil {
				yield(Entry{}, err)
				return
			}
			if !yield(r.public(), nil) {
				return
			}
		}
	}
}

func (e *entry) public() Entry {
	p := Entry{Name: e.name, Mode: fs.FileMode(e.mode & 0o777), UID: e.uid, GID: e.gid, Size: e.size, ModTime: time.Unix(e.mtime.Sec, e.mtime.Nsec)}
	if e.mode&unix.S_ISUID != 0 {
		p.Mode |= fs.ModeSetuid
	}
	if e.mode&unix.S_ISGID != 0 {
		p.Mode |= fs.ModeSetgid
	}
	if e.mode&unix.S_ISVTX != 0 {
		p.Mode |= fs.ModeSticky
	}
	switch e.kind {
	case kindFolder:
		p.Mode |= fs.ModeDir
	case kindSymlink:
		p.Mode |= fs.ModeSymlink
		p.Link = e.link
	case kindHardLink:
		p.SameAs = e.link
	}
	return p
}

// Open returns a file's content and its entry; of a further hard link, those of the file. It
// reads the frames that the file is in, with one request. The error of another kind of entry is
// fs.ErrInvalid, and that of an unknown name fs.ErrNotExist.
func (x *Index) Open(ctx context.Context, name string) (io.ReadCloser, Entry, error) {
	found, end, err := x.find(ctx, name)
	if err == nil && found.kind == kindHardLink {
		found, end, err = x.find(ctx, found.link)
	}
	if err != nil {
		return nil, Entry{}, err
	}
	if found.kind != kindFile {
		return nil, Entry{}, fmt.Errorf("%s is not a file: %w", quoted(name), fs.ErrInvalid)
	}
	holding := func(offset int64) int { // the first frame that ends after it
		return sort.Search(len(x.frames), func(i int) bool { return x.frames[i].content > offset })
	}
	first, last := holding(found.offset), holding(end-1)
	body, err := x.open(ctx, x.start(first), x.frames[last].end-x.start(first))
	if err != nil {
		return nil, Entry{}, err
	}
	d, err := newStream(ctx, body)
	if err != nil {
		body.Close()
		return nil, Entry{}, err
	}
	tar := tarReader{src: &source{refill: d.next}}
	f := &file{content: tar.content, size: found.size, close: func() error {
		d.stop()
		return body.Close()
	}}
	if f.extents, err = begin(&tar, &found.entry, found.offset-x.total(first-1)); err != nil {
		f.Close()
		return nil, Entry{}, err
	}
	return f, found.public(), nil
}

// find returns the record of a name, and where the next one's entry begins.
func (x *Index) find(ctx context.Context, name string) (found record, end int64, err error) {
	end = x.total(len(x.frames) - 1)
	for r, err := range x.records(ctx) {
		switch {
		case err != nil:
			return record{}, 0, err
		case found.name != "":
			return found, r.offset, nil
		case r.name == name:
			found = r
		}
	}
	if found.name == "" {
		err = fmt.Errorf("%s: %w", quoted(name), fs.ErrNotExist)
	}
	return found, end, err
}

// file is the content of a file, holes included.
type file struct {
	content func(limit int64) ([]byte, error) // of the data
	close   func() error
	extents []extent
	at      int64
	size    int64
}

// begin reads the header of a file, which is at an offset and must be that of want. It returns where its data is.
func begin(tar *tarReader, want *entry, offset int64) ([]extent, error) {
	if err := tar.src.skip(offset); err != nil {
		return nil, err
	}
	e, err := tar.next()
	if err == io.EOF {
		err = corrupted("no entry")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", quoted(want.name), err)
	}
	if e.name != want.name || e.kind != want.kind || e.link != want.link || e.mode != want.mode || e.uid != want.uid ||
		e.gid != want.gid || e.size != want.size || e.mtime != want.mtime {
		return nil, corrupted("the table of contents describes %s otherwise than the tar", quoted(want.name))
	}
	if !e.sparse() {
		return []extent{{0, e.size}}, nil
	}
	return e.extents, nil
}

func (f *file) Read(p []byte) (int, error) {
	for len(f.extents) > 0 && f.at == f.extents[0].end() {
		f.extents = f.extents[1:]
	}
	hole := f.size - f.at
	if len(f.extents) > 0 {
		hole = f.extents[0].offset - f.at
	}
	n := min(int64(len(p)), hole)
	switch {
	case f.at == f.size:
		return 0, io.EOF
	case hole > 0:
		clear(p[:n])
	default:
		b, err := f.content(min(int64(len(p)), f.extents[0].end()-f.at))
		if err != nil {
			return 0, err
		}
		n = int64(copy(p, b))
	}
	f.at += n
	return int(n), nil
}

func (f *file) Close() error { return f.close() }
