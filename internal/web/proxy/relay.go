package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"strings"

	"codehub/internal/gateway/front"
	"codehub/internal/gateway/inbound"
	"codehub/internal/gateway/shortway"
)

// relay relays one request to the container. It returns false without a response if
// the route was closed since the lookup.
func (p *Proxy) relay(w http.ResponseWriter, r *http.Request, v visit, to *upstream) bool {
	if v.forwardsToReserved() {
		p.reserved(w, r, v)
		return true
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	c, answered := p.begin(w, r, v, to, cancel)
	if c == nil {
		return answered
	}
	x := &exchange{proxy: p, visit: v, connection: c, use: p.newUse(r, v), prefix: v.prefix}
	defer func() {
		if !x.continues {
			x.use.end()
			p.open.remove(c)
		}
	}()
	restore := inbound.Lift(w, r)
	// An IDE may respond before it has read the whole body.
	r, body := inbound.FullDuplex(w, r)
	responded := false
	defer func() {
		switch {
		case x.continues:
		case responded:
			if !c.isWebSocket() {
				body.End()
			}
			restore()
		default:
			if !c.wasCut() {
				restore()
			}
			body.Abort()
		}
	}()
	x.serve(&visitorWriter{ResponseWriter: w, open: p.open, connection: c, use: x.use}, r.WithContext(ctx))
	if !x.continues && c.wasCut() {
		panic(http.ErrAbortHandler) // the client must not take a truncated response for a complete one
	}
	responded = true
	return true
}

// begin tracks a request of a visit to an upstream, which must be removed from p.open at its
// end. A nil connection means that the request must not be relayed: it was answered, or the
// route was closed or the share has ended since the lookup.
func (p *Proxy) begin(w http.ResponseWriter, r *http.Request, v visit, to *upstream, cancel context.CancelFunc) (c *connection, answered bool) {
	// The route's ID is not a part of the request's text, which a WebSocket must not keep.
	c = &connection{id: to.id, caller: v.caller, port: v.host.Port, payer: v.payer, upstream: to, cancel: cancel, w: w}
	switch err := p.track(v, c); {
	case err == errClosed:
		return nil, false
	case err != nil:
		p.busy(w, r, v, err)
		return nil, true
	case (v.guest || v.shared) && !p.stillAdmitted(r.Context(), c):
		p.open.remove(c)
		return nil, false
	}
	return c, false
}

// track counts an open request of a visit against all limits, until c is removed from p.open.
func (p *Proxy) track(v visit, c *connection) (err error) {
	c.until.Store(stamp(v.until))
	if c.leave, err = p.guests.enter(v); err != nil {
		return err
	}
	if err = p.open.add(c); err == nil {
		return nil
	}
	c.leave()
	if v.payer != "" && err == errTooManyUser {
		err = errTooManyGuest
	}
	return err
}

// exchange is one relayed request.
type exchange struct {
	proxy      *Proxy
	visit      visit
	connection *connection
	use        *use // or nil
	// prefix is that of the paths that the response may affect.
	prefix string

	hints int                                 // informational responses so far
	hint  func(code int, h http.Header) error // passes one on; set for what shortway.Pool sends
	// replaced: the request was sent to another container than it was meant for.
	replaced bool

	// continues: a WebSocket goes on after the handler, and ends use and connection itself.
	continues bool
}

// serve relays a request in the cheapest way that is able to.
func (x *exchange) serve(w *visitorWriter, r *http.Request) {
	if x.isShort(r) {
		x.relayShort(w, r)
		return
	}
	w.own = maps.Clone(w.Header())
	rp := httputil.ReverseProxy{
		Rewrite:   x.rewrite,
		Transport: x,
		ModifyResponse: func(res *http.Response) error {
			x.confine(res)
			confineTrailers(res)
			x.observe(r, res)
			x.use.watchBackend(res)
			return nil
		},
		ErrorHandler:  x.upstreamError,
		FlushInterval: -1,
		BufferPool:    shortway.Buffers,
		ErrorLog:      x.proxy.copyLog,
	}
	rp.ServeHTTP(w, r)
}

// rewrite builds the container's request. ReverseProxy has already removed
// hop-by-hop and forwarding headers from it.
func (x *exchange) rewrite(pr *httputil.ProxyRequest) {
	out := pr.Out
	x.address(out, pr.In)
	if !isWebSocket(pr.In.Header) { // the only protocol that may be switched to
		out.Header.Del("Connection")
		out.Header.Del("Upgrade")
	}
	announceTrailers(out, pr.In)
	x.use.watchBody(out)
	if out.Body != nil {
		out.Body = watchedBody{out.Body, x.connection}
	}
}

// address sets the URL, the Host and the forwarding headers of the container's request,
// removes codehub's own credentials, and adds the language of the IDE's page.
func (x *exchange) address(out, in *http.Request) {
	out.URL = &url.URL{Scheme: "http", RawQuery: in.URL.RawQuery, ForceQuery: in.URL.ForceQuery}
	out.URL.Path, out.URL.RawPath = x.visit.path, x.visit.rawPath
	out.Host = in.Host
	delete(out.Header, "X-Forwarded-For")
	if client, _, err := net.SplitHostPort(in.RemoteAddr); err == nil {
		out.Header["X-Forwarded-For"] = []string{client}
	}
	out.Header["X-Forwarded-Host"] = []string{x.proxy.origins.forwardedHost(x.visit.host, in)}
	out.Header["X-Forwarded-Proto"] = []string{cmp.Or(front.Scheme(in), x.proxy.origins.schemeOn(x.visit.host, in))}
	x.proxy.secrets.strip(out.Header)
	x.addLanguage(out, in)
}

// setUpstream sets the container's address, and its secret for the IDE. An application
// on a port does not get the secret.
func setUpstream(out *http.Request, to *upstream, port int) (err error) {
	if port != 0 {
		out.URL.Host, err = to.portAddress(port)
		return err
	}
	out.URL.Host = to.Addr
	setSecret(out.Header, to.Secret)
	return nil
}

// errInvalidResponse is a response that must not be passed on.
var errInvalidResponse = errors.New("invalid response")

// RoundTrip sends the request to the container and checks the status of the response:
// net/http accepts any three digits, but can send only 100 to 999, and RFC 9110 defines
// 100 to 599.
func (x *exchange) RoundTrip(out *http.Request) (*http.Response, error) {
	res, err := x.send(out)
	if err != nil {
		return nil, err
	}
	if err = valid(res); err == nil {
		return res, nil
	}
	_ = res.Body.Close() // it is abandoned
	return nil, err
}

// send sends the request to the container. If the container cannot be reached
// and was replaced, a repeatable request is sent to the new one.
func (x *exchange) send(out *http.Request) (*http.Response, error) {
	x.confineEarly(out.Context())
	to := x.connection.upstream
	res, err := x.sendTo(to, out)
	if err == nil || !isDialError(err) || out.Context().Err() != nil {
		return res, err
	}
	// Leave the failed upstream first: it is closed if it was replaced.
	x.proxy.open.move(x.connection, nil)
	next := x.proxy.routes.replacement(out.Context(), x.visit.id, to)
	if next == nil || !repeatable(out) || !x.proxy.open.move(x.connection, next) {
		return nil, err
	}
	x.replaced = true
	return x.sendTo(next, out.Clone(out.Context()))
}

// sendTo sends the request to one container.
func (x *exchange) sendTo(to *upstream, out *http.Request) (*http.Response, error) {
	if x.visit.app.port != 0 {
		return x.sendToApplication(to, out)
	}
	if err := setUpstream(out, to, x.visit.host.Port); err != nil {
		return nil, err
	}
	if x.hint != nil {
		return to.plain.Send(out, x.hint)
	}
	return to.transport.RoundTrip(out)
}

func isDialError(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

func repeatable(r *http.Request) bool {
	if r.Body != nil && r.Body != http.NoBody {
		return false
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// confine limits the effects of the response to the workspace.
func (x *exchange) confine(res *http.Response) {
	hosts := []string{res.Request.URL.Host, res.Request.Host}
	if x.visit.host.ID == "" {
		hosts = append(hosts, x.proxy.origins.host)
	}
	confine(res.Header, confinement{prefix: x.prefix, reserved: x.proxy.secrets.cookies, hosts: hosts})
	if x.visit.host.ID != "" && x.visit.host.Port == 0 {
		confineWorker(res.Header, x.visit.rawPath)
	}
}

// maxEarlyResponses limits the informational responses to one request.
const maxEarlyResponses = 64

// confineEarly does the same for informational responses (103), which ReverseProxy
// forwards through a trace hook in the context.
func (x *exchange) confineEarly(ctx context.Context) {
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil || trace.Got1xxResponse == nil {
		return
	}
	pass := trace.Got1xxResponse
	trace.Got1xxResponse = func(code int, h textproto.MIMEHeader) error {
		if err := x.confineHint(http.Header(h)); err != nil {
			return err
		}
		return pass(code, h)
	}
}

func (x *exchange) confineHint(h http.Header) error {
	if x.hints++; x.hints > maxEarlyResponses {
		return fmt.Errorf("%w: more than %d informational responses", errInvalidResponse, maxEarlyResponses)
	}
	removeHopByHop(h)
	confine(h, confinement{prefix: x.prefix, reserved: x.proxy.secrets.cookies})
	return nil
}

// upstreamError answers when the container does not respond.
func (x *exchange) upstreamError(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // closed by the proxy, or the client has disconnected
	}
	switch {
	case errors.Is(err, errNotVerified):
		x.proxy.routes.invalidate(x.visit.id)
	case x.visit.host.Port != 0 && notReached(err), errors.Is(err, errNoListener):
		x.proxy.noListener(w, r, x.visit)
		return
	}
	x.proxy.log.WarnContext(r.Context(), "workspace not responding", "workspace", x.visit.id, "err", err)
	x.proxy.unavailable(w, r, x.visit, http.StatusBadGateway, "The workspace is not responding.")
}

// isWebSocket reports whether a request asks for a WebSocket.
func isWebSocket(h http.Header) bool { return strings.EqualFold(upgradeType(h), "websocket") }

// upgradeType returns the protocol that a request wants to switch to. It must agree
// with httputil.ReverseProxy.
func upgradeType(h http.Header) string {
	for _, v := range h["Connection"] {
		for token := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "Upgrade") {
				return h.Get("Upgrade")
			}
		}
	}
	return ""
}
