package front

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Address returns the address of the client that sent a request. Behind Handler that is
// the client of the trusted proxies, elsewhere the peer. The address is IPv4 where an
// IPv4-mapped one was given, and has no zone; it is the zero Addr if unknown.
func Address(r *http.Request) netip.Addr {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap().WithZone("")
}

type schemeKey struct{}

// Scheme returns the scheme that the client used: https on TLS connections, else what a
// trusted proxy says. It is empty if unknown: a proxy that is not trusted may have
// terminated TLS.
func Scheme(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	scheme, _ := r.Context().Value(schemeKey{}).(string)
	return scheme
}

// forwarding lists the headers in which proxies describe the client.
var forwarding = []string{
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Forwarded-Prefix",
	"X-Forwarded-Scheme", "X-Forwarded-Server", "X-Forwarded-Ssl", "X-Forwarded-By", "X-Real-Ip",
}

// Handler passes requests to next as the client sent them to the outermost trusted
// proxy: RemoteAddr is the client's address (with port 0), Host is the host that it
// asked for, and Scheme its scheme. It removes the forwarding headers of all
// requests; those of peers that are not trusted have no effect.
//
// X-Forwarded-Host counts only where a proxy has replaced Host: if Host is not one of
// codehub's own, and X-Forwarded-Host is. Proxies commonly pass on the X-Forwarded-Host
// of a client, so a page could otherwise ask for another host than its own.
func (p Proxies) Handler(own func(host string) bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer := Address(r)
		scheme := ""
		if p.Contain(peer) {
			r = r.WithContext(r.Context()) // RemoteAddr and Host of the server's own request stay
			if client := p.client(peer, r.Header["X-Forwarded-For"]); client != peer {
				r.RemoteAddr = netip.AddrPortFrom(client, 0).String()
			}
			if host := last(r.Header["X-Forwarded-Host"]); host != "" && !own(r.Host) && own(host) {
				r.Host = host
			}
			scheme = forwardedScheme(r.Header["X-Forwarded-Proto"])
		}
		for _, name := range forwarding {
			delete(r.Header, name)
		}
		if scheme != "" {
			r = r.WithContext(context.WithValue(r.Context(), schemeKey{}, scheme))
		}
		next.ServeHTTP(w, r)
	})
}

// client returns the client's address by X-Forwarded-For: every proxy has appended the
// address of its peer, so the last address that is not a trusted proxy's is the
// client's. What stands before it comes from the client. An element that is no address
// ends the search, so the proxy that reported it counts as the client.
func (p Proxies) client(peer netip.Addr, lines []string) netip.Addr {
	client := peer
	for element := range elements(lines) {
		a, ok := parseForwarded(element)
		if !ok {
			return client
		}
		client = a
		if !p.Contain(a) {
			return client
		}
	}
	return client
}

// elements lists the elements of a header from the last to the first. Several lines are
// one list.
func elements(lines []string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := len(lines) - 1; i >= 0; i-- {
			rest, more := lines[i], true
			for more {
				var element string
				if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
					rest, element = rest[:comma], rest[comma+1:]
				} else {
					element, more = rest, false
				}
				if !yield(strings.Trim(element, " \t")) {
					return
				}
			}
		}
	}
}

func last(lines []string) string {
	for element := range elements(lines) {
		return element
	}
	return ""
}

// parseForwarded parses an address of X-Forwarded-For. Some proxies add the port, or
// brackets around an IPv6 address.
func parseForwarded(element string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(element)
	if err != nil {
		with := element
		if strings.HasPrefix(element, "[") && strings.HasSuffix(element, "]") {
			with += ":0"
		}
		parsed, err := netip.ParseAddrPort(with)
		if err != nil {
			return netip.Addr{}, false
		}
		a = parsed.Addr()
	}
	return a.Unmap().WithZone(""), true
}

func forwardedScheme(lines []string) string {
	switch strings.ToLower(last(lines)) {
	case "https", "wss":
		return "https"
	case "http", "ws":
		return "http"
	}
	return ""
}
