package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

const (
	// packSize is the size from which a pack is complete. It exceeds it by at most a frame and its index. The first pack of a
	// generation is complete at firstPack, and each one after it at twice the size of the one before: a small
	// generation has several, of which those with short-lived content are soon not needed any more.
	packSize  = 32 << 20
	firstPack = packSize >> packSteps
	packSteps = 5
	// maxPackFrames and maxPackIndex limit a pack of well compressible content, and of very small files.
	maxPackFrames = 256
	maxPackIndex  = 4 << 20
	// magicChunks is the skippable frame with the index of a pack.
	magicChunks = 0x184D2A5C
	chunksMark  = "codehub\x02"
)

// packInfo is a pack in the table of a manifest. The contents of all packs of a manifest, in their
// order, are one range of addresses. A pack that no entry refers to any more keeps its place.
type packInfo struct {
	gone       bool
	length     int64  // of its content
	generation string // that stored it
	number     int    // among the packs of that generation
	sum        [sha256.Size]byte
	size       int64
	index      [sha256.Size]byte // SHA-256 of its index and seek table
	frames     []packFrame
}

// packFrame is a frame of a pack.
type packFrame struct {
	size, length int64 // compressed, and of its content
	sum          [sha256.Size]byte
}

func (p *packInfo) name() string { return PackName(p.generation, p.number) }

const (
	packFolder, packSuffix = "packs/", ".zst"
	// maxPackNumber is the largest number of a pack: 3 TiB of full ones.
	maxPackNumber = 99_999
	maxGeneration = 150 // bytes of a generation
)

// PackName returns the name of a pack of a generation, which is the name of its manifest without the
// suffix (see Generation). The packs of a generation are numbered from 0.
func PackName(generation string, number int) string {
	return fmt.Sprintf("%s%s-%05d%s", packFolder, generation, number, packSuffix)
}

// Generation returns the generation of a manifest with this name.
func Generation(manifest string) string { return strings.TrimSuffix(manifest, manifestSuffix) }

// IsPack reports whether an object has the name of a pack.
func IsPack(name string) bool {
	rest, ok := strings.CutPrefix(name, packFolder)
	rest, of := strings.CutSuffix(rest, packSuffix)
	at := strings.LastIndexByte(rest, '-')
	if !ok || !of || at < 0 {
		return false
	}
	number, err := strconv.Atoi(rest[at+1:])
	return err == nil && number >= 0 && number <= maxPackNumber && validGeneration(rest[:at]) && PackName(rest[:at], number) == name
}

// validGeneration reports whether a generation may be a part of a key.
func validGeneration(s string) bool {
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return s != "" && len(s) <= maxGeneration && s[0] != '.'
}

// indexAt is where the frames of a pack end and its index begins.
func (p *packInfo) indexAt() (at int64) {
	for _, f := range p.frames {
		at += f.size
	}
	return at
}

// segment is a range of addresses.
type segment struct{ at, length int64 }

// chunkID identifies a chunk: the first half of its SHA-256.
type chunkID [16]byte

// chunkStore stores the chunks that it does not know in packs.
type chunkStore struct {
	put   PutObject
	name  string // of the generation
	c     *compressor
	known map[chunkID]int64 // addresses
	next  int64             // address of the next new chunk
	from  int64             // address of the first new chunk
	// present are the chunks of the frame that is being filled.
	present []storedChunk

	mu     sync.Mutex
	frames [][]storedChunk // those of the frames that are being compressed

	// The following belong to the compressor's writing goroutine, until it has ended.
	buf, spare []byte
	index      []byte
	seek       seekTable
	pack       packInfo
	packs      []packInfo // complete
	stored     int64      // their bytes
	uploading  chan error
}

type storedChunk struct {
	sum    [sha256.Size]byte
	length int
}

// newChunkStore returns a store with so many encoders of each level, whose first new chunk gets an address.
func newChunkStore(ctx context.Context, put PutObject, generation string, from int64, workers int) (*chunkStore, error) {
	s := &chunkStore{put: put, name: generation, known: map[chunkID]int64{}, next: from, from: from}
	c, err := newCompressorOf(ctx, s, workers)
	if err != nil {
		return nil, err
	}
	s.c, c.sum = c, nil // packs have their own digests
	return s, nil
}

// learn reads the index of a pack whose content begins at an address.
func (s *chunkStore) learn(ctx context.Context, get GetRange, p *packInfo, address int64) error {
	chunks, err := p.chunks(ctx, get)
	for _, c := range chunks {
		s.known[chunkID(c.sum[:])] = address
		address += int64(c.length)
	}
	return err
}

