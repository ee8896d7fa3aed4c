package network

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// addressReuseAfter is how long an address is not reused after its last use, so
// that a stale route reaches no other workspace.
const addressReuseAfter = 10 * time.Minute

// addresses assigns the addresses of a subnet in order. It begins with a random
// one, because it does not know the addresses assigned by an earlier process.
type addresses struct {
	mu     sync.Mutex
	subnet netip.Prefix
	next   uint32
	used   map[netip.Addr]time.Time
}

// reset sets the subnet. The state is kept if it has not changed.
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

// take returns an address that was not used within addressReuseAfter, or else the
// least recently used one.
func (a *addresses) take(now time.Time) netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	base := a.subnet.Masked().Addr().As4()
	// Exclude the network's own address, the gateway and the broadcast address.
	count := uint32(1)<<(32-a.subnet.Bits()) - 3
	var oldest netip.Addr
	for range count {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(base[:])+2+a.next%count)
		a.next++
		addr := netip.AddrFrom4(b)
		last, ok := a.used[addr]
		if !ok || now.Sub(last) > addressReuseAfter {
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

// MarkUsed records that the address is in use now.
func (a *addresses) markUsed(addr netip.Addr, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used != nil && addr.IsValid() && a.subnet.Contains(addr) {
		a.used[addr] = now
	}
}
