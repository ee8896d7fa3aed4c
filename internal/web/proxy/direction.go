package proxy

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/gateway/shortway"
)

// webSocket relays the bytes of one WebSocket after its handshake. Each direction has a
// goroutine, but not while the WebSocket rests.
type webSocket struct {
	open       *connections
	connection *connection
	use        *use // or nil
	client     *visitorConn
	backend    net.Conn
	done       shortway.Done

	up, down direction    // from the client, to the client
	relaying atomic.Int32 // directions that have not ended
}

// direction relays the bytes from one side of a WebSocket to the other.
type direction struct {
	socket   *webSocket
	from     net.Conn
	waiter   waiter                // its Raw is nil if from cannot be read without a buffer
	awake    atomic.Bool           // a goroutine relays; it can be sent to rest as soon as it waits
	last     int64                 // when the last turn began, in Unix nanoseconds
	resting  bool                  // the next turn begins when from is readable
	try      func(fd uintptr) bool // receive
	first    []byte                // was received with the handshake
	small    *[smallBuffer]byte    // for from without a Raw
	buffer   []byte                // what receive has read, of a buffer of the pool
	err      error                 // of receive
	sent     int64
	panicked *shortway.Panic
}

// smallBuffer is the size of the buffer with which a TLS connection is awaited.
const smallBuffer = 512

var errPanicked = errors.New("the relay of a WebSocket panicked")

// restAfter is the time without a byte in both directions after which Proxy.Run sends the
// goroutines of a WebSocket to rest. It is shorter than the interval of the keep-alive
// messages of VS Code.
const restAfter = time.Second

// singleAfter is the time without a byte after which a direction rests again as soon as it
// has relayed the next ones. So keystrokes are found by a poller, which can be in a
// hurry, and messages that follow each other faster take the shorter way of a goroutine
// that waits.
const singleAfter = 20 * time.Millisecond

// run starts both directions. They rest until the first byte comes.
func (s *webSocket) run(done shortway.Done) {
	s.done = done
	s.relaying.Store(2)
	for _, d := range []*direction{&s.up, &s.down} {
		d.waiter.Raw = rawConn(d.from)
		if len(d.first) > 0 || !d.rest() {
			go d.turn()
		}
	}
}

// rest sends the directions that wait to rest. One that receives a byte just now may rest
// as well; it continues at once.
func (s *webSocket) rest() {
	for _, d := range []*direction{&s.up, &s.down} {
		if d.awake.CompareAndSwap(true, false) {
			_ = d.from.SetReadDeadline(time.Unix(1, 0)) // ends the wait; it fails if from is closed
		}
	}
}

// wake lets the directions notice that their connections are closed.
func (s *webSocket) wake() {
	if poller := defaultPoller(); poller != nil {
		poller.Wake(&s.up.waiter)
		poller.Wake(&s.down.waiter)
	}
}

// ended is called by each direction at its end.
func (s *webSocket) ended() {
	if s.relaying.Add(-1) > 0 {
		return
	}
	_ = s.client.Close()
	s.use.end()
	s.open.remove(s.connection)
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
		d.panicked = shortway.Recovered(recover())
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
	more, failed := true, d.relayFirst()
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
	s := d.socket
	d.awake.Store(false)
	if poller := defaultPoller(); poller != nil {
		poller.Forget(&d.waiter)
	}
	if errors.Is(err, io.EOF) {
		if d == &s.up {
			s.client.ending()
			err = closeWrite(s.backend)
		} else {
			err = s.client.CloseWrite()
		}
	}
	if err != nil {
		_ = s.client.Close()
	}
}

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

func (d *direction) relayFirst() error {
	if d.first == nil {
		return nil
	}
	first := d.first
	d.first = nil
	if len(first) == 0 {
		return nil
	}
	return d.send(first)
}

// relay waits for bytes and relays them. It reports whether more may have come already.
func (d *direction) relay() (more bool, err error) {
	if d.waiter.Raw == nil {
		d.waiter.Raw = rawConn(d.from)
	}
	if d.waiter.Raw == nil {
		return d.relayBuffered()
	}
	if d.try == nil {
		d.try = d.receive
	}
	d.awake.Store(true)
	switch err := d.waiter.Raw.Read(d.try); {
	case errors.Is(err, os.ErrDeadlineExceeded): // see webSocket.rest
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
	defer buffers.Put(b[:bufferSize])
	return len(b) == bufferSize, d.send(b)
}

// receive reads what has come, and returns false if nothing has. It takes a buffer only
// meanwhile.
func (d *direction) receive(fd uintptr) bool {
	b := buffers.Get()
	for {
		n, err := unix.Read(int(fd), b)
		switch {
		case n > 0:
			d.buffer = b[:n]
			return true
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			buffers.Put(b)
			return false
		case err == nil:
			err = io.EOF
		}
		buffers.Put(b)
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
	b := buffers.Get()
	defer buffers.Put(b)
	for n = bufferSize; n >= smallBuffer && err == nil; {
		if n, err = d.from.Read(b); n > 0 {
			if err := d.send(b[:n]); err != nil {
				return false, err
			}
		}
	}
	return false, err
}

// send writes to the other side, and lets the activity be detected after that.
func (d *direction) send(p []byte) error {
	s := d.socket
	if d == &s.down {
		n, err := s.client.Write(p)
		d.sent += int64(n)
		return err
	}
	n, err := s.backend.Write(p)
	if watch := s.client.watch; watch != nil {
		watch.sent(p[:max(n, 0)])
	}
	s.connection.moved(n)
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
