package front_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"codehub/internal/gateway/front"
)

// version2 is a PROXY protocol header of version 2.
func version2(command, family byte, payload []byte) string {
	head := append([]byte("\r\n\r\n\x00\r\nQUIT\n"), command, family)
	return string(binary.BigEndian.AppendUint16(head, uint16(len(payload)))) + string(payload)
}

var (
	// From 203.0.113.9:4660 and [2001:db8::9]:4660.
	inet4 = []byte{203, 0, 113, 9, 192, 0, 2, 1, 0x12, 0x34, 0, 80}
	inet6 = append(append(append(net.ParseIP("2001:db8::9"), net.ParseIP("2001:db8::1")...), 0x12, 0x34), 0, 80)
)

// proxied starts a server that expects PROXY protocol from 127.0.0.2.
func proxied(t *testing.T, secure bool) string {
	t.Helper()
	proxies := settings(t, "127.0.0.2").Proxies
	server := httptest.NewUnstartedServer(proxies.Handler(own, seen))
	server.Listener = proxies.ProxyProtocol(server.Listener)
	server.Config.ErrorLog = nil
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// send writes text from an address of this machine and returns everything that the server
// sends.
func send(t *testing.T, server, from, text string) string {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := dialer.DialContext(t.Context(), "tcp", server)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		return ""
	}
	answer, _ := io.ReadAll(c) // a reset ends the response too
	return string(answer)
}

func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	address := proxied(t, false)
	const trusted, stranger = "127.0.0.2", "127.0.0.3"
	const request = "GET / HTTP/1.1\r\nHost: code.example.com\r\nX-Forwarded-For: 198.51.100.1\r\nConnection: close\r\n\r\n"
	for _, tc := range []struct {
		name, from, header string
		want               string // empty: refused
	}{
		{"version 1", trusted, "PROXY TCP4 203.0.113.9 192.0.2.1 4660 80\r\n", "203.0.113.9"},
		{"version 1, IPv6", trusted, "PROXY TCP6 2001:db8::9 2001:db8::1 4660 80\r\n", "2001:db8::9"},
		{"version 1, unknown", trusted, "PROXY UNKNOWN\r\n", "198.51.100.1"},
		{"version 2", trusted, version2(0x21, 0x11, inet4), "203.0.113.9"},
		{"version 2, IPv6", trusted, version2(0x21, 0x21, inet6), "2001:db8::9"},
		{"version 2 with more", trusted, version2(0x21, 0x11, append(bytes.Clone(inet4), 4, 0, 1, 0)), "203.0.113.9"},
		{"version 2, the proxy itself", trusted, version2(0x20, 0x00, nil), "198.51.100.1"},
		{"the client is a trusted proxy", trusted, "PROXY TCP4 127.0.0.2 192.0.2.1 4660 80\r\n", "198.51.100.1"},
		{"two headers", trusted, "PROXY TCP4 203.0.113.9 192.0.2.1 4660 80\r\nPROXY TCP4 203.0.113.10 192.0.2.1 4660 80\r\n", ""},
		{"none", trusted, "", ""},
		{"version 1, no address", trusted, "PROXY TCP4 example.com 192.0.2.1 4660 80\r\n", ""},
		{"version 1, another family", trusted, "PROXY TCP4 2001:db8::9 192.0.2.1 4660 80\r\n", ""},
		{"version 1, port", trusted, "PROXY TCP4 203.0.113.9 192.0.2.1 65536 80\r\n", ""},
		{"version 1, no end", trusted, "PROXY TCP4 " + strings.Repeat("2", 200), ""},
		{"version 2, too short", trusted, version2(0x21, 0x11, inet4[:8]), ""},
		{"version 2, UDP", trusted, version2(0x21, 0x12, inet4), ""},
		{"version 2, a socket", trusted, version2(0x21, 0x31, make([]byte, 216)), ""},
		{"version 2, unknown command", trusted, version2(0x22, 0x11, inet4), ""},
		{"version 3", trusted, version2(0x31, 0x11, inet4), ""},
		{"nothing from a stranger", stranger, "", "127.0.0.3"},
		{"version 1 from a stranger", stranger, "PROXY TCP4 203.0.113.9 192.0.2.1 4660 80\r\n", ""},
		{"version 2 from a stranger", stranger, version2(0x21, 0x11, inet4), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := send(t, address, tc.from, tc.header+request)
			if tc.want == "" {
				if strings.HasPrefix(got, "HTTP/1.1 200") {
					t.Errorf("accepted: %q", got)
				}
				return
			}
			if _, body, _ := strings.Cut(got, "\r\n\r\n"); body != tc.want+"  code.example.com" {
				t.Errorf("got %q, want %s", got, tc.want)
			}
		})
	}
}

