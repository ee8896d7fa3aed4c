package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"

	"codehub/internal/gateway/shortway"
	"codehub/internal/workspace/lifecycle"
)

// repeated answers the requests of a connection to the host of a workspace that have the
// header fields of an earlier one, which was relayed by relayShort; see docs/adr/0016. What
// depends on the fields alone is as for that request: the host, the origin check, what is
// sent to the container. The session, the route, the owner, the limits and the target are
// checked for every request. Only a session that is in the cache is accepted.
type repeated struct {
	proxy   *Proxy
	visit   visit         // without path
	request *http.Request // of the client
	to      *upstream
	relayed shortway.Relayed
}

// letRepeat lets the requests that follow an exchange on the client's connection repeat it.
func (x *exchange) letRepeat(w *visitorWriter, in, out *http.Request) {
	v, c := x.visit, x.connection
	owner := v.host.ID != "" && v.host.Port == 0 && !v.guest && v.payer == "" && !v.polls
	if !owner || x.replaced || x.use != nil || v.navigation || x.hints > 0 || in.Method != http.MethodGet ||
		v.path == "/" || !simpleTarget([]byte(v.rawPath)) ||
		!onlyID(w.Header()) {
		return
	}
	v.path, v.rawPath = "", ""
	q := &repeated{proxy: x.proxy, visit: v, request: in, to: c.upstream, relayed: shortway.Relayed{Pool: c.upstream.plain, Request: out, Passes: passes}}
	shortway.Repeat(w.ResponseWriter, q.answer) // answer does what w does
}

// onlyID reports whether a header has no field but that which httpapi.Outer adds again.
func onlyID(h http.Header) bool {
	_, named := h["X-Request-Id"]
	return len(h) == 0 || len(h) == 1 && named
}

// visitOf returns the visit to a target, unless the rules treat it in a way of its own: the
// IDE's page, which is "/", the paths that codehub serves itself, and those that the IDE
// forwards to a reserved port.
func (q *repeated) visitOf(target []byte) (v visit, ok bool) {
	if !simpleTarget(target) {
		return visit{}, false
	}
	path, _, _ := bytes.Cut(target, []byte{'?'})
	v = q.visit
	v.path = string(path)
	v.rawPath = v.path // nothing in it is escaped
	return v, v.path != "/" && !isOwnPath(v.path) && !v.forwardsToReserved()
}

// simpleTarget reports whether a target is sent to the container as it is: nothing in it is
// escaped or normalized, or has no place in a target.
func simpleTarget(target []byte) bool {
	path, query, _ := bytes.Cut(target, []byte{'?'})
	for i, c := range path {
		switch {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-':
		case c == '_':
		case c == '.' || c == '/':
			if i > 0 && path[i-1] == '/' {
				return false
			}
		default:
			return false
		}
	}
	return len(path) > 0 && path[0] == '/' && bytes.IndexByte(query, '#') < 0
}

func (q *repeated) answer(target []byte, a *shortway.Answer) bool {
	p := q.proxy
	v, ok := q.visitOf(target)
	if !ok {
		return false
	}
	caller, err := p.visitors.AuthenticateWorkspace(q.request, v.host)
	if err != nil || caller != v.caller {
		return false
	}
	route := p.routes.recent(v.id, p.routes.maxAge)
	if route == nil || route.upstream != q.to || !route.enters(caller) || lifecycle.OpeningOf(route.workspace) != lifecycle.OpenNow {
		return false
	}
	c := &repetition{connection{id: q.to.id, caller: caller, upstream: q.to, cancel: a.End}, p, v}
	if p.open.add(&c.connection) != nil {
		return false // the handler says why
	}
	defer p.open.remove(&c.connection)
	if !caller.Uses(route.workspace.OwnerID, v.id) && !p.stillAdmitted(q.request.Context(), &c.connection) {
		return false // the share has ended since the lookup
	}
	return a.Relay(&q.relayed, target, c)
}

// repetition is a repeated request that is relayed.
type repetition struct {
	connection
	proxy *Proxy
	visit visit
}

// Handle relays a response that the rules change, or that is large, or answers that there is
// none.
func (c *repetition) Handle(w http.ResponseWriter, r *http.Request, receive func(early func(int, http.Header) error) (*http.Response, error)) {
	x := &exchange{proxy: c.proxy, visit: c.visit, connection: &c.connection}
	vw := &visitorWriter{ResponseWriter: w, open: c.proxy.open, connection: &c.connection}
	res, err := receive(x.forwardHints(vw))
	if err == nil {
		if err = valid(res); err != nil {
			_ = res.Body.Close() // it is abandoned
		}
	}
	if err != nil {
		x.upstreamError(vw, r, err)
		return
	}
	x.pass(vw, r, res)
	if c.wasCut() {
		panic(http.ErrAbortHandler) // the client must not take a truncated response for a complete one
	}
}

// rules are the fields of a response, by their names in lower case, that the proxy changes,
// removes or acts upon.
var rules = func() map[string]bool {
	m := map[string]bool{"set-cookie": true, "location": true, "service-worker-allowed": true, "x-request-id": true, "pragma": true}
	for name := range wholeOrigin {
		m[strings.ToLower(name)] = true
	}
	for _, name := range hopByHop {
		m[strings.ToLower(name)] = true
	}
	return m
}()

// passes reports whether the proxy has no rule for a field of a response, whose name is in
// lower case.
func passes(target, name, value []byte) bool {
	if string(name) == "content-type" && isScript(string(value)) {
		path, _, _ := bytes.Cut(target, []byte{'?'})
		return !inRoot(string(path))
	}
	return !rules[string(name)] && !directsProxy(string(name))
}

// valid reports what makes a response one that must not be passed on.
func valid(res *http.Response) error {
	switch {
	case res.StatusCode < 100 || res.StatusCode > 599:
		return fmt.Errorf("%w: status %03d", errInvalidResponse, res.StatusCode)
	case len(res.Header) > maxResponseFields:
		return fmt.Errorf("%w: %d header fields", errInvalidResponse, len(res.Header))
	}
	return nil
}
