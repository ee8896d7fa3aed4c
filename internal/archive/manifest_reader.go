package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// maxManifest limits the size of a manifest: one of a million entries has about 20 MB.
const maxManifest = 512 << 20

// Manifest is a generation: the entries of a home, and where their content is. It holds the
// manifest compressed. It may be used concurrently.
type Manifest struct {
	s    summary
	b    []byte // the blocks
	ends []int64
	size int64 // of all of it
	sum  [sha256.Size]byte
}

var errManifest = errors.New("malformed manifest")

// ReadManifest reads a manifest to its end. An error of r is returned unchanged, anything that
// Backup would not write is ErrCorrupted.
func ReadManifest(r io.Reader) (*Manifest, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return nil, err
	}
	return decodeManifest(b)
}

// decodeManifest decodes a manifest, which keeps b.
func decodeManifest(b []byte) (*Manifest, error) {
	at := len(b) - manifestEnd
	if at < 0 || len(b) > maxManifest {
		return nil, corrupted("manifest of %d bytes", len(b))
	}
	end := b[at:]
	if binary.LittleEndian.Uint32(end) != magicManifest || int(binary.LittleEndian.Uint32(end[4:])) != len(end)-skipHeader ||
		!bytes.HasPrefix(end[skipHeader:], []byte(manifestMark)) {
		return nil, corrupted("not a manifest that this version reads")
	}
	end = end[skipHeader+len(manifestMark):]
	from := binary.LittleEndian.Uint64(end)
	if sum := sha256.Sum256(b[:at]); from > uint64(at) || !bytes.Equal(sum[:], end[8:]) {
		return nil, corrupted("digest of the manifest differs")
	}
	m := &Manifest{b: b[:from], size: int64(len(b)), sum: sha256.Sum256(b)}
	raw, err := inflate(b[from:at], maxSummarySize)
	if err == nil {
		err = m.s.decode(raw, int64(from))
	}
	if err != nil {
		return nil, corrupted("manifest: %w", err)
	}
	m.ends = endsOf(m.s.packs)
	return m, nil
}

func newInflater(most uint64) (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(most), zstd.WithDecoderMaxWindow(maxFrame))
}

func inflate(b []byte, most uint64) ([]byte, error) {
	z, err := newInflater(most)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	return z.DecodeAll(b, nil)
}

// fields reads numbers and texts. After an error it returns zeros.
type fields struct {
	b   []byte
	bad bool
}

func (f *fields) number(most int64) int64 {
	n, size := binary.Uvarint(f.b)
	if size <= 0 || n > uint64(most) {
		f.b, f.bad = nil, true
		return 0
	}
	f.b = f.b[size:]
	return int64(n)
}

func (f *fields) signed() int64 {
	n, size := binary.Varint(f.b)
	if size <= 0 {
		f.b, f.bad = nil, true
		return 0
	}
	f.b = f.b[size:]
	return n
}

func (f *fields) text(n int64) []byte {
	if n > int64(len(f.b)) {
		f.b, f.bad = nil, true
		return nil
	}
	b := f.b[:n:n]
	f.b = f.b[n:]
	return b
}

// count reads the number of things that have at least so many bytes each.
func (f *fields) count(size int) int { return int(f.number(int64(len(f.b) / size))) }

func (f *fields) sum() (sum [sha256.Size]byte) {
	copy(sum[:], f.text(sha256.Size))
	return sum
}

// decode decodes the summary of a manifest with so many bytes of blocks.
func (s *summary) decode(b []byte, size int64) error {
	f := fields{b: b}
	const most = 1<<60 - 1
	generation := ""
	for _, n := range s.all() {
		*n = f.number(most)
	}
	s.headers = f.sum()
	for range f.count(1) {
		n := f.number(size)
		s.blocks = append(s.blocks, int(n))
		size -= n
	}
	address := int64(0)
	for range f.count(2) {
		p := packInfo{}
		if frames := f.number(maxPackFrames); frames == 0 {
			p.gone, p.length = true, f.number(most)
		} else {
			// The generation of many packs is the same string.
			if name := f.text(f.number(maxGeneration)); string(name) != generation {
				generation = string(name)
			}
			p.generation, p.number = generation, int(f.number(maxPackNumber))
			p.sum, p.index, p.size = f.sum(), f.sum(), f.number(1<<32)
			for range frames {
				x := packFrame{size: f.number(maxFrame + maxFrame/8), length: f.number(frameSize), sum: f.sum()}
				p.frames, p.length = append(p.frames, x), p.length+x.length
			}
			f.bad = f.bad || p.indexAt() >= p.size || !validGeneration(generation)
		}
		address += p.length
		f.bad = f.bad || address > most
		if f.bad {
			return errManifest
		}
		s.packs = append(s.packs, p)
	}
	for range f.count(2) {
		s.problems = append(s.problems, Problem{string(f.text(f.number(maxHeader))), string(f.text(f.number(maxHeader)))})
	}
	s.fullRead = f.number(most)
	if f.bad || len(f.b) > 0 || size != 0 {
		return errManifest
	}
	return nil
}

