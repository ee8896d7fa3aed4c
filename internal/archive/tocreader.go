package archive

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"math"

	"github.com/klauspost/compress/zstd"
)

// record is an entry in the table of contents.
type record struct {
	entry
	offset int64 // of its header in the tar
}

// records yields the records of the table of contents.
func (x *Index) records(ctx context.Context) iter.Seq2[record, error] {
	return func(yield func(record, error) bool) {
		t := tocReader{sum: sha256.New(), total: x.total(len(x.frames) - 1)}
		for _, i := range x.toc {
			end, err := x.part(ctx, i, &t, yield)
			if err != nil {
				yield(record{}, err)
			}
			if end || err != nil {
				return
			}
		}
		yield(record{}, corrupted("table of contents has no end"))
	}
}

// part yields the records of one frame. The result is true if there is no further one to yield.
func (x *Index) part(ctx context.Context, frame int, t *tocReader, yield func(record, error) bool) (bool, error) {
	r, err := x.reader(ctx, x.start(frame), x.frames[frame].end)
	if err != nil {
		return false, err
	}
	defer r.Close()
	source := &hashingReader{r: r, sum: sha256.New()}
	failed := func(err error) error {
		if source.err != nil {
			return source.err
		}
		return corrupted("table of contents: %w", err)
	}
	var header [skipHeader]byte
	if _, err := io.ReadFull(source, header[:]); err != nil || binary.LittleEndian.Uint32(header[:]) != magicTOC {
		return false, failed(cmp.Or(err, errRecords))
	}
	in, err := openTOC(source)
	switch {
	case errors.Is(err, ErrNoIndex) && source.err == nil:
		return false, err
	case err != nil:
		return false, failed(err)
	}
	defer in.Close()
	t.in = bufio.NewReaderSize(in, 64<<10)
	for {
		if _, err := t.in.Peek(1); err == io.EOF {
			return false, nil
		}
		r, err := t.next()
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err == io.EOF:
			return true, nil
		case errors.Is(err, ErrNoIndex):
			return false, err
		case err != nil:
			return false, failed(err)
		case !yield(r, nil):
			return true, nil
		}
	}
}

// openTOC returns the records in the content of a frame of the table of contents, or ErrNoIndex if
// it is that of another tool or version.
func openTOC(r io.Reader) (io.ReadCloser, error) {
	mark := make([]byte, len(tocMark))
	if _, err := io.ReadFull(r, mark); err != nil || string(mark) != tocMark {
		return nil, ErrNoIndex
	}
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxFrame))
	if err != nil {
		return nil, fmt.Errorf("create decoder: %w", err)
	}
	return z.IOReadCloser(), nil
}

// tocReader decodes the records that tocWriter writes.
type tocReader struct {
	in      *bufio.Reader
	names   tarReader // checks names
	last    record
	entries uint64
	read    int64
	total   int64 // bytes of the tar
	sum     hash.Hash
	hashed  []byte
}

var errRecords = errors.New("malformed record")

// ReadByte implements io.ByteReader.
func (t *tocReader) ReadByte() (byte, error) {
	b, err := t.in.ReadByte()
	if t.read++; err == nil && t.read > maxTOC {
		err = ErrNoIndex // too large for this version
	}
	t.hashed = append(t.hashed, b)
	return b, err
}

// number returns 0 with an error.
func (t *tocReader) number(most uint64) (uint64, error) {
	n, err := binary.ReadUvarint(t)
	if err == nil && n > most {
		err = errRecords
	}
	if err != nil {
		return 0, err
	}
	return n, nil
}

func (t *tocReader) text(most int) (string, error) {
	n, err := t.number(uint64(most))
	if err != nil {
		return "", err
	}
	at := len(t.hashed)
	t.hashed = grow(t.hashed, int(n))
	t.read += int64(n)
	_, err = io.ReadFull(t.in, t.hashed[at:])
	return string(t.hashed[at:]), err
}

// next returns the next record, or io.EOF after the last if the digest is right.
func (t *tocReader) next() (record, error) {
	t.sum.Write(t.hashed)
	t.hashed = t.hashed[:0]
	r, err := t.record()
	switch {
	case err == io.EOF:
		return r, io.ErrUnexpectedEOF
	case err != nil:
		return r, err
	case r.kind == kindEnd:
		return r, io.EOF
	}
	t.entries++
	t.last = r
	return r, nil
}

func (t *tocReader) record() (r record, err error) {
	number := func(most uint64) (n uint64) {
		if err == nil {
			n, err = t.number(most)
		}
		return n
	}
	text := func(most int) (s string) {
		if err == nil {
			s, err = t.text(most)
		}
		return s
	}
	if r.kind, err = t.ReadByte(); err != nil {
		return r, err
	}
	if r.kind == kindEnd {
		return r, t.end()
	}
	blocks := number(uint64(t.total) / blockSize)
	r.offset = t.last.offset + int64(blocks)*blockSize
	if err == nil && (r.offset >= t.total || blocks == 0 && t.entries > 0) {
		return r, errRecords
	}
	shared := int(number(uint64(len(t.last.name))))
	r.name = t.last.name[:shared] + text(maxHeader-shared)
	r.mode = uint32(number(0o7777))
	r.uid, r.gid = uint32(number(math.MaxUint32-1)), uint32(number(math.MaxUint32-1))
	if err == nil {
		r.mtime.Sec, err = binary.ReadVarint(t)
	}
	r.mtime.Nsec = int64(number(1e9 - 1))
	switch r.kind {
	case kindFile:
		r.size = int64(number(maxFileSize))
	case kindSymlink, kindHardLink:
		r.link = text(maxHeader)
	case kindFolder:
	default:
		err = cmp.Or(err, errRecords)
	}
	if err == nil {
		var clean string
		if clean, err = t.names.cleanName(r.name, r.kind == kindFolder); clean != r.name {
			err = cmp.Or(err, errRecords)
		}
	}
	return r, err
}

// end checks the last record.
func (t *tocReader) end() error {
	sum := t.sum.Sum(nil)
	n, err := t.number(math.MaxUint64)
	if err != nil {
		return err
	}
	var got [sha256.Size]byte
	if _, err := io.ReadFull(t.in, got[:]); err != nil {
		return err
	}
	if n != t.entries || !bytes.Equal(got[:], sum) {
		return errors.New("wrong digest")
	}
	return nil
}
