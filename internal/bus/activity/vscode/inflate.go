package vscode

import (
	"compress/flate"
	"errors"
	"io"
	"iter"
	"sync"
	"time"
)

// inflater decompresses permessage-deflate (RFC 7692) incrementally. Because a
// decompressor pulls its input, it runs as a coroutine that is resumed for each
// part of the input.
type inflater struct {
	out      func([]byte) error
	takeover bool // messages may refer to earlier ones
	budget   *budget

	in    []byte
	yield func(struct{}) bool
	next  func() (struct{}, bool) // nil between messages without takeover
	stop  func()
	waits bool // for more input
	err   error
}

var (
	errFinal    = errors.New("a compressed stream ends in the middle of a message")
	errCut      = errors.New("a compressed message is cut short")
	errTooMuch  = errors.New("the connection exceeded its decompression budget")
	errStopped  = errors.New("stopped")
	syncTail    = []byte{0, 0, 0xff, 0xff}                      // omitted by senders
	messageTail = []byte{0, 0, 0xff, 0xff, 1, 0, 0, 0xff, 0xff} // with the end of the stream
)

// write decompresses the next part of a message. It must not be called after an
// error.
func (z *inflater) write(p []byte) error {
	if z.err != nil {
		return z.err
	}
	if z.next == nil {
		z.next, z.stop = iter.Pull(z.run)
	}
	z.in = p
	_, z.waits = z.next()
	if !z.waits && z.err == nil && len(z.in) > 0 {
		z.err = errFinal
	}
	z.in = nil
	return z.err
}

// end completes a message: all of its data has been passed on when end returns.
func (z *inflater) end() error {
	if z.takeover {
		return z.write(syncTail)
	}
	if z.next == nil {
		return nil // an empty message
	}
	if err := z.write(messageTail); err != nil {
		return err
	}
	z.close()
	if z.waits {
		z.err = errCut
	}
	return z.err
}

// close ends the coroutine. Without takeover the inflater may be used again.
func (z *inflater) close() {
	if z.next != nil {
		z.stop()
		z.next, z.stop = nil, nil
	}
}

// decompressor holds the 32 KiB window and the tables. It is used for one message
// at a time where possible, to save memory.
type decompressor struct {
	reader io.Reader // of compress/flate; a flate.Resetter
	buffer [4 << 10]byte
}

var decompressors = sync.Pool{New: func() any { return &decompressor{reader: flate.NewReader(nothing{})} }}

func (z *inflater) run(yield func(struct{}) bool) {
	z.yield = yield
	d := decompressors.Get().(*decompressor)
	if z.err = d.reset(z); z.err != nil {
		return
	}
	z.err = z.copy(d)
	// Not after a panic, since the decompressor may be in a bad state.
	if d.reset(nothing{}) == nil {
		decompressors.Put(d)
	}
}

func (d *decompressor) reset(from flate.Reader) error {
	return d.reader.(flate.Resetter).Reset(from, nil)
}

// copy passes on the output until the stream ends.
func (z *inflater) copy(d *decompressor) error {
	for {
		n, err := d.reader.Read(d.buffer[:])
		if n > 0 {
			if !z.budget.spend(n) {
				return errTooMuch
			}
			if err := z.out(d.buffer[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF) && z.takeover:
			return errFinal
		case errors.Is(err, io.EOF), errors.Is(err, errStopped):
			return nil
		case err != nil:
			return err
		}
	}
}

// wait returns when there is input.
func (z *inflater) wait() error {
	for len(z.in) == 0 {
		if !z.yield(struct{}{}) {
			return errStopped
		}
	}
	return nil
}

func (z *inflater) ReadByte() (byte, error) {
	if err := z.wait(); err != nil {
		return 0, err
	}
	b := z.in[0]
	z.in = z.in[1:]
	return b, nil
}

func (z *inflater) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := z.wait(); err != nil {
		return 0, err
	}
	n := copy(p, z.in)
	z.in = z.in[n:]
	return n, nil
}

// nothing is the input of an unused decompressor.
type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, io.EOF }
func (nothing) ReadByte() (byte, error)  { return 0, io.EOF }

// budget limits the work per connection, since a byte can decompress to a thousand.
// A real IDE stays far below it.
type budget struct {
	start time.Time
	spent int64
}

const (
	budgetAtOnce    = 128 << 20 // decompressed bytes
	budgetPerSecond = 64 << 20
)

func newBudget() *budget { return &budget{start: time.Now()} }

func (b *budget) spend(n int) bool {
	b.spent += int64(n)
	return b.spent <= budgetAtOnce || b.spent-budgetAtOnce <= int64(time.Since(b.start).Seconds()*budgetPerSecond)
}
