package proxy

import (
	"net/http"
	"time"

	"codehub/internal/gateway/front"
	"codehub/internal/gateway/origin"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
)

// askPath is where a reverse proxy that obtains certificates on demand asks whether a host
// exists, as Caddy's on_demand_tls does: ?domain=HOST.
const askPath = origin.OwnPrefix + "tls-ask"

// serveAsk answers 200 for the host of codehub, of a workspace, and of a port that is shared
// or listened on, and 404 for any other. Ports are checked because a client that knows a
// workspace's host could use up the limits of an authority with the hosts of all its ports.
func (p *Proxy) serveAsk(w http.ResponseWriter, r *http.Request) {
	accesslog.SetRoute(r.Context(), "GET "+askPath)
	accesslog.Quiet(r.Context())
	secure, ok := p.layout.Secure(r.URL.Query().Get("domain"))
	if place := p.layout.Route(origin.Host(secure)); ok && place.Kind == origin.Workspace {
		accesslog.SetWorkspace(r.Context(), string(place.ID), place.Port)
		var err error
		if ok, err = p.exists(r, place.Host); err != nil {
			p.serverError(w, r, visit{target: target{id: place.ID}}, "look up the host of a certificate failed", err)
			return
		}
	}
	if !ok {
		refuse(w, http.StatusNotFound, workspace.CodeNotFound, "This host does not exist.", nil)
		return
	}
	setOwnHeaders(w, http.StatusOK)
	w.WriteHeader(http.StatusOK)
}

// asks reports whether a request is a reverse proxy's own for askPath. To all others the path
// does not exist: a visitor's request has the visitor's address here, not the proxy's.
func (p *Proxy) asks(r *http.Request) bool {
	return r.URL.Path == askPath && r.Method == http.MethodGet && p.trusted != nil && p.trusted(front.Address(r))
}

// exists reports whether a workspace exists and, for the host of a port, whether there is
// something to see there.
func (p *Proxy) exists(r *http.Request, host workspace.Host) (bool, error) {
	route, err := p.routes.get(r.Context(), host.ID, p.routes.maxAge)
	switch {
	case workspace.CodeOf(err) == workspace.CodeNotFound:
		return false, nil
	case err != nil:
		return false, err
	case host.Port == 0:
		return true, nil
	case workspace.ReservedPort(host.Port):
		return false, nil
	}
	if s, shared := route.shares[host.Port]; shared && (s.until.IsZero() || time.Now().Before(s.until)) {
		return true, nil
	}
	return route.upstream != nil && route.upstream.listens(r.Context(), host.Port) == nil, nil
}
