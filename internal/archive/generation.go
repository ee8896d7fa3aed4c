package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"iter"
	"slices"
	"sort"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// GetRange reads so many bytes of an object from an offset, in one request.
type GetRange func(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error)

const (
	// keptFrames are the frames of packs that are kept decompressed: about 64 MiB with those in progress.
	keptFrames = 10
	// plannedPieces are fetched before they are needed.
	plannedPieces = 4
)

// Entries yields the entries in the order of the tar: a folder, then its content. It ends after the
// first error.
func (m *Manifest) Entries() iter.Seq2[Entry, error] { return public(m.entries()) }

func public(entries iter.Seq2[*generationEntry, error]) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for e, err := range entries {
			if err != nil {
				yield(Entry{}, err)
				return
			}
			p := e.public()
			p.Changed = e.changed
			if !yield(p, nil) {
				return
			}
		}
	}
}

// Open returns a file's content and its entry; of a further hard link, those of the file. A file
// of up to 1 MiB takes one request. See Index.Open for the errors.
func (m *Manifest) Open(ctx context.Context, get GetRange, name string) (io.ReadCloser, Entry, error) {
	e, err := m.find(name)
	if err == nil && e.kind == kindHardLink {
		e, err = m.find(e.link)
	}
	if err != nil {
		return nil, Entry{}, err
	}
	if e.kind != kindFile {
		return nil, Entry{}, fmt.Errorf("%s is not a file: %w", quoted(name), fs.ErrInvalid)
	}
	r, err := m.contents(ctx, get, single(e), e)
	if err != nil {
		return nil, Entry{}, err
	}
	f := &file{content: r.next, close: r.stop, extents: e.extents, size: e.size}
	if !e.sparse() {
		f.extents = []extent{{0, e.size}}
	}
	p := e.public()
	p.Changed = e.changed
	return f, p, nil
}

// Unpack restores the generation like Unpack of its archive.
func (m *Manifest) Unpack(ctx context.Context, get GetRange, dir string, opts UnpackOptions) (Stats, error) {
	t, err := m.tar(ctx, get, nil)
	if err != nil {
		return Stats{}, err
	}
	defer t.stop()
	stats, err := unpack(ctx, t, dir, opts, unix.Syncfs)
	if err == nil && (stats.Entries != m.s.Entries || stats.Files != m.s.Files || stats.Bytes != m.s.Bytes) {
		err = corrupted("generation has %d entries, %d files and %d bytes; want %d, %d and %d",
			stats.Entries, stats.Files, stats.Bytes, m.s.Entries, m.s.Files, m.s.Bytes)
	}
	if err != nil {
		return Stats{}, err
	}
	return stats, nil
}

