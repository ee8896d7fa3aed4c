package front_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"codehub/internal/gateway/front"
)

// settings resolves settings as codehub serve does.
func settings(t testing.TB, trusted string) front.Settings {
	t.Helper()
	s := front.Settings{TrustedProxies: trusted, MinVersion: "1.2"}
	if err := s.Resolve(); err != nil {
		t.Fatal(err)
	}
	return s
}

// seen responds with the client's address, scheme and host, as a handler sees them.
var seen = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	_, _ = io.WriteString(w, front.Address(r).String()+" "+front.Scheme(r)+" "+r.Host)
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Forwarded") || name == "Forwarded" || name == "X-Real-Ip" {
			_, _ = io.WriteString(w, " "+name)
		}
	}
})

func own(host string) bool {
	return host == "code.example.com" || strings.HasSuffix(host, ".ws.example.com")
}

// ask sends a request from an address of this machine, with the given header lines, and
// returns the body of the response.
func ask(t *testing.T, server, from, host string, lines ...string) string {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := dialer.DialContext(t.Context(), "tcp", server)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return exchange(t, c, host, lines...)
}

func exchange(t *testing.T, c net.Conn, host string, lines ...string) string {
	t.Helper()
	request := "GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n"
	for _, line := range lines {
		request += line + "\r\n"
	}
	if _, err := io.WriteString(c, request+"\r\n"); err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(string(raw), "\r\n\r\n")
	if !strings.HasPrefix(head, "HTTP/1.1 200 ") {
		t.Fatalf("answer: %q", raw)
	}
	return body
}

