package proxy

import (
	"net/http"
	"strings"

	"codehub/internal/gateway/origin"
	"codehub/internal/workspace"
)

// origins knows the server's own origins, in the form that browsers send.
type origins struct {
	layout       origin.Layout
	scheme, host string // of the main origin
}

func newOrigins(l origin.Layout) origins {
	return origins{layout: l, scheme: l.Scheme(), host: origin.Host(l.Main())}
}

// allows decides whether the page that sent a request may send it with its
// visitor's session.
//
// A WebSocket's Origin must equal that of the host it is sent to, since browsers send no Sec-Fetch
// headers with it. A WebSocket without an Origin is not from a browser and needs
// the token header. Other sites, including siblings of the same site, may only open
// a page in a tab; they may not embed, post or read. A request with the token
// header is allowed, as other sites cannot send it. Browsers without Sec-Fetch
// headers are judged by the Origin header, if there is one.
func (o origins) allows(r *http.Request, navigation, byToken bool) bool {
	return allows(r, navigation, byToken, func(from string) bool { return o.isOwn(from, r) })
}

// allowsOn is allows for the host of a workspace.
func (o origins) allowsOn(host workspace.Host, r *http.Request, navigation, byToken bool) bool {
	return allows(r, navigation, byToken, func(from string) bool { return from == o.layout.URL(host) })
}

func allows(r *http.Request, navigation, byToken bool, isOwn func(string) bool) bool {
	origin := r.Header.Values("Origin")
	if isWebSocket(r.Header) {
		return len(origin) == 0 && byToken || len(origin) == 1 && isOwn(origin[0])
	}
	if navigation || byToken {
		return true
	}
	switch site := r.Header.Values("Sec-Fetch-Site"); {
	case len(site) > 1 || len(origin) > 1:
		return false
	case len(site) == 1:
		return site[0] == "same-origin" || site[0] == "none"
	case len(origin) == 1:
		return isOwn(origin[0])
	}
	return true
}

// isOwn reports whether origin is the public origin, or the scheme and host of the
// request.
func (o origins) isOwn(origin string, r *http.Request) bool {
	if o.isPublic(origin) {
		return true
	}
	scheme := o.schemeOf(r)
	return strings.ToLower(origin) == scheme+"://"+hostOf(scheme, r.Host)
}

func (o origins) isPublic(origin string) bool {
	return strings.ToLower(origin) == o.scheme+"://"+o.host
}

// schemeOf returns the scheme that the client used on the main origin or on an unknown
// host. For codehub's own hosts it is that of the public address, because TLS may be
// terminated by a reverse proxy.
func (o origins) schemeOf(r *http.Request) string {
	switch {
	case r.TLS != nil:
		return "https"
	case hostOf(o.scheme, r.Host) == o.host:
		return o.scheme
	}
	return "http"
}

// schemeOn is schemeOf, and that of the workspaces' origins for the host of one.
func (o origins) schemeOn(host workspace.Host, r *http.Request) string {
	if host.ID != "" {
		return o.scheme
	}
	return o.schemeOf(r)
}

// forwardedHost returns the X-Forwarded-Host for the IDE, which compares it with
// the Origin of a WebSocket. host is the host of a workspace that was asked, or zero.
func (o origins) forwardedHost(host workspace.Host, r *http.Request) string {
	if host.ID != "" {
		return origin.Host(o.layout.URL(host))
	}
	if o.isPublic(r.Header.Get("Origin")) {
		return o.host
	}
	return r.Host
}

// hostOf normalizes a host as in an Origin: lower case, without the scheme's
// default port.
func hostOf(scheme, host string) string {
	host = strings.ToLower(host)
	switch scheme {
	case "http":
		return strings.TrimSuffix(host, ":80")
	case "https":
		return strings.TrimSuffix(host, ":443")
	}
	return host
}
