package e2e

import (
	"errors"
	"io"
	"net"
	"os"
	"regexp"
	"sync"
	"testing"
	"time"
)

// link is one server's way to something that all of them share, which the test
// can cut, hold up and listen to. What passes is bytes to it.
type link struct {
	testing.TB
	network, address string // where it listens
	target           func() (net.Conn, error)

	mu     sync.Mutex
	l      net.Listener // nil: cut
	conns  map[net.Conn]bool
	gate   chan struct{} // closed while what comes passes
	delay  time.Duration
	ended  bool
	passed func(c *linked, fromClient bool, b []byte)
	group  sync.WaitGroup
}

// linked is one connection through a link.
type linked struct {
	said []byte // the beginning of what the target has said, for who looks into it
	pid  uint32
}

// newLink listens on address, "" for a free port of the loopback or, with the
// network "unix", what it is given.
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
	c := &linked{}
	var both sync.WaitGroup
	both.Go(func() { k.pass(c, target, client, true) })
	both.Go(func() { k.pass(c, client, target, false) })
	both.Wait()
}

// pass hands on until either side ends, and the end too, once the way is free.
func (k *link) pass(c *linked, to, from net.Conn, fromClient bool) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		k.wait()
		if n > 0 {
			k.mu.Lock()
			if k.passed != nil {
				k.passed(c, fromClient, b[:n])
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

// wait holds up what comes while the way is frozen.
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

// freeze holds up whatever is sent either way, as a network does that has lost
// its way: nobody is told anything. thaw lets it all pass.
func (k *link) freeze() {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.gate:
		k.gate = make(chan struct{})
	default: // it is
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

// heal is the end of whatever is wrong with it.
func (k *link) heal() {
	k.Helper()
	k.mu.Lock()
	gone := k.l == nil && !k.ended
	k.delay = 0
	k.mu.Unlock()
	if gone {
		k.listen()
	}
	k.thaw()
}

// slow has everything take longer, each way.
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

// hear has f told of all that passes.
func (k *link) hear(f func(c *linked, fromClient bool, b []byte)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.passed = f
}

// backends has a link to PostgreSQL tell which of its processes are at the
// other end: of says whether one is.
func (k *link) backends() (of func(pid uint32) bool) {
	pids := map[uint32]bool{}
	k.hear(func(c *linked, fromClient bool, b []byte) {
		if fromClient || c.pid != 0 {
			return
		}
		c.said = append(c.said, b...)
		if pid := backendOf(c.said); pid != 0 {
			pids[pid], c.pid, c.said = true, pid, nil
		}
	})
	return func(pid uint32) bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return pids[pid]
	}
}

// backendOf finds BackendKeyData ('K', length 12, pid, secret) among the first
// messages of PostgreSQL to a client; 0: it has not come yet.
func backendOf(said []byte) uint32 {
	number := func(b []byte) uint32 {
		return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	}
	for len(said) >= 5 {
		n := int(number(said[1:])) + 1
		if len(said) < n {
			return 0
		}
		if said[0] == 'K' && n >= 13 {
			return number(said[5:])
		}
		said = said[n:]
	}
	return 0
}

var engineCall = regexp.MustCompile(`^(?:GET|HEAD|POST|PUT|DELETE) \S+`)

// calls has a link to an engine remember what a server asks of it; take
// returns what there was since it was last called.
func (k *link) calls() (take func() []string) {
	var all []string
	k.hear(func(_ *linked, fromClient bool, b []byte) {
		if m := engineCall.Find(b); fromClient && m != nil {
			all = append(all, string(m))
		}
	})
	return func() []string {
		k.mu.Lock()
		defer k.mu.Unlock()
		out := all
		all = nil
		return out
	}
}
