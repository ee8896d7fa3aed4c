package archive

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const (
	// maxFrame is the largest content of a frame that is decompressed
	// separately. Archives with larger frames, or frames without a size, were
	// made by other tools and are decompressed as one stream.
	maxFrame = 8 << 20
	// maxWindow limits the memory of a frame; zstd -19 needs 8 MiB.
	maxWindow = 32 << 20
)

// decompressor reads zstd frames, decompresses them on all cores and returns
// their content in order. It hashes what it reads.
type decompressor struct {
	ctx     context.Context
	cancel  context.CancelFunc
	in      *hashingReader
	buf     *bufio.Reader
	free    chan *frame
	work    chan *frame
	ordered chan *frame
	running sync.WaitGroup
	present *frame
	// tail is the rest of the input after a frame that is too large, and err
	// why there is no further frame. Both are set before ordered is closed.
	tail   io.Reader
	err    error
	stream *zstd.Decoder // of the tail
	buffer []byte
	check  *indexCheck // nil: the index is skipped
}

// hashingReader hashes what it reads and records the source's error, to
// distinguish a failed source from a damaged archive.
type hashingReader struct {
	r    io.Reader
	sum  hash.Hash
	size int64
	err  error
}

func (h *hashingReader) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.sum.Write(p[:n])
	h.size += int64(n)
	if err != nil && err != io.EOF {
		h.err = err
	}
	return n, err
}

func newDecompressor(ctx context.Context, r io.Reader) (*decompressor, error) {
	return newCheckedDecompressor(ctx, r, nil)
}

func newCheckedDecompressor(ctx context.Context, r io.Reader, check *indexCheck) (*decompressor, error) {
	n := workers()
	d := &decompressor{
		in:      &hashingReader{r: r, sum: sha256.New()},
		check:   check,
		free:    make(chan *frame, n+2),
		work:    make(chan *frame, n+2),
		ordered: make(chan *frame, n+2),
	}
	d.buf = bufio.NewReaderSize(d.in, 256<<10)
	decoders := make([]*zstd.Decoder, n)
	for i := range decoders {
		var err error
		decoders[i], err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxMemory(maxFrame), zstd.WithDecoderMaxWindow(maxFrame))
		if err != nil {
			return nil, err
		}
	}
	d.ctx, d.cancel = context.WithCancel(ctx)
	for range n + 2 {
		d.free <- &frame{done: make(chan struct{}, 1)}
	}
	for _, z := range decoders {
		d.running.Go(func() { d.decompress(z) })
	}
	d.running.Go(d.read)
	return d, nil
}

// newStream returns a decompressor on one core, for content of which many may be read at once: it
// needs a tenth of the memory.
func newStream(ctx context.Context, r io.Reader) (*decompressor, error) {
	in := &hashingReader{r: r, sum: sha256.New()}
	d := &decompressor{in: in, tail: in}
	d.ctx, d.cancel = context.WithCancel(ctx)
	return d, d.startStream(zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxFrame))
}

// read splits the stream into frames.
func (d *decompressor) read() {
	defer close(d.ordered)
	defer close(d.work)
	for {
		var f *frame
		select {
		case f = <-d.free:
		case <-d.ctx.Done():
			d.err = d.ctx.Err()
			return
		}
		var content int64
		f.in, content, d.err = readFrame(d.buf, f.in[:0], d.check)
		if d.err != nil {
			if d.err == io.EOF || errors.Is(d.err, ErrCorrupted) {
				return
			}
			if d.in.err != nil {
				d.err = d.in.err
			} else {
				d.err = corrupted("zstd stream is cut short")
			}
			return
		}
		if len(f.in) == 0 { // skippable
			d.free <- f
			continue
		}
		d.check.frame(len(f.in), int(content))
		if content < 0 {
			d.tail = io.MultiReader(bytes.NewReader(slices.Clone(f.in)), d.buf)
			return
		}
		d.work <- f // never blocks: the channel has room for all frames
		d.ordered <- f
	}
}

func (d *decompressor) decompress(z *zstd.Decoder) {
	defer z.Close()
	for f := range d.work {
		var err error
		if f.out, err = z.DecodeAll(f.in, f.out[:0]); err != nil {
			f.out = nil
		}
		f.failed = err
		f.done <- struct{}{}
	}
}

