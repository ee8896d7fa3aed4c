package client

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// newTransport returns http.DefaultTransport's settings for names below localhost too. Browsers
// connect them to this machine without asking DNS or a proxy; most resolvers do not know them.
func newTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if dial := t.DialContext; dial != nil {
		t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			if host, port, err := net.SplitHostPort(address); err == nil && belowLocalhost(host) {
				address = net.JoinHostPort("localhost", port)
			}
			return dial(ctx, network, address)
		}
	}
	if proxy := t.Proxy; proxy != nil {
		t.Proxy = func(r *http.Request) (*url.URL, error) {
			if belowLocalhost(r.URL.Hostname()) {
				return nil, nil
			}
			return proxy(r)
		}
	}
	return t
}

func belowLocalhost(host string) bool {
	return strings.HasSuffix(strings.ToLower(strings.TrimSuffix(host, ".")), ".localhost")
}