// The header comes before the handshake of TLS.
func TestProxyProtocolBeforeTLS(t *testing.T) {
	t.Parallel()
	address := proxied(t, true)
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, version2(0x21, 0x11, inet4)); err != nil {
		t.Fatal(err)
	}
	secured := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	if got := exchange(t, secured, "code.example.com"); got != "203.0.113.9 https code.example.com" {
		t.Errorf("got %q", got)
	}
}

// A connection that was taken over can be closed in one direction, and tuned.
func TestProxiedConnectionIsTCP(t *testing.T) {
	t.Parallel()
	proxies := settings(t, "127.0.0.2").Proxies
	tuned := make(chan bool, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			tuned <- false
			return
		}
		defer c.Close()
		_, ok := front.TCP(c)
		half, can := c.(interface{ CloseWrite() error })
		tuned <- ok && can && half.CloseWrite() == nil
		_, _ = io.Copy(io.Discard, rw)
	}))
	server.Listener = proxies.ProxyProtocol(server.Listener)
	server.Start()
	t.Cleanup(server.Close)
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "PROXY TCP4 203.0.113.9 192.0.2.1 4660 80\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
		t.Errorf("read %q, %v", rest, err)
	}
	if !<-tuned {
		t.Error("the connection has no TCP connection or no CloseWrite")
	}
	if _, ok := front.TCP(&net.UnixConn{}); ok {
		t.Error("a socket counts as TCP")
	}
}

// recorded is a connection from a peer that has sent some bytes and has closed.
type recorded struct {
	net.Conn
	peer net.TCPAddr
	sent *bytes.Reader
}

func (c recorded) Read(b []byte) (int, error)      { return c.sent.Read(b) }
func (c recorded) RemoteAddr() net.Addr            { return &c.peer }
func (c recorded) LocalAddr() net.Addr             { return &net.TCPAddr{} }
func (c recorded) SetReadDeadline(time.Time) error { return nil }

type single struct {
	net.Listener
	conn net.Conn
}

func (l single) Accept() (net.Conn, error) { return l.conn, nil }

func FuzzProxyProtocol(f *testing.F) {
	for _, seed := range []string{
		"", "GET / HTTP/1.1\r\n\r\n", "PROXY TCP4 203.0.113.9 192.0.2.1 4660 80\r\nGET", "PROXY TCP6 2001:db8::9 ::1 1 2\r\n", "PROXY UNKNOWN\r\n", "PROXY \r\n", "PROXY",
		version2(0x21, 0x11, inet4), version2(0x21, 0x21, inet6), version2(0x20, 0, nil), version2(0x21, 0x12, inet4), version2(0x21, 0x31, make([]byte, 216)), version2(0x21, 0x13, inet4),
	} {
		f.Add([]byte(seed))
	}
	proxies := settings(f, "127.0.0.2").Proxies
	f.Fuzz(func(t *testing.T, sent []byte) {
		accept := func(peer net.IP) net.Conn {
			c, err := proxies.ProxyProtocol(single{conn: recorded{peer: net.TCPAddr{IP: peer, Port: 5}, sent: bytes.NewReader(sent)}}).Accept()
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		c := accept(net.IPv4(127, 0, 0, 3))
		if got := c.RemoteAddr().String(); got != "127.0.0.3:5" {
			t.Errorf("a stranger is %s", got)
		}
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("read %q of a stranger, %v", got, err)
		}
		c = accept(net.IPv4(127, 0, 0, 2))
		if a := front.Address(&http.Request{RemoteAddr: c.RemoteAddr().String()}); !a.IsValid() || a.Zone() != "" {
			t.Errorf("the client's address is %v", c.RemoteAddr())
		}
		got, err := io.ReadAll(c)
		if err == nil && (len(got) == len(sent) || !bytes.HasSuffix(sent, got)) {
			t.Errorf("accepted without a header: %q", got)
		}
		if err != nil && c.RemoteAddr().String() != "127.0.0.2:5" {
			t.Errorf("refused, and yet from %v", c.RemoteAddr())
		}
	})
}