// next returns the next piece of content, valid until the next call, or io.EOF.
// It is the refill of a source.
func (d *decompressor) next() ([]byte, error) {
	for d.stream == nil {
		if d.present != nil {
			d.free <- d.present
			d.present = nil
		}
		select {
		case f, ok := <-d.ordered:
			if !ok {
				if err := d.ctx.Err(); err != nil {
					return nil, err
				}
				if d.tail == nil {
					return nil, d.err
				}
				if err := d.startStream(); err != nil {
					return nil, err
				}
				continue
			}
			select {
			case <-f.done:
			case <-d.ctx.Done():
				return nil, d.ctx.Err()
			}
			d.present = f
			if f.failed != nil {
				return nil, corrupted("zstd: %w", f.failed)
			}
			if len(f.out) > 0 {
				return f.out, nil
			}
		case <-d.ctx.Done():
			return nil, d.ctx.Err()
		}
	}
	if err := d.ctx.Err(); err != nil {
		return nil, err
	}
	n, err := io.ReadAtLeast(d.stream, d.buffer, 1)
	switch {
	case err == nil:
		return d.buffer[:n], nil
	case d.in.err != nil:
		return nil, d.in.err
	case err == io.EOF:
		return nil, io.EOF
	}
	return nil, corrupted("zstd: %w", err)
}

// stop ends the workers. It does not wait for a pending read of the source,
// which only the source's owner can end.
func (d *decompressor) stop() {
	d.cancel()
	if d.stream != nil {
		d.stream.Close()
	}
}

// digest and size are valid after next returned io.EOF.
func (d *decompressor) digest() string { return hex.EncodeToString(d.in.sum.Sum(nil)) }

func (d *decompressor) size() int64 { return d.in.size }

func (d *decompressor) startStream(options ...zstd.DOption) error {
	options = append([]zstd.DOption{zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow)}, options...)
	z, err := zstd.NewReader(d.tail, options...)
	if err != nil {
		return fmt.Errorf("create decoder: %w", err)
	}
	d.stream, d.buffer = z, make([]byte, maxBlock)
	return nil
}

const (
	magicFrame     = 0xFD2FB528
	magicSkippable = 0x184D2A50 // and the next fifteen
	maxBlock       = 128 << 10
)

// readFrame reads one compressed zstd frame into b (RFC 8878 §3.1) and returns the size of
// its content. That is -1 if the frame is too large or has no size; then b is the part that was
// read. A skippable frame is passed to check and results in an empty b. io.EOF means that there
// is no further frame.
func readFrame(r *bufio.Reader, b []byte, check *indexCheck) (_ []byte, content int64, _ error) {
	more := func(n int) ([]byte, error) {
		at := len(b)
		b = grow(b, n)
		_, err := io.ReadFull(r, b[at:])
		if err == io.EOF && at > 0 {
			err = io.ErrUnexpectedEOF
		}
		return b[at:], err
	}
	p, err := more(4)
	if err != nil {
		return nil, 0, err
	}
	magic := binary.LittleEndian.Uint32(p)
	if magic&^0xF == magicSkippable {
		if p, err = more(4); err != nil {
			return nil, 0, err
		}
		skipped := &io.LimitedReader{R: r, N: int64(binary.LittleEndian.Uint32(p))}
		check.skippable(magic, skipped)
		if _, err := io.Copy(io.Discard, skipped); err != nil {
			return nil, 0, err
		}
		if skipped.N > 0 {
			return nil, 0, io.ErrUnexpectedEOF
		}
		return b[:0], 0, nil
	}
	if magic != magicFrame {
		return nil, 0, corrupted("not a zstd stream")
	}
	if p, err = more(1); err != nil {
		return nil, 0, err
	}
	descriptor := p[0]
	single := descriptor&0x20 != 0
	if !single {
		if _, err := more(1); err != nil { // the window
			return nil, 0, err
		}
	}
	if _, err := more([4]int{0, 1, 2, 4}[descriptor&3]); err != nil { // the dictionary
		return nil, 0, err
	}
	length := [4]int{0, 2, 4, 8}[descriptor>>6]
	if length == 0 && single {
		length = 1
	}
	if p, err = more(length); err != nil {
		return nil, 0, err
	}
	var size uint64
	for i := len(p) - 1; i >= 0; i-- {
		size = size<<8 | uint64(p[i])
	}
	if length == 2 {
		size += 256
	}
	if length == 0 || size > maxFrame {
		return b, -1, nil
	}
	for last := false; !last; {
		if p, err = more(3); err != nil {
			return nil, 0, err
		}
		h := uint32(p[0]) | uint32(p[1])<<8 | uint32(p[2])<<16
		last = h&1 != 0
		block := int(h >> 3)
		if block > maxBlock || h>>1&3 == 3 {
			return nil, 0, corrupted("malformed zstd frame")
		}
		if h>>1&3 == 1 { // one byte, repeated
			block = 1
		}
		if _, err := more(block); err != nil {
			return nil, 0, err
		}
		if len(b) > maxFrame+maxFrame/8 {
			return nil, 0, corrupted("zstd frame larger than its content")
		}
	}
	if descriptor&4 != 0 { // the checksum
		if _, err := more(4); err != nil {
			return nil, 0, err
		}
	}
	return b, int64(size), nil
}

// grow lengthens b by n bytes.
func grow(b []byte, n int) []byte {
	if cap(b)-len(b) < n {
		c := make([]byte, len(b), max(2*cap(b), len(b)+n, 64<<10))
		copy(c, b)
		b = c
	}
	return b[:len(b)+n]
}
