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

// relay takes one visit to the container and back. It reports false, with
// nothing answered, if the route has been closed since it was looked up.
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
	// The session's end must also reach a visitor who does not read.
	defer context.AfterFunc(watched, c.close)()

	if r.ContentLength != 0 {
		// An IDE may answer while it is still being sent to, as it could
		// without us in between. HTTP/2 does so anyway.
		_ = http.NewResponseController(w).EnableFullDuplex()
	}
	x := &exchange{proxy: p, visit: v, connection: c, use: p.useOf(r, v)}
	defer x.use.end()
	rp := httputil.ReverseProxy{
		Rewrite:   x.rewrite,
		Transport: x,
		ModifyResponse: func(res *http.Response) error {
			x.confine(res)
			x.answered(r, res)
			return nil
		},
		ErrorHandler:  x.failed,
		FlushInterval: -1,
		BufferPool:    buffers,
		ErrorLog:      p.copyLog,
	}
	rp.ServeHTTP(&visitorWriter{ResponseWriter: w, open: p.open, connection: c, use: x.use}, r.WithContext(ctx))
	if c.wasCut() {
		panic(http.ErrAbortHandler) // a cut answer must not look whole
	}
	return true
}

// exchange is one visit on its way.
type exchange struct {
	proxy      *Proxy
	visit      visit
	connection *connection
	use        *use // or nil
}

// rewrite makes the container's request of the visitor's. Hop-by-hop and
// forwarding headers have been removed from it.
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
	address(out, x.connection.upstream)
	x.use.request(out)
}

// address leads a request to a container that knows the secret.
func address(out *http.Request, to *upstream) {
	out.URL.Host = to.Addr
	setSecret(out.Header, to.Secret)
}

// RoundTrip asks the container. One that cannot be reached may have been
// replaced: then a request that may be repeated goes to the new one.
func (x *exchange) RoundTrip(out *http.Request) (*http.Response, error) {
	x.confineEarly(out.Context())
	to := x.connection.upstream
	res, err := to.transport.RoundTrip(out)
	if err == nil || !isDialError(err) || out.Context().Err() != nil {
		return res, err
	}
	// Away from the upstream that failed, which closes if it was replaced.
	x.proxy.open.move(x.connection, nil)
	next := x.proxy.routes.again(out.Context(), x.visit.id, to)
	if next == nil || !repeatable(out) || !x.proxy.open.move(x.connection, next) {
		return nil, err
	}
	out = out.Clone(out.Context())
	address(out, next)
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

// confine keeps the answer's effects within the workspace.
func (x *exchange) confine(res *http.Response) {
	confine(res.Header, confinement{
		prefix:   x.visit.prefix,
		reserved: x.proxy.secrets.cookies,
		hosts:    []string{x.connection.upstream.Addr, res.Request.Host, x.proxy.origins.host},
	})
}

// confineEarly does the same for informational answers (103), which the
// reverse proxy passes on by a hook of its own in the request's context.
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

// failed answers when the container does not.
func (x *exchange) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // cut by us, or the visitor has left
	}
	x.proxy.log.WarnContext(r.Context(), "a workspace does not answer", "workspace", x.visit.id, "err", err)
	x.proxy.unavailable(w, r, x.visit, http.StatusBadGateway, "The workspace does not answer.")
}

// isWebSocket reports whether a WebSocket is asked for.
func isWebSocket(h http.Header) bool { return strings.EqualFold(upgradeType(h), "websocket") }

// upgradeType is the protocol that a request wants to switch to, as
// httputil.ReverseProxy sees it; the two must not differ.
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

// bufferPool saves each answer an allocation of its own.
type bufferPool struct{ pool sync.Pool }

func (b *bufferPool) Get() []byte  { return b.pool.Get().(*[bufferSize]byte)[:] }
func (b *bufferPool) Put(p []byte) { b.pool.Put((*[bufferSize]byte)(p)) }
