package inbound

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"codehub/internal/testing/harness"
)

// clients is a listener whose connections come from given addresses.
type clients struct {
	accept chan net.Conn
}

func (c *clients) Accept() (net.Conn, error) {
	conn, ok := <-c.accept
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (c *clients) Close() error   { return nil }
func (c *clients) Addr() net.Addr { return &net.TCPAddr{} }

type from struct {
	net.Conn
	address string
}

func (c from) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.address))
}

func TestPerAddressLimit(t *testing.T) {
	t.Parallel()
	proxy := netip.MustParseAddr("10.0.0.1")
	raw := &clients{accept: make(chan net.Conn)}
	l := Listen(raw, Limits{Connections: 100, PerAddress: 2, Log: slog.New(slog.DiscardHandler), Exempt: func(a netip.Addr) bool { return a == proxy || a.IsLoopback() }})
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	// dial returns the accepted connection, or nil if the client was disconnected.
	dial := func(address string) net.Conn {
		t.Helper()
		client, server := net.Pipe()
		raw.accept <- from{server, address}
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = client.Read(make([]byte, 1))
		}()
		select {
		case c := <-accepted:
			return c
		case <-gone:
			return nil
		case <-time.After(harness.Patience):
			t.Fatal("neither accepted nor refused")
			return nil
		}
	}
	for _, test := range []struct {
		address string
		want    bool
	}{
		{"192.0.2.1:1", true}, {"192.0.2.1:2", true}, {"192.0.2.1:3", false}, {"[::ffff:192.0.2.1]:4", false},
		{"192.0.2.2:1", true},
		{"[2001:db8::1]:1", true}, {"[2001:db8::2]:1", true}, {"[2001:db8::3]:1", false}, {"[2001:db8:0:1::3]:1", true},
		{"10.0.0.1:1", true}, {"10.0.0.1:2", true}, {"10.0.0.1:3", true}, {"[::ffff:10.0.0.1]:4", true},
		{"127.0.0.1:1", true}, {"127.0.0.1:2", true}, {"127.0.0.1:3", true}, {"[::1]:1", true}, {"[::1]:2", true}, {"[::1]:3", true},
	} {
		if got := dial(test.address) != nil; got != test.want {
			t.Errorf("%s: accepted %v, want %v", test.address, got, test.want)
		}
	}
	// A closed connection makes room for one more, however often it is closed.
	first := dial("192.0.2.9:1")
	dial("192.0.2.9:2")
	first.Close()
	first.Close()
	if dial("192.0.2.9:3") == nil || dial("192.0.2.9:4") != nil {
		t.Error("closing one connection did not make room for exactly one")
	}
	close(raw.accept)
	<-accepted
}

// At the limit the longest idle connection makes room; a connection with a request
// stays.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(tcp, Limits{Connections: 3, PerAddress: 1, Log: slog.New(slog.DiscardHandler), Exempt: netip.Addr.IsLoopback})
	release := make(chan struct{})
	srv := Settings{RequestTimeout: time.Hour, IdleTimeout: time.Hour}.Server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			<-release
		}
		_, _ = io.WriteString(w, "ok")
	}))
	srv.ConnState = l.ConnState
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	open := func(path string) (net.Conn, func() string) {
		t.Helper()
		c, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil { // refused while it was being connected
			return nil, func() string { return "" }
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(harness.Patience))
		_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		return c, func() string {
			b := make([]byte, 15)
			n, _ := io.ReadFull(c, b)
			return string(b[:n])
		}
	}
	_, answer := open("/wait")
	idle, first := open("/")
	if got := first(); got != "HTTP/1.1 200 OK" {
		t.Fatalf("%q", got)
	}
	_, second := open("/wait")
	harness.Eventually(t, "three connections, one of them idle", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.open) == 3 && l.longestIdle() != nil
	})
	_, third := open("/wait")
	if _, err := io.Copy(io.Discard, idle); err != nil {
		t.Errorf("the idle connection was not closed in order: %v", err)
	}
	// Now all three have a request.
	if _, refused := open("/"); refused() != "" {
		t.Error("more connections than the limit")
	}
	close(release)
	for _, a := range []func() string{answer, second, third} {
		if got := a(); got != "HTTP/1.1 200 OK" {
			t.Errorf("%q", got)
		}
	}
}

func TestCapacity(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		connections, ssh int
		descriptors      uint64
		forHTTP, forSSH  int
	}{
		{10000, 1000, 400, 112, 75}, {10000, 1000, 1024, 288, 192}, {10000, 1000, 4096, 1344, 896}, {10000, 100, 4096, 1742, 100},
		{10000, 1000, 1 << 20, 10000, 1000}, {10000, 1000, 1<<64 - 1, 10000, 1000}, {16, 1000, 1024, 16, 192}, {100, 100, 10, 1, 1},
	} {
		forHTTP, forSSH := capacity(test.connections, test.ssh, test.descriptors)
		if forHTTP != test.forHTTP || forSSH != test.forSSH {
			t.Errorf("%d and %d with %d descriptors: %d and %d, want %d and %d", test.connections, test.ssh, test.descriptors, forHTTP, forSSH, test.forHTTP, test.forSSH)
		}
		// Each connection of an HTTP client has two, and some remain for the rest.
		if rest := test.descriptors - min(uint64(2*forHTTP+forSSH), test.descriptors); test.descriptors >= 400 && rest < min(test.descriptors/4, 512) {
			t.Errorf("%d descriptors: %d remain", test.descriptors, rest)
		}
	}
}
