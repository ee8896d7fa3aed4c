package proxy

import (
	"net/http"
	"net/url"
	"strings"
)

// origins knows which origin is asked, as browsers write it.
type origins struct {
	scheme, host string // of the public address
}

func newOrigins(public *url.URL) origins {
	return origins{scheme: public.Scheme, host: hostOf(public.Scheme, public.Host)}
}

// mayAsk decides whether the page that a request comes from may make it on its
// visitor's behalf.
//
// A WebSocket's Origin must equal the asked one exactly, since browsers send
// no Sec-Fetch headers with it; one without Origin comes from no browser and
// needs the token header (design §8). Of the rest, other sites, siblings of
// the same site included, may only open a page at the top of a tab: they
// embed, post and read nothing. The token header settles it, as no other site
// can send that. Browsers that say nothing of where a request comes from are
// judged by its Origin, if it has one.
func (o origins) mayAsk(r *http.Request, navigation, byToken bool) bool {
	origin := r.Header.Values("Origin")
	if isWebSocket(r.Header) {
		return len(origin) == 0 && byToken || len(origin) == 1 && o.isAsked(origin[0], r)
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
		return o.isAsked(origin[0], r)
	}
	return true
}

// isAsked reports whether origin is the public origin, or exactly the scheme
// and host that the request was made to.
func (o origins) isAsked(origin string, r *http.Request) bool {
	if o.isPublic(origin) {
		return true
	}
	scheme := o.schemeOf(r)
	return strings.ToLower(origin) == scheme+"://"+hostOf(scheme, r.Host)
}

func (o origins) isPublic(origin string) bool {
	return strings.ToLower(origin) == o.scheme+"://"+o.host
}

// schemeOf is how the visitor reached this server. The public address tells
// for its own host: TLS may end in front of us.
func (o origins) schemeOf(r *http.Request) string {
	switch {
	case r.TLS != nil:
		return "https"
	case hostOf(o.scheme, r.Host) == o.host:
		return o.scheme
	}
	return "http"
}

// forwardedHost is what the IDE must take for its host, so that its own rule
// for a WebSocket's Origin agrees with ours.
func (o origins) forwardedHost(r *http.Request) string {
	if o.isPublic(r.Header.Get("Origin")) {
		return o.host
	}
	return r.Host
}

// hostOf writes a host as an Origin does: lower case, without the scheme's own port.
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
