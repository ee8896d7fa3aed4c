package sshgate

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"codehub/internal/base/flow"
)

// channel is an accepted channel. What its client sends and the gate does not read stays
// in the memory of the SSH library, up to 2 MiB: so the gate reads all of it, or counts
// the channel as unread.
type channel struct {
	ssh.Channel
	input  *waiting
	ended  atomic.Bool   // the client has sent EOF, and all before it was read
	closed chan struct{} // by the client, or with its connection; the owner closes it

	reading    sync.Mutex // held by the one reader
	discarding sync.Once
}

// newChannel returns a channel of the connection. cut is called, in a goroutine of its own,
// if its input was unread for too long. The caller must close closed, and then end the wait of input.
func (c *connection) newChannel(ch ssh.Channel, cut func()) *channel {
	own := &channel{Channel: ch, closed: make(chan struct{})}
	own.input = c.gate.unread.watch(c.caller.UserID, func() {
		c.gate.cfg.Log.Info("SSH channel closed because its input is not read", "user", c.caller.UserID, "workspace", string(c.id))
		cut()
		own.discard()
	})
	go func() {
		if own.discardOther() {
			c.cancel(errDataAfterEOF)
			c.ssh.Close()
		}
	}()
	return own
}

// Read may be called by several goroutines. It keeps them apart, as the library wakes only one
// of its readers when the client closes the channel.
func (ch *channel) Read(p []byte) (int, error) {
	ch.reading.Lock()
	defer ch.reading.Unlock()
	n, err := ch.Channel.Read(p)
	if err == io.EOF {
		ch.ended.Store(true)
	}
	return n, err
}

// discard reads the rest of the client's data.
func (ch *channel) discard() {
	ch.discarding.Do(func() { go func() { _, _ = io.Copy(io.Discard, onlyReader{ch}) }() })
}

type onlyReader struct{ io.Reader }

// lateInterval is how often a channel is read whose client has sent EOF.
const lateInterval = 2 * time.Second

var errDataAfterEOF = errors.New("the client sent data after the end of its data")

// discardOther reads the data that has no use: clients may send data of other types than
// that of programs' input. It returns once the channel is closed, or true at the first
// data after EOF, which the library keeps as well.
func (ch *channel) discardOther() (late bool) {
	buf := make([]byte, 512)
	for {
		if _, err := ch.Stderr().Read(buf); err != nil {
			break
		}
	}
	tick := time.NewTicker(lateInterval)
	defer tick.Stop()
	for {
		select {
		case <-ch.closed:
			return false
		case <-tick.C:
		}
		n, _ := ch.Stderr().Read(buf) // at its end
		if n == 0 && ch.ended.Load() {
			n, _ = ch.Read(buf)
		}
		if n > 0 {
			return true
		}
	}
}

// counted is a writer whose writes wait for the workspace.
type counted struct {
	io.Writer
	input *waiting
}

func (w counted) Write(p []byte) (int, error) {
	w.input.begin()
	defer w.input.done()
	return w.Writer.Write(p)
}

// countedConn counts the writes to a connection.
type countedConn struct {
	flow.Conn
	input *waiting
}

func (c countedConn) Write(p []byte) (int, error) { return counted{c.Conn, c.input}.Write(p) }
