package shortway

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// WebSocket relays the bytes of a WebSocket after its handshake. Each direction has a
// goroutine, but not while the WebSocket rests. The exported fields are set before Run.
type WebSocket struct {
	// Client and Backend are written to. If they have a method Direct, the connections that it
	// returns are read from.
	Client, Backend net.Conn

	up, down direction    // from the client, to the client
	relaying atomic.Int32 // directions that have not ended
	done     Done
}

// direction relays the bytes from one side of a WebSocket to the other.
type direction struct {
	socket   *WebSocket
	from, to net.Conn
	waiter   waiter                // its Raw is nil if from cannot be read without a buffer
	awake    atomic.Bool           // a goroutine relays; it can be sent to rest as soon as it waits
	last     int64                 // when the last turn began, in Unix nanoseconds
	resting  bool                  // the next turn begins when from is readable
	try      func(fd uintptr) bool // receive
	small    *[smallBuffer]byte    // for from without a Raw
	buffer   []byte                // what receive has read, of a buffer of the pool
	err      error                 // of receive
	sent     int64
	panicked *Panic
}

// smallBuffer is the size of the buffer with which a TLS connection is awaited.
const smallBuffer = 512

var errPanicked = errors.New("the relay of a WebSocket panicked")

// singleAfter is the time without a byte after which a direction rests again as soon as it
// has relayed the next ones. So keystrokes are found by a poller, which can be in a
// hurry, and messages that follow each other faster take the shorter way of a goroutine
// that waits.
const singleAfter = 20 * time.Millisecond

// Run relays. Client is closed when both directions have ended, and then done is called.
func (s *WebSocket) Run(done Done) {
	s.done = done
	s.relaying.Store(2)
	s.up.from, s.up.to = under(s.Client), s.Backend
	s.down.from, s.down.to = under(s.Backend), s.Client
	for _, d := range []*direction{&s.up, &s.down} {
		d.socket = s
		d.waiter.Raw = rawConn(d.from)
		if !d.rest() {
			go d.turn()
		}
	}
}

// under returns the connection from which c is read.
func under(c net.Conn) net.Conn {
	if d, ok := c.(interface{ Direct() (net.Conn, bool) }); ok {
		if from, ok := d.Direct(); ok {
			return from
		}
	}
	return c
}

// Rest releases the goroutines of the directions that wait. One that receives a byte just
// now may rest as well; it continues at once.
func (s *WebSocket) Rest() {
	for _, d := range []*direction{&s.up, &s.down} {
		if d.awake.CompareAndSwap(true, false) {
			_ = d.from.SetReadDeadline(time.Unix(1, 0)) // ends the wait; it fails if from is closed
		}
	}
}

// Wake lets the directions notice that their connections are closed.
func (s *WebSocket) Wake() {
	if poller := defaultPoller(); poller != nil {
		poller.Wake(&s.up.waiter)
		poller.Wake(&s.down.waiter)
	}
}

// ended is called by each direction at its end.
func (s *WebSocket) ended() {
	if s.relaying.Add(-1) > 0 {
		return
	}
	_ = s.Client.Close()
	panicked := s.up.panicked
	if panicked == nil {
		panicked = s.down.panicked
	}
	s.done(s.down.sent, panicked)
}

// turn waits for bytes and relays them. The next turn has a goroutine of its own: stacks
// grow in steps and do not shrink soon, so the stack of a direction that waits is new,
// and small.
func (d *direction) turn() {
	err := errPanicked
	defer func() {
		d.panicked = Recovered(recover())
		switch {
		case err != nil:
			d.end(err)
			d.socket.ended()
		case !d.resting || !d.rest():
			go d.turn()
		}
	}()
	before := d.last
	d.last = time.Now().UnixNano()
	d.resting = d.last-before > int64(singleAfter)
	more, failed := d.relay()
	for failed == nil && more {
		more, failed = d.relay()
	}
	err = failed // not before, so that a panic ends the WebSocket
}

// rest lets the next turn begin when from is readable or closed. It returns false if that
// is not possible.
func (d *direction) rest() bool {
	poller := defaultPoller()
	if poller == nil || d.waiter.Raw == nil {
		return false
	}
	d.awake.Store(false)
	if d.waiter.Resume == nil {
		d.waiter.Resume = d.resume
	}
	return poller.Wait(&d.waiter)
}

func (d *direction) resume() { go d.turn() }

// end ends the direction: the other side receives no more, and can still send for a
// moment, unless something failed.
func (d *direction) end(err error) {
	d.awake.Store(false)
	if poller := defaultPoller(); poller != nil {
		poller.Forget(&d.waiter)
	}
	if errors.Is(err, io.EOF) {
		err = closeWrite(d.to)
	}
	if err != nil {
		_ = d.socket.Client.Close()
	}
}

// relay waits for bytes and relays them. It reports whether more may have come already.
func (d *direction) relay() (more bool, err error) {
	if d.waiter.Raw == nil {
		d.waiter.Raw = rawConn(d.from)
	}
	if d.waiter.Raw == nil {
		return d.relayBuffered()
	}
	d.small = nil
	if d.try == nil {
		d.try = d.receive
	}
	d.awake.Store(true)
	switch err := d.waiter.Raw.Read(d.try); {
	case errors.Is(err, os.ErrDeadlineExceeded): // see Rest
		d.resting = true
		return false, d.from.SetReadDeadline(time.Time{})
	case err != nil:
		return false, err
	}
	b := d.buffer
	d.buffer = nil
	if d.err != nil {
		return false, d.err
	}
	defer Buffers.Put(b[:bufferSize])
	return len(b) == bufferSize, d.send(b)
}

// receive reads what has come, and returns false if nothing has. It takes a buffer only
// meanwhile.
func (d *direction) receive(fd uintptr) bool {
	b := Buffers.Get()
	for {
		n, err := unix.Read(int(fd), b)
		switch {
		case n > 0:
			d.buffer = b[:n]
			return true
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			Buffers.Put(b)
			return false
		case err == nil:
			err = io.EOF
		}
		Buffers.Put(b)
		d.err = err
		return true
	}
}

// relayBuffered is relay for a connection that cannot be read without a buffer.
func (d *direction) relayBuffered() (more bool, err error) {
	if d.small == nil {
		d.small = new([smallBuffer]byte)
	}
	n, err := d.from.Read(d.small[:])
	if n > 0 {
		if err := d.send(d.small[:n]); err != nil {
			return false, err
		}
	}
	if err != nil || n < smallBuffer {
		return false, err
	}
	// More has come, or will soon.
	b := Buffers.Get()
	defer Buffers.Put(b)
	for n = bufferSize; n >= smallBuffer && err == nil; {
		if n, err = d.from.Read(b); n > 0 {
			if err := d.send(b[:n]); err != nil {
				return false, err
			}
		}
	}
	return false, err
}

// send writes to the other side.
func (d *direction) send(p []byte) error {
	n, err := d.to.Write(p)
	d.sent += int64(n)
	return err
}

// rawConn returns the TCP connection under c, if reading from c is nothing but reading
// from that; else nil.
func rawConn(c net.Conn) syscall.RawConn {
	for {
		switch under := c.(type) {
		case *net.TCPConn:
			raw, err := under.SyscallConn()
			if err != nil {
				return nil
			}
			return raw
		case interface{ Direct() (net.Conn, bool) }:
			direct := false
			if c, direct = under.Direct(); !direct {
				return nil
			}
		default:
			return nil
		}
	}
}
