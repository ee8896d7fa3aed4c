package docker

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// addressRest is how long an address is not given out again after its last
// use, so that a stale route reaches nobody (design §8).
const addressRest = 10 * time.Minute

// addresses gives out the addresses of a subnet, in order from a random one,
// since what a process before this one gave out is not known.
type addresses struct {
	mu     sync.Mutex
	subnet netip.Prefix
	next   uint32
	used   map[netip.Addr]time.Time
}

// reset takes up a subnet; the one it has already keeps its memory.
func (a *addresses) reset(subnet netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.subnet == subnet {
		return
	}
	a.subnet = subnet
	a.used = map[netip.Addr]time.Time{}
	a.next = rand.Uint32()
}

// take returns an address that was not in use within addressRest, or the one
// whose last use is longest ago.
func (a *addresses) take(now time.Time) netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	base := a.subnet.Masked().Addr().As4()
	// Not the network's own address, not the gateway, not the broadcast.
	count := uint32(1)<<(32-a.subnet.Bits()) - 3
	var oldest netip.Addr
	for range count {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(base[:])+2+a.next%count)
		a.next++
		addr := netip.AddrFrom4(b)
		last, ok := a.used[addr]
		if !ok || now.Sub(last) > addressRest {
			a.used[addr] = now
			return addr
		}
		if !oldest.IsValid() || last.Before(a.used[oldest]) {
			oldest = addr
		}
	}
	a.used[oldest] = now
	return oldest
}

// seen notes that the address is in use, or was until now.
func (a *addresses) seen(addr netip.Addr, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used != nil && addr.IsValid() && a.subnet.Contains(addr) {
		a.used[addr] = now
	}
}
