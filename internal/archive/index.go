package archive

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// The index of an archive (docs/archives.md): its table of contents in skippable frames, then
// a seek table as the last frame.
const (
	magicTOC  = 0x184D2A5D
	magicSeek = 0x184D2A5E // zstd's seekable format
	seekMark  = 0x8F92EAB1 // its last four bytes

	seekEntry  = 8 // bytes of a frame in the seek table
	seekFooter = 9
	skipHeader = 8 // of a skippable frame: magic number and length

	// tocMark begins the content of each frame of the table of contents; its last byte is the
	// version.
	tocMark = "codehub\x01"
	// tocPiece is about how many bytes of records are compressed together.
	tocPiece = 256 << 10
	// tocFrame is about how many compressed bytes of records are held in memory before they are
	// written to the archive. An entry has about 14.
	tocFrame = 16 << 20
	kindEnd  = 0 // of the record after the last entry
)

// tocWriter writes the records of the table of contents, which depend only on the tar.
type tocWriter struct {
	name     string // of the last entry
	block    int64  // of its header
	entries  uint64
	sum      hash.Hash
	records  []byte
	compress func(piece, to []byte) []byte // nil: only the digest is wanted
	out      []byte                        // the next frame
}

func newTOCWriter(compress func(piece, to []byte) []byte) *tocWriter {
	return &tocWriter{sum: sha256.New(), compress: compress, out: appendSkippable(nil, magicTOC, []byte(tocMark))}
}

// add appends the record of an entry whose header begins at this offset of the tar.
func (t *tocWriter) add(e *entry, offset int64) {
	shared := 0
	for shared < min(len(e.name), len(t.name)) && e.name[shared] == t.name[shared] {
		shared++
	}
	b := append(t.records, e.kind)
	b = binary.AppendUvarint(b, uint64(offset/blockSize-t.block))
	b = binary.AppendUvarint(b, uint64(shared))
	b = appendString(b, e.name[shared:])
	b = binary.AppendUvarint(b, uint64(e.mode))
	b = binary.AppendUvarint(b, uint64(e.uid))
	b = binary.AppendUvarint(b, uint64(e.gid))
	b = binary.AppendVarint(b, e.mtime.Sec)
	b = binary.AppendUvarint(b, uint64(e.mtime.Nsec))
	switch e.kind {
	case kindFile:
		b = binary.AppendUvarint(b, uint64(e.size))
	case kindSymlink, kindHardLink:
		b = appendString(b, e.link)
	}
	t.records, t.name, t.block = b, e.name, offset/blockSize
	t.entries++
	if len(b) >= tocPiece {
		t.flush()
	}
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func (t *tocWriter) flush() {
	t.sum.Write(t.records)
	if t.compress != nil {
		t.out = t.compress(t.records, t.out)
	}
	t.records = t.records[:0]
}

// end appends the last record.
func (t *tocWriter) end() {
	t.flush()
	b := binary.AppendUvarint([]byte{kindEnd}, t.entries)
	t.records = t.sum.Sum(b)
	t.flush()
}

// frame returns the frame of the records since the last one.
func (t *tocWriter) frame() []byte {
	b := t.out
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-skipHeader))
	t.out = appendSkippable(nil, magicTOC, []byte(tocMark))
	return b
}

func appendSkippable(b []byte, magic uint32, content []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, magic)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(content)))
	return append(b, content...)
}

// seekTable has the sizes of the frames of an archive.
type seekTable []byte

func (t *seekTable) add(compressed, content int) {
	*t = binary.LittleEndian.AppendUint32(*t, uint32(compressed))
	*t = binary.LittleEndian.AppendUint32(*t, uint32(content))
}

// frame returns the last frame of the archive.
func (t *seekTable) frame() []byte {
	return appendSkippable(nil, magicSeek, append(*t, seekEnd(uint32(len(*t)/seekEntry))...))
}

// seekEnd returns the last bytes of the seek table of so many frames.
func seekEnd(frames uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, frames)
	b = append(b, 0) // without checksums, which the frames have
	return binary.LittleEndian.AppendUint32(b, seekMark)
}