func TestClientBehindProxies(t *testing.T) {
	t.Parallel()
	s := settings(t, "127.0.0.2, 127.0.1.0/24, 2001:db8:ffff::/48")
	server := httptest.NewServer(s.Proxies.Handler(own, seen))
	t.Cleanup(server.Close)
	address := server.Listener.Addr().String()
	const trusted, stranger, main = "127.0.0.2", "127.0.0.3", "code.example.com"
	for _, tc := range []struct {
		name, from, host string
		lines            []string
		want             string
	}{
		{"no proxy", stranger, main, nil, "127.0.0.3  code.example.com"},
		{"untrusted peer forges all", stranger, main,
			[]string{"X-Forwarded-For: 203.0.113.9", "X-Forwarded-Proto: https", "X-Forwarded-Host: a.ws.example.com", "Forwarded: for=203.0.113.9", "X-Real-IP: 203.0.113.9"},
			"127.0.0.3  code.example.com"},
		{"untrusted peer names trusted proxies", stranger, main, []string{"X-Forwarded-For: 203.0.113.9, 127.0.0.2"}, "127.0.0.3  code.example.com"},
		{"trusted proxy says nothing", trusted, main, nil, "127.0.0.2  code.example.com"},
		{"one proxy", trusted, main, []string{"X-Forwarded-For: 203.0.113.9", "X-Forwarded-Proto: https"}, "203.0.113.9 https code.example.com"},
		{"client forges an address", trusted, main, []string{"X-Forwarded-For: 198.51.100.1, 203.0.113.9"}, "203.0.113.9  code.example.com"},
		{"client forges an address in a line of its own", trusted, main,
			[]string{"X-Forwarded-For: 198.51.100.1", "x-forwarded-for: 203.0.113.9"}, "203.0.113.9  code.example.com"},
		{"client forges a chain of proxies", trusted, main,
			[]string{"X-Forwarded-For: 198.51.100.1, 127.0.1.5, 127.0.0.2, 203.0.113.9"}, "203.0.113.9  code.example.com"},
		{"chain", trusted, main, []string{"X-Forwarded-For: 203.0.113.9,127.0.1.5 ,\t127.0.1.6"}, "203.0.113.9  code.example.com"},
		{"chain on several lines", trusted, main,
			[]string{"X-Forwarded-For: 198.51.100.1, 203.0.113.9", "X-Forwarded-For: 127.0.1.5", "X-Forwarded-For: 127.0.1.6"}, "203.0.113.9  code.example.com"},
		{"chain of trusted proxies only", trusted, main, []string{"X-Forwarded-For: 127.0.1.5, 127.0.1.6"}, "127.0.1.5  code.example.com"},
		{"an untrusted proxy within the chain", trusted, main, []string{"X-Forwarded-For: 203.0.113.9, 192.0.2.7, 127.0.1.6"}, "192.0.2.7  code.example.com"},
		{"not an address", trusted, main, []string{"X-Forwarded-For: 203.0.113.9, unknown"}, "127.0.0.2  code.example.com"},
		{"not an address behind a proxy", trusted, main, []string{"X-Forwarded-For: 203.0.113.9, <script>, 127.0.1.5"}, "127.0.1.5  code.example.com"},
		{"empty elements", trusted, main, []string{"X-Forwarded-For: 203.0.113.9,"}, "127.0.0.2  code.example.com"},
		{"an empty line", trusted, main, []string{"X-Forwarded-For: 203.0.113.9", "X-Forwarded-For:"}, "127.0.0.2  code.example.com"},
		{"address with port", trusted, main, []string{"X-Forwarded-For: 203.0.113.9:4711"}, "203.0.113.9  code.example.com"},
		{"port that is none", trusted, main, []string{"X-Forwarded-For: 203.0.113.9:99999"}, "127.0.0.2  code.example.com"},
		{"IPv6", trusted, main, []string{"X-Forwarded-For: 2001:db8::9"}, "2001:db8::9  code.example.com"},
		{"IPv6 in brackets", trusted, main, []string{"X-Forwarded-For: [2001:db8::9]"}, "2001:db8::9  code.example.com"},
		{"IPv6 with port", trusted, main, []string{"X-Forwarded-For: [2001:db8::9]:4711"}, "2001:db8::9  code.example.com"},
		{"IPv6 through a trusted proxy", trusted, main, []string{"X-Forwarded-For: 2001:db8::9, 2001:db8:ffff::1"}, "2001:db8::9  code.example.com"},
		{"IPv6 with zone", trusted, main, []string{"X-Forwarded-For: fe80::1%eth0"}, "fe80::1  code.example.com"},
		{"half a bracket", trusted, main, []string{"X-Forwarded-For: [2001:db8::9"}, "127.0.0.2  code.example.com"},
		{"IPv4-mapped client", trusted, main, []string{"X-Forwarded-For: ::ffff:203.0.113.9"}, "203.0.113.9  code.example.com"},
		{"IPv4-mapped proxy", trusted, main, []string{"X-Forwarded-For: 203.0.113.9, ::ffff:127.0.1.5"}, "203.0.113.9  code.example.com"},
		{"octal", trusted, main, []string{"X-Forwarded-For: 203.0.113.010"}, "127.0.0.2  code.example.com"},
		{"scheme", trusted, main, []string{"X-Forwarded-Proto: HTTP"}, "127.0.0.2 http code.example.com"},
		{"scheme that is none", trusted, main, []string{"X-Forwarded-Proto: gopher"}, "127.0.0.2  code.example.com"},
		{"client forges a scheme", trusted, main, []string{"X-Forwarded-Proto: https", "X-Forwarded-Proto: http"}, "127.0.0.2 http code.example.com"},
		{"proxy replaced the host", trusted, "10.0.0.1:8080", []string{"X-Forwarded-Host: a.ws.example.com"}, "127.0.0.2  a.ws.example.com"},
		{"client forges a host", trusted, "a.ws.example.com", []string{"X-Forwarded-Host: code.example.com"}, "127.0.0.2  a.ws.example.com"},
		{"a host that is not codehub's", trusted, "10.0.0.1:8080", []string{"X-Forwarded-Host: evil.example"}, "127.0.0.2  10.0.0.1:8080"},
		{"several hosts", trusted, "10.0.0.1:8080", []string{"X-Forwarded-Host: a.ws.example.com, code.example.com"}, "127.0.0.2  code.example.com"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := ask(t, address, tc.from, tc.host, tc.lines...); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestIPv6Proxy(t *testing.T) {
	t.Parallel()
	for trusted, want := range map[string]string{"::1": "203.0.113.9", "127.0.0.1,2001:db8::/32": "::1"} {
		l, err := net.Listen("tcp", "[::1]:0")
		if err != nil {
			t.Skipf("this machine has no IPv6: %v", err)
		}
		server := httptest.NewUnstartedServer(settings(t, trusted).Proxies.Handler(own, seen))
		server.Listener.Close()
		server.Listener = l
		server.Start()
		got := ask(t, l.Addr().String(), "::1", "code.example.com", "X-Forwarded-For: 203.0.113.9")
		server.Close()
		if got != want+"  code.example.com" {
			t.Errorf("trusted %s: got %q", trusted, got)
		}
	}
}

func TestAddressWithoutProxies(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"203.0.113.9:1": "203.0.113.9", "[::ffff:203.0.113.9]:1": "203.0.113.9", "[fe80::1%eth0]:1": "fe80::1", "": "invalid IP", "@": "invalid IP", "pipe": "invalid IP",
	} {
		if got := front.Address(&http.Request{RemoteAddr: remote}).String(); got != want {
			t.Errorf("%q: %s", remote, got)
		}
	}
}

// The client's address is the one that the proxy in front of codehub appends to
// X-Forwarded-For. Addresses that the client itself sends have no effect.
func FuzzForwardedFor(f *testing.F) {
	for _, seed := range []string{"", "1.2.3.4", "1.2.3.4, 127.0.0.2", "[::1]:80,", "unknown", ",,", "::ffff:127.0.0.2", "fe80::1%a,b", "127.0.0.2:99999", "\x00", "127.0.0.2,\t"} {
		f.Add(seed, seed, seed, false)
	}
	proxies := settings(f, "127.0.0.2,127.0.1.0/24").Proxies
	f.Fuzz(func(t *testing.T, forged, scheme, host string, lines bool) {
		client := netip.MustParseAddr("203.0.113.9")
		headers := http.Header{"X-Forwarded-For": {forged, client.String() + ", 127.0.1.7"}, "X-Forwarded-Proto": {scheme}, "X-Forwarded-Host": {host}}
		if !lines {
			headers["X-Forwarded-For"] = []string{forged + "," + client.String() + ",127.0.1.7"}
		}
		look := func(peer string) (got *http.Request) {
			r := (&http.Request{RemoteAddr: peer, Host: "a.ws.example.com", Header: headers.Clone()}).WithContext(context.Background())
			proxies.Handler(own, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r })).ServeHTTP(nil, r)
			return got
		}
		if got := look("127.0.0.2:5"); front.Address(got) != client || got.Host != "a.ws.example.com" {
			t.Errorf("behind the proxy: %v at %q", front.Address(got), got.Host)
		}
		got := look("203.0.113.9:5")
		if got.RemoteAddr != "203.0.113.9:5" || front.Scheme(got) != "" || len(got.Header) != 0 {
			t.Errorf("without the proxy: %v %q %v", got.RemoteAddr, front.Scheme(got), got.Header)
		}
		headers["X-Forwarded-For"] = []string{forged}
		if a := front.Address(look("127.0.0.2:5")); !a.IsValid() || a.Zone() != "" || a.Is4In6() {
			t.Errorf("%q gives the address %v", forged, a)
		}
	})
}
