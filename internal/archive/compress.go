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
)

const (
	// frameSize is the content of a zstd frame, in bytes. Larger frames
	// compress hardly better, and each core needs twice this memory.
	frameSize = 4 << 20
	// maxWorkers limits memory on machines with many cores. Six compress about
	// 1 GB/s, more than most disks and buckets can store.
	maxWorkers = 6
)

func workers() int { return min(max(runtime.GOMAXPROCS(0), 1), maxWorkers) }

// compressor splits its input into frames, compresses them on all
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
	frames int64 // number of started frames
	levels levels
}

// frame is a piece of content that the workers process.
type frame struct {
	in, out []byte
	faster  bool          // which encoder compresses it
	failed  error         // why in could not be decompressed
	done    chan struct{} // capacity 1: one send per use
}

func newCompressor(ctx context.Context, w io.Writer) (*compressor, error) {
	return newCompressorOf(ctx, w, workers())
}

// newCompressorOf returns a compressor with n workers, at most maxWorkers.
func newCompressorOf(ctx context.Context, w io.Writer, n int) (*compressor, error) {
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

func (c *compressor) compress(e encoders) {
	for f := range c.work {
		z := e.better
		if f.faster {
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
		c.levels.account(f)
		c.free <- f
	}
}

// space returns a buffer for content; call advance afterwards.
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
			f.faster = c.levels.faster(c.frames)
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
	c.work <- f // never blocks: the channel has room for all frames
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

// stop ends the workers and returns the first error. The archive is complete
// only if it is nil.
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
