package archive

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"sort"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

const (
	// magicManifest is the skippable frame at the end of a manifest: the mark, the offset of the summary in
	// 8 bytes, and the SHA-256 of everything before this frame.
	magicManifest = 0x184D2A5B
	manifestMark  = "codehub\x03"
	manifestEnd   = skipHeader + len(manifestMark) + 8 + sha256.Size

	// A block of entries ends after so many entries or bytes. A larger one than maxBlockSize, which only an
	// entry with a very fragmented content has, is refused.
	blockEntries   = 4096
	manifestBlock  = 512 << 10
	maxBlockSize   = 16 << 20
	maxSummarySize = 256 << 20
)

// columns are the fields of the entries of a block, each in a row of its own, because they compress better so
// than entry by entry.
type columns [columnCount][]byte

const (
	colKind = iota
	colFlags
	colName     // shared bytes of the previous name, number of other bytes
	colText     // those bytes; targets of links
	colOwner    // mode, uid, gid
	colMtime    // differences to the previous entry's
	colAtime    // "
	colCtime    // "
	colInode    // "
	colSize     // of a file
	colXattr    // number, then lengths of name and value
	colValue    // names and values of attributes
	colExtents  // number, then holes and lengths
	colSegments // number less one, differences of addresses, lengths of all but the last
	columnCount
)

// The bits of an entry's flags.
const (
	flagSettled = 1 << iota // has an inode and a ctime: it can be compared by these
	flagChanged             // while it was read
	flagXattrs              // has attributes
	flagSparse              // has extents
	flagCtime               // mtime is the ctime
	flagNoAtime             // is not known
	flagAtime               // atime is the mtime
	knownFlags  = 1<<iota - 1
)

// generationEntry is an entry of a manifest.
type generationEntry struct {
	entry
	settled, changed bool
	inode            uint64
	ctime            unix.Timespec
	segments         []segment
}

// coding is what an entry's fields are encoded against.
type coding struct {
	name                string
	mtime, atime, ctime unix.Timespec
	inode               uint64
	end                 int64 // address after the last segment
}

// manifestWriter encodes the entries of a manifest. It holds the compressed ones.
type manifestWriter struct {
	z       *zstd.Encoder
	last    coding
	cols    columns
	count   int // entries in cols
	out     []byte
	blocks  []int // compressed lengths
	headers hash.Hash
	former  []packInfo // of the former manifest
	ends    []int64    // their addresses
	used    []bool     // which of them are referred to
}

func newManifestWriter(former []packInfo) (*manifestWriter, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(maxBlockWindow))
	if err != nil {
		return nil, fmt.Errorf("create encoder: %w", err)
	}
	return &manifestWriter{z: z, headers: sha256.New(), former: former, ends: endsOf(former), used: make([]bool, len(former))}, nil
}

const maxBlockWindow = 1 << 20

// endsOf returns the address after each pack.
func endsOf(packs []packInfo) []int64 {
	ends, at := make([]int64, len(packs)), int64(0)
	for i, p := range packs {
		at += p.length
		ends[i] = at
	}
	return ends
}

// timeDiff appends a time as the difference to another.
func timeDiff(b []byte, t, last unix.Timespec) []byte {
	b = binary.AppendVarint(b, t.Sec-last.Sec)
	return binary.AppendVarint(b, t.Nsec-last.Nsec)
}

func (w *manifestWriter) number(col int, n int64) {
	w.cols[col] = binary.AppendUvarint(w.cols[col], uint64(n))
}

func (w *manifestWriter) text(col int, s string) { w.cols[col] = append(w.cols[col], s...) }

// add encodes an entry.
func (w *manifestWriter) add(e *generationEntry) error {
	var flags int64
	for _, f := range []struct {
		set bool
		bit int64
	}{
		{e.settled, flagSettled}, {e.changed, flagChanged}, {len(e.xattrs) > 0, flagXattrs}, {e.sparse(), flagSparse},
		{e.settled && e.mtime == e.ctime, flagCtime}, {e.atime == unix.Timespec{}, flagNoAtime}, {e.atime == e.mtime, flagAtime},
	} {
		if f.set {
			flags |= f.bit
		}
	}
	shared := 0
	for shared < min(len(e.name), len(w.last.name)) && e.name[shared] == w.last.name[shared] {
		shared++
	}
	w.cols[colKind] = append(w.cols[colKind], e.kind)
	w.number(colFlags, flags)
	w.number(colName, int64(shared))
	w.number(colName, int64(len(e.name)-shared))
	w.text(colText, e.name[shared:])
	w.number(colOwner, int64(e.mode))
	w.number(colOwner, int64(e.uid))
	w.number(colOwner, int64(e.gid))
	if e.settled {
		w.cols[colCtime] = timeDiff(w.cols[colCtime], e.ctime, w.last.ctime)
		w.cols[colInode] = binary.AppendVarint(w.cols[colInode], int64(e.inode-w.last.inode))
		w.last.ctime, w.last.inode = e.ctime, e.inode
	}
	if flags&flagCtime == 0 {
		w.cols[colMtime] = timeDiff(w.cols[colMtime], e.mtime, w.last.mtime)
	}
	if flags&(flagAtime|flagNoAtime) == 0 {
		w.cols[colAtime] = timeDiff(w.cols[colAtime], e.atime, w.last.atime)
	}
	w.last.name, w.last.mtime = e.name, e.mtime
	if flags&flagNoAtime == 0 {
		w.last.atime = e.atime
	}
	switch e.kind {
	case kindFile:
		w.number(colSize, e.size)
	case kindSymlink, kindHardLink:
		w.number(colName, int64(len(e.link)))
		w.text(colText, e.link)
	}
	if len(e.xattrs) > 0 {
		w.number(colXattr, int64(len(e.xattrs)))
		for _, x := range e.xattrs {
			w.number(colXattr, int64(len(x.name)))
			w.number(colXattr, int64(len(x.value)))
			w.text(colValue, x.name)
			w.text(colValue, string(x.value))
		}
	}
	if e.sparse() {
		w.number(colExtents, int64(len(e.extents)))
		end := int64(0)
		for _, x := range e.extents {
			w.number(colExtents, x.offset-end)
			w.number(colExtents, x.length)
			end = x.end()
		}
	}
	if len(e.segments) > 0 {
		w.number(colSegments, int64(len(e.segments)-1))
		for i, s := range e.segments {
			w.cols[colSegments] = binary.AppendVarint(w.cols[colSegments], s.at-w.last.end)
			if i < len(e.segments)-1 {
				w.number(colSegments, s.length)
			}
			w.last.end = s.at + s.length
			w.use(s)
		}
	}
	size := 0
	for _, c := range w.cols {
		size += len(c)
	}
	if w.count++; w.count == blockEntries || size >= manifestBlock {
		return w.flush()
	}
	return nil
}