// Export writes the generation to w as an archive: the same bytes that Pack would have written.
func (m *Manifest) Export(ctx context.Context, get GetRange, w io.Writer) (Stats, error) {
	c, err := newCompressor(ctx, w)
	if err != nil {
		return Stats{}, err
	}
	toc := c.toc()
	t, err := m.tar(ctx, get, func(e *entry, offset int64) { toc.add(e, offset) })
	if err == nil {
		defer t.stop()
		for err == nil {
			var b []byte
			if b, err = t.next(); err == nil {
				if c.after == nil && len(toc.out) >= tocFrame {
					c.after = toc.frame()
				}
				_, err = c.Write(b)
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err != nil {
		c.cancel(err)
	}
	if err := c.finish(toc); err != nil {
		return Stats{}, err
	}
	return Stats{Entries: m.s.Entries, Files: m.s.Files, Bytes: m.s.Bytes, Skipped: m.s.Skipped, Size: c.size, SHA256: c.digest()}, nil
}

// contents reads the content of entries, in their order. It fetches ahead.
type contents struct {
	cancel  context.CancelFunc
	ctx     context.Context
	pieces  chan piece
	present piece
	err     error // valid when pieces is closed
}

// piece is a part of a frame.
type piece struct {
	*fetched
	from, to int64
}

// fetched is a frame of a pack, fetched and decompressed.
type fetched struct {
	number int
	done   chan struct{}
	b      []byte
	err    error
}

// frameOf is a frame in the order of the addresses.
type frameOf struct {
	pack   int
	offset int64 // in the pack
	at     int64 // address
	packFrame
}

// contents starts to fetch the content of entries. If only is not nil, it is the only one.
func (m *Manifest) contents(ctx context.Context, get GetRange, entries iter.Seq2[*generationEntry, error], only *generationEntry) (*contents, error) {
	n := workers()
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(n), zstd.WithDecoderMaxMemory(maxFrame), zstd.WithDecoderMaxWindow(maxFrame))
	if err != nil {
		return nil, err
	}
	var frames []frameOf
	at := int64(0)
	for i, p := range m.s.packs {
		offset := int64(0)
		for _, f := range p.frames {
			frames = append(frames, frameOf{i, offset, at + offsetOf(frames, i, at), f})
			offset += f.size
		}
		at += p.length
	}
	c := &contents{pieces: make(chan piece, plannedPieces)}
	c.ctx, c.cancel = context.WithCancel(ctx)
	fetch := func(f *fetched) {
		defer close(f.done)
		x := &frames[f.number]
		f.b, f.err = m.frame(c.ctx, get, z, x, x.needed(only))
	}
	go func() {
		defer close(c.pieces)
		c.err = c.plan(frames, entries, fetch)
	}()
	return c, nil
}

// needed returns how many of the first bytes of a frame are needed for an entry; nil: for any.
func (f *frameOf) needed(e *generationEntry) (n int64) {
	if e == nil {
		return f.length
	}
	for _, s := range e.segments {
		if s.at < f.at+f.length {
			n = max(n, min(s.at+s.length-f.at, f.length))
		}
	}
	return n
}

// offsetOf returns where the next frame of a pack begins in its content.
func offsetOf(frames []frameOf, pack int, at int64) int64 {
	if n := len(frames); n > 0 && frames[n-1].pack == pack {
		return frames[n-1].at + frames[n-1].length - at
	}
	return 0
}

// plan sends the pieces of the entries, and starts to fetch their frames.
func (c *contents) plan(frames []frameOf, entries iter.Seq2[*generationEntry, error], fetch func(*fetched)) error {
	var kept []*fetched // the last used one is the last
	var waiting piece
	send := func(p piece) error {
		if p.fetched == nil {
			return nil
		}
		select {
		case c.pieces <- p:
			return nil
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
	}
	for e, err := range entries {
		if err != nil {
			return errors.Join(send(waiting), err)
		}
		for _, s := range e.segments {
			for i := sort.Search(len(frames), func(i int) bool { return frames[i].at+frames[i].length > s.at }); s.length > 0; i++ {
				if i >= len(frames) || frames[i].at > s.at {
					return errors.Join(send(waiting), corrupted("%s is in a pack that the manifest does not have", quoted(e.name)))
				}
				from := s.at - frames[i].at
				n := min(s.length, frames[i].length-from)
				s.at, s.length = s.at+n, s.length-n
				if waiting.fetched != nil && waiting.number == i && waiting.to == from {
					waiting.to += n
					continue
				}
				if err := send(waiting); err != nil {
					return err
				}
				at := slices.IndexFunc(kept, func(f *fetched) bool { return f.number == i })
				var f *fetched
				if at >= 0 {
					f = kept[at]
					kept = slices.Delete(kept, at, at+1)
				} else {
					f = &fetched{number: i, done: make(chan struct{})}
					go fetch(f)
					if len(kept) == keptFrames {
						kept = slices.Delete(kept, 0, 1)
					}
				}
				kept = append(kept, f)
				waiting = piece{f, from, from + n}
			}
		}
	}
	return send(waiting)
}

// frame fetches a frame, and decompresses so many of its first bytes.
func (m *Manifest) frame(ctx context.Context, get GetRange, z *zstd.Decoder, f *frameOf, needed int64) ([]byte, error) {
	name := m.s.packs[f.pack].name()
	r, err := get(ctx, name, f.offset, f.size)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b := make([]byte, f.size)
	if _, err := io.ReadFull(r, b); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, corrupted("%s is cut short", name)
	} else if err != nil {
		return nil, err
	}
	if sha256.Sum256(b) != f.sum {
		return nil, corrupted("digest of a frame of %s differs", name)
	}
	if needed < f.length {
		if b, err = firstBytes(b, needed); err != nil {
			return nil, corrupted("%s: %w", name, err)
		}
		return b, nil
	}
	b, err = z.DecodeAll(b, make([]byte, 0, f.length))
	if err == nil && int64(len(b)) != f.length {
		err = fmt.Errorf("frame of %d bytes, want %d", len(b), f.length)
	}
	if err != nil {
		return nil, corrupted("%s: %w", name, err)
	}
	return b, nil
}

// firstBytes decompresses the first n bytes of a frame, whose digest has been compared.
func firstBytes(frame []byte, n int64) ([]byte, error) {
	z, err := zstd.NewReader(bytes.NewReader(frame), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxFrame), zstd.WithDecoderMaxWindow(maxFrame))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	b := make([]byte, n)
	_, err = io.ReadFull(z, b)
	return b, err
}

// next returns up to limit bytes, or io.EOF after the last.
func (c *contents) next(limit int64) ([]byte, error) {
	for c.present.from == c.present.to {
		p, ok := <-c.pieces
		if !ok {
			if c.err != nil {
				return nil, c.err
			}
			return nil, io.EOF
		}
		select {
		case <-p.done:
		case <-c.ctx.Done():
			return nil, c.ctx.Err()
		}
		if p.err != nil {
			return nil, p.err
		}
		c.present = p
	}
	p := &c.present
	n := min(limit, p.to-p.from)
	b := p.b[p.from : p.from+n]
	p.from += n
	return b, nil
}

func (c *contents) stop() error {
	c.cancel()
	return nil
}

// generationTar is the tar of a generation.
type generationTar struct {
	m        *Manifest
	ctx      context.Context
	contents *contents
	entry    func() (*generationEntry, error, bool)
	ended    func()
	begin    func(e *entry, offset int64) // called for each entry; nil: not wanted
	left     int64                        // of the content of the present entry
	pad      int64
	buf      []byte
	at       int64 // bytes returned, and in buf
	headers  hash.Hash
	part     bool // not of the whole generation, whose headers have a digest
	last     bool
}

func (m *Manifest) tar(ctx context.Context, get GetRange, begin func(*entry, int64)) (*generationTar, error) {
	return m.tarOf(ctx, get, m.entries(), begin)
}

// tarOf is the tar of entries, which are iterated over twice, concurrently.
func (m *Manifest) tarOf(ctx context.Context, get GetRange, entries iter.Seq2[*generationEntry, error], begin func(*entry, int64)) (*generationTar, error) {
	c, err := m.contents(ctx, get, entries, nil)
	if err != nil {
		return nil, err
	}
	t := &generationTar{m: m, ctx: ctx, contents: c, begin: begin, headers: sha256.New()}
	t.entry, t.ended = iter.Pull2(entries)
	return t, nil
}

// next returns the next piece of the tar, valid until the next call, or io.EOF if all of it agrees with the
// manifest.
func (t *generationTar) next() ([]byte, error) {
	if err := t.ctx.Err(); err != nil {
		return nil, err
	}
	if t.left > 0 {
		b, err := t.contents.next(t.left)
		if err == io.EOF {
			err = corrupted("content is cut short")
		}
		t.left -= int64(len(b))
		t.at += int64(len(b))
		return b, err
	}
	if t.last {
		return nil, io.EOF
	}
	t.buf = appendZeros(t.buf[:0], t.pad)
	t.at, t.pad = t.at+t.pad, 0
	for t.left == 0 && !t.last && len(t.buf) < 64<<10 {
		e, err, ok := t.entry()
		if err != nil {
			return nil, err
		}
		if !ok {
			if !t.part && [sha256.Size]byte(t.headers.Sum(nil)) != t.m.s.headers {
				return nil, corrupted("digest of the headers differs")
			}
			t.last = true
			t.buf = append(t.buf, make([]byte, 2*blockSize)...)
			break
		}
		if t.begin != nil {
			t.begin(&e.entry, t.at)
		}
		from := len(t.buf)
		if t.buf, err = appendHeader(t.buf, &e.entry); err != nil {
			return nil, corrupted("%w", err)
		}
		t.headers.Write(t.buf[from:])
		t.at += int64(len(t.buf) - from)
		t.left = e.stored()
		t.pad = padding(t.left)
	}
	return t.buf, nil
}

func (t *generationTar) stop() {
	t.ended()
	t.contents.stop()
}

// size and digest are those of no archive.
func (t *generationTar) size() int64    { return 0 }
func (t *generationTar) digest() string { return "" }
