package server

import (
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"

	"codehub/internal/base/health"
	"codehub/internal/gateway/front"
	"codehub/internal/gateway/inbound"
	"codehub/internal/gateway/origin"
	"codehub/internal/running/service"
	"codehub/internal/server/config"
	"codehub/internal/workspace"
)

// redirectShare is the part of the connections that the plain http listener may have, in
// addition to those of the main one.
const redirectShare = 10

func openFront(cfg config.Config, l net.Listener, limits inbound.Limits, conditions *health.Monitor) (*front.Front, error) {
	log := limits.Log
	limits.Connections = max(limits.Connections/redirectShare, 1)
	settings := cfg.Front
	settings.ACMEFolder = filepath.Join(cfg.DataDir, "acme")
	return front.Open(front.Config{Settings: settings, Names: cfg.Hosts(), Secure: secureOrigin(cfg), Log: log, Conditions: conditions,
		Limit: func(l net.Listener) net.Listener { return inbound.Listen(l, limits) }}, l)
}

// secureOrigin returns a function that finds the https origin of a host.
func secureOrigin(cfg config.Config) func(host string) (string, bool) {
	return func(host string) (string, bool) { return cfg.Layout.Secure(host) }
}

// ownHost returns a function that reports whether a host is one that users open. A
// proxy on this machine that replaces Host commonly sends a loopback address.
func ownHost(cfg config.Config) func(host string) bool {
	return func(host string) bool {
		u := url.URL{Host: host}
		ip, err := netip.ParseAddr(u.Hostname())
		if err == nil && ip.IsLoopback() && !strings.EqualFold(host, cfg.PublicURL.Host) {
			return false
		}
		return cfg.Layout.Route(host).Kind != origin.Unknown
	}
}

// callbackURL returns the address to which identity providers send browsers. Some allow plain http
// on localhost alone, from where the proxy redirects.
func callbackURL(cfg config.Config) *url.URL {
	if !cfg.Layout.Local() {
		return cfg.PublicURL
	}
	u := *cfg.PublicURL
	u.Host = strings.TrimPrefix(u.Host, "codehub.")
	return &u
}

// addressOf returns the address at which browsers open a workspace.
func addressOf(layout origin.Layout, id workspace.ID) string {
	if layout.PathMode() {
		return service.URL(layout.Main(), id)
	}
	return layout.URL(workspace.Host{ID: id}) + "/"
}
