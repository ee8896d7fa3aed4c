package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const (
	// frameSize is the content of a zstd frame, in bytes. Larger frames
	// compress hardly better, and each needs twice this memory.
	frameSize = 4 << 20
	// maxFrames is how many frames later a frame's size counts for the choice of a level, on any
	// machine, so that the archive is the same on all. No more are in progress.
	maxFrames = 8
	// maxWorkers limits memory on machines with many cores. Six compress about
	// 1 GB/s, more than most disks and buckets can store.
	maxWorkers = 6
)

func workers() int { return min(runtime.GOMAXPROCS(0), maxWorkers) }

// compressor splits its input into frames, compresses them on all
// cores and writes them in order: frames, sha256, w. The library's stream
// encoder has one level for all content and takes longer.
type compressor struct {
	ctx    context.Context
	cancel context.CancelCauseFunc

	// Half of the output from each is closest to `zstd -3`: for source code in
	// small files the better level alone results in 1.04 times its size, and the
	// faster one in 1.14 times its size for three quarters of the work.
	better, faster *zstd.Encoder
	all, fast      int // output so far, and the part of it that better would have made smaller
	count          int // of frames

	free    chan *frame
	buffers chan buffers // of frames in progress: as many as keep the encoders busy
	present *frame
	ordered chan *frame
	written sync.WaitGroup

	w     io.Writer
	sum   hash.Hash // nil: not wanted
	size  int64
	total int64 // bytes of content so far
	// after is a skippable frame that follows the present one.
	after  []byte
	frames seekTable // what was written
}

// buffers hold the content of a frame, and what it was compressed to.
type buffers struct{ in, out []byte }

// frame is a piece of content.
type frame struct {
	buffers
	read, wrote int           // bytes of the last content, and of what it was compressed to
	faster      bool          // which encoder compresses it
	after       []byte        // a skippable frame to write after it
	failed      error         // why in could not be decompressed
	done        chan struct{} // capacity 1: one send per use
}

func newCompressor(ctx context.Context, w io.Writer) (*compressor, error) {
	return newCompressorOf(ctx, w, workers())
}

// newCompressorOf returns a compressor with so many encoders of each level.
func newCompressorOf(ctx context.Context, w io.Writer, workers int) (*compressor, error) {
	c := &compressor{free: make(chan *frame, maxFrames), ordered: make(chan *frame, maxFrames), buffers: make(chan buffers, workers+2), w: w, sum: sha256.New()}
	for level, to := range map[zstd.EncoderLevel]**zstd.Encoder{zstd.SpeedDefault: &c.better, zstd.SpeedFastest: &c.faster} {
		var err error
		*to, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithWindowSize(frameSize), zstd.WithEncoderConcurrency(workers))
		if err != nil {
			return nil, fmt.Errorf("create encoder: %w", err)
		}
	}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	for range maxFrames {
		c.free <- &frame{done: make(chan struct{}, 1)}
	}
	for range workers + 2 {
		c.buffers <- buffers{}
	}
	c.written.Go(c.write)
	return c, nil
}

func (c *compressor) write() {
	for f := range c.ordered {
		<-f.done
		err := c.ctx.Err()
		if err == nil {
			err = c.put(f.out, len(f.in))
		}
		if err == nil && f.after != nil {
			err = c.put(f.after, 0)
		}
		if err != nil {
			c.cancel(err)
		}
		f.after = nil
		f.read, f.wrote = len(f.in), len(f.out)
		c.buffers <- f.buffers
		c.free <- f
	}
}

// put writes a frame with so many bytes of content.
func (c *compressor) put(frame []byte, content int) error {
	c.frames.add(len(frame), content)
	if c.sum != nil {
		c.sum.Write(frame)
	}
	n, err := c.w.Write(frame)
	c.size += int64(n)
	if err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return nil
}

// next returns the frame after the present one. It chooses the faster encoder as long as that
// has made less than half of the output. Both make the same of incompressible data, so in an
// archive of photographs all text is compressed fast.
func (c *compressor) next() (*frame, error) {
	var f *frame
	select {
	case f = <-c.free: // in their order
	case <-c.ctx.Done():
		return nil, context.Cause(c.ctx)
	}
	c.all += f.wrote
	if f.faster && f.wrote < f.read-f.read/8 {
		c.fast += f.wrote
	}
	f.faster = c.fast < c.all-c.fast
	if c.count < maxFrames {
		f.faster = c.count%2 == 1
	}
	c.count++
	select {
	case f.buffers = <-c.buffers:
	case <-c.ctx.Done():
		return nil, context.Cause(c.ctx)
	}
	if f.in == nil {
		f.in = make([]byte, 0, frameSize)
	}
	f.in = f.in[:0]
	return f, nil
}

// space returns a buffer for content; call advance afterwards.
func (c *compressor) space() ([]byte, error) {
	if c.present != nil && len(c.present.in) == frameSize {
		c.flush()
	}
	if c.present == nil {
		var err error
		if c.present, err = c.next(); err != nil {
			return nil, err
		}
	}
	return c.present.in[len(c.present.in):frameSize], nil
}

func (c *compressor) advance(n int) {
	c.present.in = c.present.in[:len(c.present.in)+n]
	c.total += int64(n)
}

func (c *compressor) flush() {
	f, z := c.present, c.better
	f.after, c.after = c.after, nil
	if f.faster {
		z = c.faster
	}
	go func() {
		f.out = z.EncodeAll(f.in, f.out[:0])
		f.done <- struct{}{}
	}()
	c.ordered <- f // never blocks: the channel has room for all frames
	c.present = nil
}

func (c *compressor) Write(p []byte) (int, error) {
	written := len(p)
	for len(p) > 0 {
		to, err := c.space()
		if err != nil {
			return 0, err
		}
		n := copy(to, p)
		c.advance(n)
		p = p[n:]
	}
	return written, nil
}

// stop ends the writing of content and returns the first error.
func (c *compressor) stop() error {
	defer c.cancel(nil)
	return c.drain()
}

// drain is stop, but leaves the context to the caller.
func (c *compressor) drain() error {
	if c.present != nil && len(c.present.in) > 0 {
		c.flush()
	}
	close(c.ordered)
	c.written.Wait()
	return context.Cause(c.ctx)
}

// finish writes the index after the content: the rest of the table of contents, and the seek
// table. The archive is complete only if the error is nil.
func (c *compressor) finish(toc *tocWriter) error {
	if err := c.stop(); err != nil {
		return err
	}
	toc.end()
	if err := c.put(toc.frame(), 0); err != nil {
		return err
	}
	return c.put(c.frames.frame(), 0)
}

// toc returns a writer of the table of contents.
func (c *compressor) toc() *tocWriter { return newTOCWriter(c.better.EncodeAll) }

// digest is valid after finish.
func (c *compressor) digest() string { return hex.EncodeToString(c.sum.Sum(nil)) }
