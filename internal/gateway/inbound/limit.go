package inbound

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Limits are the limits of a Listener.
type Limits struct {
	Connections int // of all clients
	PerAddress  int // of one address, or of one IPv6 /64
	// Exempt reports addresses without a limit of their own, such as reverse proxies,
	// whose connections belong to many users.
	Exempt func(netip.Addr) bool
	Log    *slog.Logger
}

// Listener limits the open connections. At the limit it closes the connection that
// has been idle longest, or else refuses the new one.
type Listener struct {
	net.Listener
	limits  Limits
	refused *prometheus.CounterVec

	mu        sync.Mutex
	open      map[*conn]struct{}
	byAddress map[netip.Prefix]int
	nextLog   time.Time
}

// Listen returns a Listener that accepts from l.
func Listen(l net.Listener, limits Limits) *Listener {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "codehub_connections_refused_total",
		Help: "Connections of clients that were refused, by the limit that was reached: all or address.",
	}, []string{"limit"})
	for _, limit := range []string{limitAll, limitAddress} {
		refused.WithLabelValues(limit)
	}
	return &Listener{Listener: l, limits: limits, refused: refused, open: map[*conn]struct{}{}, byAddress: map[netip.Prefix]int{}}
}

const (
	limitAll     = "all"
	limitAddress = "address"
)

// Accept returns the next connection within the limits.
func (l *Listener) Accept() (net.Conn, error) {
	// Otherwise, while thousands of connections arrive, everything else that is ready waits.
	runtime.Gosched()
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c, victim, limit := l.admit(accepted)
		if victim != nil {
			_ = victim.Close() // it is idle
		}
		if c != nil {
			return c, nil
		}
		l.refused.WithLabelValues(limit).Inc()
		if tcp, ok := accepted.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // leaves nothing behind in the kernel
		}
		_ = accepted.Close() // it is abandoned either way
	}
}

// admit tracks a new connection. It returns no connection but the limit if that is
// reached, and an idle connection that has to make room.
func (l *Listener) admit(accepted net.Conn) (admitted, victim *conn, limit string) {
	address, counted := l.addressOf(accepted)
	l.mu.Lock()
	defer l.mu.Unlock()
	if counted && l.byAddress[address] >= l.limits.PerAddress {
		l.log(limitAddress, address)
		return nil, nil, limitAddress
	}
	if len(l.open) >= l.limits.Connections {
		if victim = l.longestIdle(); victim == nil {
			l.log(limitAll, address)
			return nil, nil, limitAll
		}
		l.forget(victim)
	}
	c := &conn{Conn: accepted, listener: l, address: address, counted: counted}
	l.open[c] = struct{}{}
	if counted {
		l.byAddress[address]++
	}
	return c, victim, ""
}

// addressOf returns the network that counts as one client, and whether it has a limit.
func (l *Listener) addressOf(c net.Conn) (netip.Prefix, bool) {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}, false
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64 // one customer has at least that many addresses
	}
	prefix, err := ip.Prefix(bits)
	return prefix, err == nil && (l.limits.Exempt == nil || !l.limits.Exempt(ip))
}

func (l *Listener) longestIdle() *conn {
	var longest *conn
	var since int64
	for c := range l.open {
		if at := c.idleSince.Load(); at != 0 && (longest == nil || at < since) {
			longest, since = c, at
		}
	}
	return longest
}

// forget is called with l.mu locked.
func (l *Listener) forget(c *conn) {
	if _, ok := l.open[c]; !ok {
		return
	}
	delete(l.open, c)
	if !c.counted {
		return
	}
	if l.byAddress[c.address]--; l.byAddress[c.address] == 0 {
		delete(l.byAddress, c.address)
	}
}

// log reports a refusal, at most once a minute, because a flood causes many.
func (l *Listener) log(limit string, address netip.Prefix) {
	now := time.Now()
	if now.Before(l.nextLog) {
		return
	}
	l.nextLog = now.Add(time.Minute)
	l.limits.Log.Warn("connection refused", "limit", limit, "open", len(l.open), "address", address.String())
}

// ConnState is the hook for http.Server.ConnState, by which the listener knows the idle
// connections.
func (l *Listener) ConnState(c net.Conn, state http.ConnState) {
	own, ok := c.(*conn)
	for !ok {
		above, has := c.(interface{ NetConn() net.Conn }) // of TLS and of the PROXY protocol
		if !has {
			return
		}
		c = above.NetConn()
		own, ok = c.(*conn)
	}
	at := int64(0)
	if state == http.StateIdle {
		at = time.Now().UnixNano()
	}
	own.idleSince.Store(at)
}

// Open returns the number of open connections.
func (l *Listener) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// Metrics returns the listener's metrics.
func (l *Listener) Metrics() []prometheus.Collector {
	return []prometheus.Collector{l.refused, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "codehub_connections_open", Help: "Open connections of clients.",
	}, func() float64 { return float64(l.Open()) })}
}

// conn is a connection of a client.
type conn struct {
	net.Conn
	listener *Listener
	address  netip.Prefix
	counted  bool // in byAddress

	idleSince atomic.Int64 // Unix nanoseconds; 0 while it has a request, or none yet
}

// NetConn returns the connection that was accepted.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Direct returns the connection below, from which the same is read.
func (c *conn) Direct() (net.Conn, bool) { return c.Conn, true }

// CloseWrite closes the connection for writing, as net/http does before it closes.
func (c *conn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

func (c *conn) Close() error {
	c.listener.mu.Lock()
	c.listener.forget(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
