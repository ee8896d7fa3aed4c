package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
)

// relay relays one request to the container. It returns false without a response if
// the route was closed since the lookup.
func (p *Proxy) relay(w http.ResponseWriter, r *http.Request, v visit, to *upstream) bool {
	watched, stop := p.sessions.Watch(r.Context(), v.caller.Session)
	defer stop()
	ctx, cancel := context.WithCancel(watched)
	defer cancel()
	c := &connection{id: v.id, caller: v.caller, upstream: to, cancel: cancel, w: w}
	if !p.open.add(c) {
		return false
	}
	defer p.open.remove(c)
	// Also ends a client that does not read when the session ends.
	defer context.AfterFunc(watched, c.close)()

	if r.ContentLength != 0 {
		// An IDE may respond before it has read the whole body. HTTP/2 allows that
		// without this call.
		_ = http.NewResponseController(w).EnableFullDuplex()
	}
	x := &exchange{proxy: p, visit: v, connection: c, use: p.newUse(r, v)}
	defer x.use.end()
	rp := httputil.ReverseProxy{
		Rewrite:   x.rewrite,
		Transport: x,
		ModifyResponse: func(res *http.Response) error {
			x.confine(res)
			x.observe(r, res)
			return nil
		},
		ErrorHandler:  x.upstreamError,
		FlushInterval: -1,
		BufferPool:    buffers,
		ErrorLog:      p.copyLog,
	}
	rp.ServeHTTP(&visitorWriter{ResponseWriter: w, open: p.open, connection: c, use: x.use}, r.WithContext(ctx))
	if c.wasCut() {
		panic(http.ErrAbortHandler) // the client must not take a truncated response for a complete one
	}
	return true
}

// exchange is one relayed request.
type exchange struct {
	proxy      *Proxy
	visit      visit
	connection *connection
	use        *use // or nil
}

// rewrite builds the container's request. ReverseProxy has already removed
// hop-by-hop and forwarding headers from it.
func (x *exchange) rewrite(pr *httputil.ProxyRequest) {
	out := pr.Out
	out.URL = &url.URL{Scheme: "http", RawQuery: pr.In.URL.RawQuery, ForceQuery: pr.In.URL.ForceQuery}
	out.URL.Path, out.URL.RawPath = x.visit.path, x.visit.rawPath
	out.Host = pr.In.Host
	pr.SetXForwarded()
	out.Header.Set("X-Forwarded-Host", x.proxy.origins.forwardedHost(pr.In))
	out.Header.Set("X-Forwarded-Proto", x.proxy.origins.schemeOf(pr.In))
	if !isWebSocket(pr.In.Header) { // the only protocol that may be switched to
		out.Header.Del("Connection")
		out.Header.Del("Upgrade")
	}
	x.proxy.secrets.strip(out.Header)
	setUpstream(out, x.connection.upstream)
	x.use.watchBody(out)
}

// setUpstream sets the container's address and secret.
func setUpstream(out *http.Request, to *upstream) {
	out.URL.Host = to.Addr
	setSecret(out.Header, to.Secret)
}

// RoundTrip sends the request to the container. If the container cannot be reached
// and was replaced, a repeatable request is sent to the new one.
func (x *exchange) RoundTrip(out *http.Request) (*http.Response, error) {
	x.confineEarly(out.Context())
	to := x.connection.upstream
	res, err := to.transport.RoundTrip(out)
	if err == nil || !isDialError(err) || out.Context().Err() != nil {
		return res, err
	}
	// Leave the failed upstream first: it is closed if it was replaced.
	x.proxy.open.move(x.connection, nil)
	next := x.proxy.routes.replacement(out.Context(), x.visit.id, to)
	if next == nil || !repeatable(out) || !x.proxy.open.move(x.connection, next) {
		return nil, err
	}
	out = out.Clone(out.Context())
	setUpstream(out, next)
	return next.transport.RoundTrip(out)
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
	confine(res.Header, confinement{
		prefix:   x.visit.prefix,
		reserved: x.proxy.secrets.cookies,
		hosts:    []string{x.connection.upstream.Addr, res.Request.Host, x.proxy.origins.host},
	})
}

// confineEarly does the same for informational responses (103), which ReverseProxy
// forwards through a trace hook in the context.
func (x *exchange) confineEarly(ctx context.Context) {
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil || trace.Got1xxResponse == nil {
		return
	}
	pass := trace.Got1xxResponse
	trace.Got1xxResponse = func(code int, h textproto.MIMEHeader) error {
		confine(http.Header(h), confinement{prefix: x.visit.prefix, reserved: x.proxy.secrets.cookies})
		return pass(code, h)
	}
}

// upstreamError answers when the container does not respond.
func (x *exchange) upstreamError(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // closed by the proxy, or the client has disconnected
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

const bufferSize = 32 << 10

var buffers = &bufferPool{sync.Pool{New: func() any { return new([bufferSize]byte) }}}

// bufferPool reuses copy buffers.
type bufferPool struct{ pool sync.Pool }

func (b *bufferPool) Get() []byte  { return b.pool.Get().(*[bufferSize]byte)[:] }
func (b *bufferPool) Put(p []byte) { b.pool.Put((*[bufferSize]byte)(p)) }
