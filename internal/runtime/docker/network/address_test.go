package network

import (
	"net/netip"
	"testing"
	"time"
)

func TestAddressReuse(t *testing.T) {
	t.Parallel()
	var a addresses
	a.reset(netip.MustParsePrefix("10.9.8.0/29")) // .2 to .6
	start := time.Now()
	seen := map[string]bool{}
	for range 5 {
		addr := a.take(start)
		if seen[addr.String()] || !a.subnet.Contains(addr) {
			t.Fatalf("%s was assigned twice, or is not in the subnet", addr)
		}
		seen[addr.String()] = true
	}
	for _, never := range []string{"10.9.8.0", "10.9.8.1", "10.9.8.7"} {
		if seen[never] {
			t.Errorf("%s was assigned", never)
		}
	}
	// All were used recently: the least recently used one is taken.
	var oldest string
	for s := range seen {
		if oldest == "" {
			oldest = s
			continue
		}
		a.markUsed(netip.MustParseAddr(s), start.Add(time.Minute))
	}
	if got := a.take(start.Add(2 * time.Minute)).String(); got != oldest {
		t.Errorf("took %s, want %s", got, oldest)
	}
	// Reusable again.
	if got := a.take(start.Add(2*time.Minute + addressReuseAfter)).String(); got == oldest {
		t.Errorf("took %s, which is in use", got)
	}
}
