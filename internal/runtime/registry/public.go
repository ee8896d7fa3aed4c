package registry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Public returns a client that connects to no address of this machine or of a private network,
// also if a name or a redirection leads there, except those of the registries
// listed, as imageref.Registry names them. Users choose registries by the names of images, and
// this server may reach more than they do. A proxy that the environment names is reached.
func Public(listed []string) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	var proxies sync.Map // by address
	t.Proxy = func(req *http.Request) (*url.URL, error) {
		u, err := http.ProxyFromEnvironment(req)
		if u != nil {
			proxies.Store(address(u), true)
		}
		return u, err
	}
	free := &net.Dialer{Timeout: requestTimeout, KeepAlive: 30 * time.Second}
	guarded := *free
	guarded.Control = func(_, to string, _ syscall.RawConn) error {
		if at, err := netip.ParseAddrPort(to); err != nil || private(at.Addr()) {
			return errPrivate
		}
		return nil
	}
	t.DialContext = func(ctx context.Context, network, to string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(to)
		if err != nil {
			return nil, err
		}
		host = strings.ToLower(host)
		_, isProxy := proxies.Load(strings.ToLower(to))
		if isProxy || slices.Contains(listed, net.JoinHostPort(host, port)) || (port == "443" || port == "80") && slices.Contains(listed, host) {
			return free.DialContext(ctx, network, to)
		}
		return guarded.DialContext(ctx, network, to)
	}
	return &http.Client{Timeout: requestTimeout, Transport: t}
}

// errPrivate is the refusal to connect to a private address.
var errPrivate = errors.New("the address is private")

// private reports whether an address is not one of the internet.
func private(a netip.Addr) bool {
	a = a.Unmap()
	return !a.IsGlobalUnicast() || a.IsPrivate() || slices.ContainsFunc(reserved, func(p netip.Prefix) bool { return p.Contains(a) })
}

// reserved are further networks whose addresses are no public ones: that of carriers, which clouds
// use for Pods and metadata, "this" network, and those that embed addresses of IPv4.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"),
}

func address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	if port == "" {
		port = "80"
	}
	return strings.ToLower(net.JoinHostPort(u.Hostname(), port))
}