// Totals returns the figures of the generation.
func (m *Manifest) Totals() Totals { return m.s.Totals }

// Problems lists the files that are not in the generation, because they could not be read.
func (m *Manifest) Problems() []Problem { return slices.Clone(m.s.problems) }

// FullRead returns when the last backup up to this generation began that read all files, also those that looked
// unchanged.
func (m *Manifest) FullRead() time.Time {
	return time.Unix(m.s.fullRead, 0)
}

// FullReadDue reports whether the next backup should read files that look unchanged, too: a program that writes
// by a memory map can change a file without a new time.
func (m *Manifest) FullReadDue(now time.Time) bool {
	return now.Sub(m.FullRead()) > 7*24*time.Hour
}

// Size is the size of the manifest in bytes, and Digest its SHA-256 in hex.
func (m *Manifest) Size() int64 { return m.size }

// Digest is described at Size.
func (m *Manifest) Digest() string { return hex.EncodeToString(m.sum[:]) }

// Packs yields the names and sizes of the packs that the generation needs.
func (m *Manifest) Packs() iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		for _, p := range m.s.packs {
			if !p.gone && !yield(p.name(), p.size) {
				return
			}
		}
	}
}

// entries yields the entries. It ends after the first error.
func (m *Manifest) entries() iter.Seq2[*generationEntry, error] { return m.entriesFrom(0) }

// entriesFrom yields the entries of a block and those after it.
func (m *Manifest) entriesFrom(first int) iter.Seq2[*generationEntry, error] {
	return func(yield func(*generationEntry, error) bool) {
		z, err := newInflater(maxBlockSize)
		if err != nil {
			yield(nil, err)
			return
		}
		defer z.Close()
		b, total := m.b, int64(0)
		var names tarReader
		for i, n := range m.s.blocks {
			if i < first {
				b = b[n:]
				continue
			}
			raw, err := z.DecodeAll(b[:n], nil)
			b = b[n:]
			if err != nil {
				yield(nil, corrupted("block %d of the manifest: %w", i, err))
				return
			}
			r, err := newBlockReader(raw, m, &names)
			for err == nil && r.left > 0 {
				var e *generationEntry
				if e, err = r.next(); err == nil {
					if total++; !yield(e, nil) {
						return
					}
				}
			}
			if err == nil {
				err = r.end()
			}
			if err != nil {
				yield(nil, corrupted("block %d of the manifest: %w", i, err))
				return
			}
		}
		if first == 0 && total != m.s.Entries {
			yield(nil, corrupted("manifest has %d entries, want %d", total, m.s.Entries))
		}
	}
}

// restorable returns an error if Unpack would refuse the entries. It needs about 20 bytes of memory for each. A name
// that occurs twice, because it was removed and created again during the walk, is ErrChanged.
func (m *Manifest) restorable() error {
	seed := maphash.MakeSeed()
	names := make(map[uint64]bool, m.s.Entries) // whether a hard link may be to it
	headers, files, bytes := sha256.New(), int64(0), int64(0)
	var header []byte
	for e, err := range m.entries() {
		if err == nil {
			header, err = appendHeader(header[:0], &e.entry)
		}
		if err != nil {
			return err
		}
		headers.Write(header)
		id := maphash.String(seed, e.name)
		if _, ok := names[id]; ok {
			return fmt.Errorf("%w: %s is listed twice", ErrChanged, quoted(e.name))
		}
		names[id] = e.kind == kindFile || e.kind == kindSymlink
		if e.kind == kindHardLink && !names[maphash.String(seed, e.link)] {
			return fmt.Errorf("%s is a hard link to %s, which is not a file before it", quoted(e.name), quoted(e.link))
		}
		if e.kind == kindFile {
			files, bytes = files+1, bytes+e.stored()
		}
	}
	if [sha256.Size]byte(headers.Sum(nil)) != m.s.headers || files != m.s.Files || bytes != m.s.Bytes {
		return errors.New("the entries differ from those that were added")
	}
	return nil
}

// blockReader decodes the entries of a block.
type blockReader struct {
	m     *Manifest
	names *tarReader // checks names
	cols  [columnCount]fields
	left  int64
	last  coding
}

func newBlockReader(raw []byte, m *Manifest, names *tarReader) (*blockReader, error) {
	f := fields{b: raw}
	r := &blockReader{m: m, names: names, left: f.number(blockEntries)}
	for i := range r.cols {
		r.cols[i].b = f.text(f.number(maxBlockSize))
	}
	if f.bad || len(f.b) > 0 {
		return nil, errManifest
	}
	return r, nil
}

// end checks that nothing is left.
func (r *blockReader) end() error {
	for _, c := range r.cols {
		if c.bad || len(c.b) > 0 {
			return errManifest
		}
	}
	return nil
}