// use notes the former packs that a segment is in.
func (w *manifestWriter) use(s segment) {
	for i := sort.Search(len(w.ends), func(i int) bool { return w.ends[i] > s.at }); i < len(w.ends); i++ {
		w.used[i] = true
		if w.ends[i] >= s.at+s.length {
			return
		}
	}
}

// flush compresses a block: the number of entries, then length and content of each column. A block can be read without
// the others.
func (w *manifestWriter) flush() error {
	if w.count == 0 {
		return nil
	}
	b := binary.AppendUvarint(nil, uint64(w.count))
	for i, c := range w.cols {
		b = append(binary.AppendUvarint(b, uint64(len(c))), c...)
		w.cols[i] = c[:0]
	}
	if len(b) > maxBlockSize {
		return fmt.Errorf("%w: the contents of %d entries from %s are in too many places", ErrUnrestorable, w.count, quoted(w.last.name))
	}
	before := len(w.out)
	w.out = w.z.EncodeAll(b, w.out)
	w.blocks = append(w.blocks, len(w.out)-before)
	w.count, w.last = 0, coding{}
	return nil
}

// finish returns the manifest with the packs that were added to those of the former one.
func (w *manifestWriter) finish(s *summary, added []packInfo) ([]byte, error) {
	if err := w.flush(); err != nil {
		return nil, err
	}
	s.blocks = w.blocks
	for i, p := range w.former {
		if !w.used[i] {
			p = packInfo{gone: true, length: p.length}
			if n := len(s.packs); n > 0 && s.packs[n-1].gone {
				s.packs[n-1].length += p.length
				continue
			}
		}
		s.packs = append(s.packs, p)
	}
	s.packs = append(s.packs, added...)
	s.headers = [sha256.Size]byte(w.headers.Sum(nil))
	length := len(w.out)
	b := w.z.EncodeAll(s.encode(), w.out)
	sum := sha256.Sum256(b)
	end := binary.LittleEndian.AppendUint64([]byte(manifestMark), uint64(length))
	return appendSkippable(b, magicManifest, append(end, sum[:]...)), nil
}

// summary is what a manifest has in addition to its entries.
type summary struct {
	Totals
	headers  [sha256.Size]byte
	blocks   []int
	packs    []packInfo
	problems []Problem
	fullRead int64 // when the last backup began that read all files, in Unix seconds
}

// Totals are the figures of a generation.
type Totals struct {
	Entries int64 // in the tar, the home itself included
	Files   int64
	Bytes   int64 // content of the files without holes
	Skipped int64 // sockets, FIFOs and devices, which are not in it
	Changed int64 // files that changed while they were read
	Stored  int64 // size of the packs that this generation added
}

// Problem is a file that could not be read and is not in the generation.
type Problem struct{ Name, Reason string }

func (t *Totals) all() []*int64 {
	return []*int64{&t.Entries, &t.Files, &t.Bytes, &t.Skipped, &t.Changed, &t.Stored}
}

func (s *summary) encode() (b []byte) {
	number := func(n int64) { b = binary.AppendUvarint(b, uint64(n)) }
	for _, n := range s.all() {
		number(*n)
	}
	b = append(b, s.headers[:]...)
	number(int64(len(s.blocks)))
	for _, n := range s.blocks {
		number(int64(n))
	}
	number(int64(len(s.packs)))
	for _, p := range s.packs {
		number(int64(len(p.frames)))
		if p.gone {
			number(p.length)
			continue
		}
		b = appendString(b, p.generation)
		number(int64(p.number))
		b = append(append(b, p.sum[:]...), p.index[:]...)
		number(p.size)
		for _, f := range p.frames {
			number(f.size)
			number(f.length)
			b = append(b, f.sum[:]...)
		}
	}
	number(int64(len(s.problems)))
	for _, p := range s.problems {
		b = appendString(appendString(b, p.Name), p.Reason)
	}
	number(s.fullRead)
	return b
}