// chunks reads the index of a pack.
func (p *packInfo) chunks(ctx context.Context, get GetRange) (chunks []storedChunk, err error) {
	from := p.indexAt()
	r, err := get(ctx, p.name(), from, p.size-from)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, p.size-from+1))
	if err != nil {
		return nil, err
	}
	malformed := corrupted("index of pack %s", p.name())
	if int64(len(b)) != p.size-from || sha256.Sum256(b) != p.index || len(b) < skipHeader+len(chunksMark) {
		return nil, malformed
	}
	b, ok := bytes.CutPrefix(b[skipHeader:], []byte(chunksMark))
	for left := p.length; ok && left > 0; {
		length, n := binary.Uvarint(b)
		if n <= 0 || length == 0 || length > uint64(left) || len(b) < n+sha256.Size {
			return nil, malformed
		}
		chunks = append(chunks, storedChunk{[sha256.Size]byte(b[n:]), int(length)})
		left, b = left-int64(length), b[n+sha256.Size:]
	}
	return chunks, nil
}

// add returns the address of a chunk, and stores it if it is not known.
func (s *chunkStore) add(sum [sha256.Size]byte, chunk []byte) (int64, error) {
	if at, ok := s.known[chunkID(sum[:])]; ok {
		return at, nil
	}
	if s.c.present != nil && len(s.c.present.in)+len(chunk) > frameSize {
		s.cut()
	}
	at := s.next
	if _, err := s.c.Write(chunk); err != nil {
		return 0, err
	}
	s.known[chunkID(sum[:])] = at
	s.present = append(s.present, storedChunk{sum, len(chunk)})
	s.next += int64(len(chunk))
	return at, nil
}

// cut ends the frame that is being filled, so that no chunk is in two frames.
func (s *chunkStore) cut() {
	s.mu.Lock()
	s.frames = append(s.frames, s.present)
	s.mu.Unlock()
	s.present = nil
	s.c.flush()
}

// Write gets each frame from the compressor, in their order.
func (s *chunkStore) Write(frame []byte) (int, error) {
	s.mu.Lock()
	chunks := s.frames[0]
	s.frames = s.frames[1:]
	s.mu.Unlock()
	length := 0
	if len(s.index) == 0 {
		s.index = append(make([]byte, 0, 64<<10), chunksMark...)
	}
	for _, c := range chunks {
		s.index = binary.AppendUvarint(s.index, uint64(c.length))
		s.index = append(s.index, c.sum[:]...)
		length += c.length
	}
	if cap(s.buf) == 0 {
		s.buf = make([]byte, 0, packSize+2*frameSize+maxPackIndex) // which need not grow; memory is used as it is filled
	}
	s.buf = append(s.buf, frame...)
	s.seek.add(len(frame), length)
	s.pack.frames = append(s.pack.frames, packFrame{int64(len(frame)), int64(length), sha256.Sum256(frame)})
	s.pack.length += int64(length)
	if len(s.buf) >= firstPack<<min(len(s.packs), packSteps) || len(s.pack.frames) == maxPackFrames || len(s.index) >= maxPackIndex {
		return len(frame), s.finishPack()
	}
	return len(frame), nil
}

// finishPack stores the pack that is being filled. One is stored at a time, while the next is filled.
func (s *chunkStore) finishPack() error {
	end := len(s.buf)
	s.buf = appendSkippable(s.buf, magicChunks, s.index)
	s.seek.add(len(s.buf)-end, 0)
	s.buf = append(s.buf, s.seek.frame()...)
	p := s.pack
	p.generation, p.number = s.name, len(s.packs)
	if p.number > maxPackNumber {
		return fmt.Errorf("%w: a backup cannot add more than %d packs", ErrUnrestorable, maxPackNumber+1)
	}
	p.sum, p.index, p.size = sha256.Sum256(s.buf), sha256.Sum256(s.buf[end:]), int64(len(s.buf))
	if err := s.wait(); err != nil {
		return err
	}
	s.packs, s.stored = append(s.packs, p), s.stored+p.size
	s.uploading = make(chan error, 1)
	go func(b []byte) { s.uploading <- s.put(s.c.ctx, p.name(), b) }(s.buf)
	s.buf, s.spare = s.spare[:0], s.buf
	s.index, s.seek, s.pack = s.index[:0], s.seek[:0], packInfo{}
	return nil
}

func (s *chunkStore) wait() error {
	if s.uploading == nil {
		return nil
	}
	err := <-s.uploading
	s.uploading = nil
	if err != nil {
		return fmt.Errorf("store pack: %w", err)
	}
	return nil
}

// finish stores the rest. The chunks are stored only if the error is nil. It must always be called, with
// the error so far.
func (s *chunkStore) finish(err error) error {
	if err != nil {
		s.c.cancel(err)
	}
	if len(s.present) > 0 {
		s.cut()
	}
	stopped := s.c.drain()
	if stopped == nil && len(s.buf) > 0 {
		stopped = s.finishPack()
	}
	if waited := s.wait(); stopped == nil {
		stopped = waited
	}
	s.c.cancel(nil)
	return stopped
}
