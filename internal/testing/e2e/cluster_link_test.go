package e2e

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// link is one server's connection to a service that all servers share. The test
// can cut it, delay it and read the bytes that pass.
type link struct {
	testing.TB
	network, address string // where it listens
	target           func() (net.Conn, error)

	mu     sync.Mutex
	l      net.Listener // nil: cut
	conns  map[net.Conn]bool
	gate   chan struct{} // closed while data passes
	delay  time.Duration
	ended  bool
	onData func(c *linkConn, fromClient bool, b []byte)
	group  sync.WaitGroup
}

// linkConn is one connection through a link.
type linkConn struct {
	received []byte // the first bytes from the target, until pid is known
	pid      uint32
}

// newLink listens on address: a loopback address, or the path of a socket if
// network is "unix".
func newLink(tb testing.TB, network, address string, target func() (net.Conn, error)) *link {
	tb.Helper()
	k := &link{TB: tb, network: network, address: address, target: target, conns: map[net.Conn]bool{}, gate: make(chan struct{})}
	close(k.gate)
	k.listen()
	tb.Cleanup(k.end)
	return k
}

func (k *link) listen() {
	k.Helper()
	if k.network == "unix" {
		_ = os.Remove(k.address)
	}
	l, err := net.Listen(k.network, k.address)
	if err != nil {
		k.Error(err)
		return
	}
	k.mu.Lock()
	k.l, k.address = l, l.Addr().String()
	k.mu.Unlock()
	k.group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			k.group.Go(func() { k.serve(c) })
		}
	})
}

func (k *link) serve(client net.Conn) {
	defer client.Close()
	if !k.keep(client) {
		return
	}
	defer k.drop(client)
	k.wait()
	target, err := k.target()
	if err != nil {
		return
	}
	defer target.Close()
	if !k.keep(target) {
		return
	}
	defer k.drop(target)
	c := &linkConn{}
	var both sync.WaitGroup
	both.Go(func() { k.pass(c, target, client, true) })
	both.Go(func() { k.pass(c, client, target, false) })
	both.Wait()
}

// pass forwards data in one direction until either side closes. It forwards the
// close as well, after a freeze ends.
func (k *link) pass(c *linkConn, to, from net.Conn, fromClient bool) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		k.wait()
		if n > 0 {
			k.mu.Lock()
			if k.onData != nil {
				k.onData(c, fromClient, b[:n])
			}
			k.mu.Unlock()
			if _, werr := to.Write(b[:n]); werr != nil {
				_ = from.Close()
				return
			}
		}
		if err != nil {
			half, ok := to.(interface{ CloseWrite() error })
			if !ok || !errors.Is(err, io.EOF) {
				_ = to.Close()
				return
			}
			_ = half.CloseWrite()
			return
		}
	}
}

// wait blocks while the link is frozen, and adds its delay.
func (k *link) wait() {
	for {
		k.mu.Lock()
		gate, delay := k.gate, k.delay
		k.mu.Unlock()
		<-gate
		if delay > 0 {
			time.Sleep(delay)
		}
		k.mu.Lock()
		same := gate == k.gate
		k.mu.Unlock()
		if same {
			return
		}
	}
}

func (k *link) keep(c net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.l == nil {
		return false
	}
	k.conns[c] = true
	return true
}

func (k *link) drop(c net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, c)
}

// cut breaks every connection and refuses new ones, until heal.
func (k *link) cut() {
	k.mu.Lock()
	l := k.l
	k.l = nil
	for c := range k.conns {
		_ = c.Close()
	}
	k.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
}

// freeze holds data in both directions without closing connections, as a
// network does that drops packets. thaw forwards it.
func (k *link) freeze() {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.gate:
		k.gate = make(chan struct{})
	default: // frozen already
	}
}

func (k *link) thaw() {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.gate:
	default:
		close(k.gate)
	}
}

// heal ends every fault of the link.
func (k *link) heal() {
	k.Helper()
	k.mu.Lock()
	down := k.l == nil && !k.ended
	k.delay = 0
	k.mu.Unlock()
	if down {
		k.listen()
	}
	k.thaw()
}

// slow delays data in both directions.
func (k *link) slow(by time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.delay = by
}

func (k *link) end() {
	k.mu.Lock()
	k.ended = true
	k.mu.Unlock()
	k.cut()
	k.thaw()
	k.group.Wait()
}

// setOnData makes f receive all data that passes.
func (k *link) setOnData(f func(c *linkConn, fromClient bool, b []byte)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.onData = f
}

// backends reads the pids of the PostgreSQL backends at the other end of a
// link. of reports whether pid is one of them.
func (k *link) backends() (of func(pid uint32) bool) {
	pids := map[uint32]bool{}
	k.setOnData(func(c *linkConn, fromClient bool, b []byte) {
		if fromClient || c.pid != 0 {
			return
		}
		c.received = append(c.received, b...)
		if pid := backendOf(c.received); pid != 0 {
			pids[pid], c.pid, c.received = true, pid, nil
		}
	})
	return func(pid uint32) bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return pids[pid]
	}
}

// backendOf returns the pid of BackendKeyData ('K', length 12, pid, secret) in
// the first messages of PostgreSQL to a client, 0 if it is not among them.
func backendOf(received []byte) uint32 {
	number := func(b []byte) uint32 {
		return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	}
	for len(received) >= 5 {
		n := int(number(received[1:])) + 1
		if len(received) < n {
			return 0
		}
		if received[0] == 'K' && n >= 13 {
			return number(received[5:])
		}
		received = received[n:]
	}
	return 0
}