func (r *blockReader) number(col int, most int64) int64 { return r.cols[col].number(most) }

func (r *blockReader) text(lengths, col int, most int64) []byte {
	return r.cols[col].text(r.number(lengths, most))
}

func (r *blockReader) time(col int, last unix.Timespec) unix.Timespec {
	t := unix.Timespec{Sec: last.Sec + r.cols[col].signed(), Nsec: last.Nsec + r.cols[col].signed()}
	if t.Nsec < 0 || t.Nsec >= 1e9 {
		r.cols[col].bad = true
	}
	return t
}

func (r *blockReader) next() (*generationEntry, error) {
	r.left--
	e := &generationEntry{}
	if kind := r.cols[colKind].text(1); len(kind) == 1 {
		e.kind = kind[0]
	}
	flags := r.number(colFlags, knownFlags)
	shared := r.number(colName, int64(len(r.last.name)))
	e.name = r.last.name[:shared] + string(r.text(colName, colText, maxHeader))
	e.mode = uint32(r.number(colOwner, 0o7777))
	e.uid, e.gid = uint32(r.number(colOwner, math.MaxUint32-1)), uint32(r.number(colOwner, math.MaxUint32-1))
	e.changed, e.settled = flags&flagChanged != 0, flags&flagSettled != 0
	if e.settled {
		e.ctime = r.time(colCtime, r.last.ctime)
		e.inode = r.last.inode + uint64(r.cols[colInode].signed())
		r.last.ctime, r.last.inode = e.ctime, e.inode
	}
	if e.mtime = e.ctime; flags&flagCtime == 0 {
		e.mtime = r.time(colMtime, r.last.mtime)
	}
	switch {
	case flags&flagNoAtime != 0:
	case flags&flagAtime != 0:
		e.atime = e.mtime
	default:
		e.atime = r.time(colAtime, r.last.atime)
	}
	r.last.name, r.last.mtime = e.name, e.mtime
	if flags&flagNoAtime == 0 {
		r.last.atime = e.atime
	}
	ok := true
	switch e.kind {
	case kindFile:
		e.size = r.number(colSize, maxFileSize)
	case kindSymlink, kindHardLink:
		e.link = string(r.text(colName, colText, maxHeader))
	case kindFolder:
	default:
		ok = false
	}
	if flags&flagXattrs != 0 {
		for range r.cols[colXattr].count(2) {
			name, size := r.number(colXattr, maxName), r.number(colXattr, maxHeader)
			e.xattrs = append(e.xattrs, xattr{string(r.cols[colValue].text(name)), r.cols[colValue].text(size)})
			ok = ok && wantedXattr(e.xattrs[len(e.xattrs)-1].name)
		}
	}
	if flags&flagSparse != 0 {
		ok = ok && e.kind == kindFile && r.extents(e)
	}
	if ok && e.stored() > 0 {
		ok = r.segments(e)
	}
	for i := range r.cols {
		ok = ok && !r.cols[i].bad
	}
	if !ok {
		return nil, errManifest
	}
	return e, r.check(e)
}

func (r *blockReader) extents(e *generationEntry) bool {
	n := r.cols[colExtents].number(maxExtents)
	e.extents = make([]extent, 0, min(n, int64(len(r.cols[colExtents].b))))
	end := int64(0)
	for range n {
		x := extent{end + r.number(colExtents, maxFileSize), r.number(colExtents, maxFileSize)}
		if end = x.end(); x.length <= 0 || end > e.size || r.cols[colExtents].bad {
			return false
		}
		e.extents = append(e.extents, x)
	}
	return true
}

func (r *blockReader) segments(e *generationEntry) bool {
	col := &r.cols[colSegments]
	left := e.stored()
	total := int64(0)
	if n := len(r.m.ends); n > 0 {
		total = r.m.ends[n-1]
	}
	for n := col.count(1) + 1; n > 0; n-- {
		s := segment{at: r.last.end + col.signed(), length: left}
		if n > 1 {
			s.length = col.number(left)
		}
		if s.at < 0 || s.length <= 0 || s.at > total || s.length > total-s.at || col.bad {
			return false
		}
		left, r.last.end = left-s.length, s.at+s.length
		e.segments = append(e.segments, s)
	}
	return left == 0
}

// check checks the names of an entry.
func (r *blockReader) check(e *generationEntry) error {
	name, err := r.names.cleanName(e.name, e.kind == kindFolder)
	if err == nil && name != e.name {
		err = errManifest
	}
	if err == nil && e.kind == kindHardLink {
		if name, err = r.names.cleanName(e.link, false); err == nil && name != e.link {
			err = errManifest
		}
	}
	if err == nil && e.kind == kindSymlink && (e.link == "" || len(e.link) > maxLink) {
		err = fmt.Errorf("link of %d bytes", len(e.link))
	}
	return err
}
