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
	// frameSize is how much content a zstd frame holds. More compresses hardly
	// better; this much is what each core takes, twice over, in memory.
	frameSize = 4 << 20
	// maxWorkers bounds the memory of a machine with many cores. Six compress
	// about 1 GB/s, more than most disks and buckets take.
	maxWorkers = 6
)

func workers() int { return min(max(runtime.GOMAXPROCS(0), 1), maxWorkers) }

// compressor cuts what is written to it into frames, compresses them on all
// cores and writes them in order: frames, sha256, w.
type compressor struct {
	ctx    context.Context
	cancel context.CancelCauseFunc

	free    chan *frame
	present *frame
	work    chan *frame
	ordered chan *frame
	running sync.WaitGroup

	w      io.Writer
	sum    hash.Hash
	size   int64
	frames int64
}

// frame is a piece of content on its way through the workers.
type frame struct {
	in, out []byte
	number  int64         // how often it was filled
	failed  error         // why in could not be decompressed
	done    chan struct{} // of capacity 1: one send for each trip
}

func newCompressor(ctx context.Context, w io.Writer) (*compressor, error) {
	n := workers()
	c := &compressor{
		free:    make(chan *frame, n+2),
		work:    make(chan *frame, n+2),
		ordered: make(chan *frame, n+2),
		w:       w,
		sum:     sha256.New(),
	}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	for range n + 2 {
		c.free <- &frame{done: make(chan struct{}, 1)}
	}
	for range n {
		e, err := newEncoders()
		if err != nil {
			close(c.work)
			return nil, err
		}
		c.running.Go(func() { c.compress(e) })
	}
	c.running.Go(c.write)
	return c, nil
}

// encoders are of two levels. Every other frame at each comes closest to
// `zstd -3`: of source code in small files the better one alone makes 1.04 times
// its size, the faster one 1.14 times its size for half the work.
type encoders struct{ better, faster *zstd.Encoder }

func newEncoders() (encoders, error) {
	var e encoders
	for level, to := range map[zstd.EncoderLevel]**zstd.Encoder{zstd.SpeedDefault: &e.better, zstd.SpeedFastest: &e.faster} {
		z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(frameSize))
		if err != nil {
			return encoders{}, fmt.Errorf("make encoder: %w", err)
		}
		*to = z
	}
	return e, nil
}

func (c *compressor) compress(e encoders) {
	for f := range c.work {
		z := e.better
		if f.number%2 == 1 {
			z = e.faster
		}
		f.out = z.EncodeAll(f.in, f.out[:0])
		f.done <- struct{}{}
	}
}

func (c *compressor) write() {
	failed := false
	for f := range c.ordered {
		<-f.done
		if !failed && c.ctx.Err() == nil {
			c.sum.Write(f.out)
			n, err := c.w.Write(f.out)
			c.size += int64(n)
			if err != nil {
				failed = true
				c.cancel(fmt.Errorf("write archive: %w", err))
			}
		}
		c.free <- f
	}
}

// space returns room for content, to be followed by advance.
func (c *compressor) space() ([]byte, error) {
	if c.present != nil && len(c.present.in) == frameSize {
		c.flush()
	}
	if c.present == nil {
		select {
		case f := <-c.free:
			if f.in == nil {
				f.in = make([]byte, 0, frameSize)
			}
			f.in = f.in[:0]
			f.number = c.frames
			c.frames++
			c.present = f
		case <-c.ctx.Done():
			return nil, context.Cause(c.ctx)
		}
	}
	return c.present.in[len(c.present.in):frameSize], nil
}

func (c *compressor) advance(n int) { c.present.in = c.present.in[:len(c.present.in)+n] }

func (c *compressor) flush() {
	f := c.present
	c.present = nil
	c.work <- f // never blocks: there are no more frames than room
	c.ordered <- f
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

// stop ends the workers, and says why it did not go well. The archive is
// whole only if it returns nil.
func (c *compressor) stop() error {
	if c.present != nil && len(c.present.in) > 0 {
		c.flush()
	}
	close(c.work)
	close(c.ordered)
	c.running.Wait()
	err := context.Cause(c.ctx)
	c.cancel(nil)
	return err
}

// digest is valid after stop.
func (c *compressor) digest() string { return hex.EncodeToString(c.sum.Sum(nil)) }
