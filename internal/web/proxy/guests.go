package proxy

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"codehub/internal/running/ports"
	"codehub/internal/workspace"
)

var errTooManyGuest = errors.New("too many requests of visitors without a session")

// perPort is how many times as much one public port takes as one address may ask for.
const perPort = 8

// burst is for how many seconds a rate may be used at once.
const burst = 4

// maxGuests limits the addresses and ports that are remembered. Beyond that, visitors
// without a session are refused until the oldest are forgotten.
const maxGuests = 100_000

// guests limits the requests of visitors without a session: of each address, and to each
// port. Connections limits how many of an address are open at a time.
type guests struct {
	rate, requests int

	mu   sync.Mutex
	paid map[string]time.Time // by address or port: until when the rate allows what was asked
	open map[workspace.Host]int
}

func newGuests(s ports.Settings) *guests {
	return &guests{rate: s.PublicRate, requests: s.PublicRequests, paid: map[string]time.Time{}, open: map[workspace.Host]int{}}
}

// allow counts a request of an address (addressKey) or to a port (portKey), and reports
// whether the rate allows it; 0: every request. A refused request costs nothing.
func (g *guests) allow(key string, rate int, now time.Time) bool {
	if rate == 0 {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	paid := g.paid[key]
	if least := now.Add(-burst * time.Second); paid.Before(least) {
		paid = least
	}
	paid = paid.Add(time.Second / time.Duration(rate))
	if paid.After(now) || len(g.paid) >= maxGuests {
		return false
	}
	g.paid[key] = paid
	return true
}

// portKey is what the requests to a public port are counted by.
func portKey(host workspace.Host) string {
	return "port " + strconv.Itoa(host.Port) + " of " + string(host.ID)
}

// enter counts an open request of a visitor without a session to its port.
func (g *guests) enter(v visit) (leave func(), err error) {
	if v.payer == "" {
		return func() {}, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.requests > 0 && g.open[v.host] >= g.requests*perPort {
		return nil, errTooManyGuest
	}
	g.open[v.host]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.open[v.host]--; g.open[v.host] == 0 {
			delete(g.open, v.host)
		}
	}, nil
}

// forget drops what no longer limits anything.
func (g *guests) forget(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, paid := range g.paid {
		if now.Sub(paid) >= burst*time.Second {
			delete(g.paid, key)
		}
	}
}

// addressKey is the address that a visitor without a session is counted by: an IPv6 /64
// network counts as one.
func addressKey(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return "address " + host
	}
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		network, _ := ip.Prefix(64) // 64 is valid for IPv6
		return "address " + network.String()
	}
	return "address " + ip.String()
}
