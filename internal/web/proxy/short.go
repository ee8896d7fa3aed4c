package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"codehub/internal/gateway/shortway"
)

// Most requests are plain: an IDE loads its files without a body, an upgrade or
// trailers. They and the WebSockets of IDEs are relayed by package shortway; all others by
// httputil.ReverseProxy and http.Transport. Both change the headers in the same way.

// isShort reports whether relayShort can relay a request.
func (x *exchange) isShort(r *http.Request) bool {
	return !x.proxy.noShortWay && x.visit.app.port == 0 && x.visit.host.Port == 0 && shortway.Sends(r) && (r.Header["Upgrade"] == nil || shortway.Of(r) != nil)
}

// relayShort relays a request by package shortway.
func (x *exchange) relayShort(w *visitorWriter, r *http.Request) {
	x.hint = x.forwardHints(w)
	out := new(http.Request)
	*out = *r
	out.Header, out.Body = forwarded(r.Header), nil
	if protocol := r.Header["Upgrade"]; protocol != nil {
		out.Header["Connection"], out.Header["Upgrade"] = []string{"Upgrade"}, protocol
	}
	x.address(out, r)
	res, err := x.RoundTrip(out)
	if err != nil {
		x.upstreamError(w, r, err)
		return
	}
	if backend, switched := res.Body.(net.Conn); switched {
		x.connect(w, r, res, backend)
		return
	}
	x.letRepeat(w, r, out)
	x.pass(w, r, res)
}

// connect completes the handshake of a WebSocket, which continues after the handler.
func (x *exchange) connect(w *visitorWriter, r *http.Request, res *http.Response, backend net.Conn) {
	defer func() {
		if !x.continues {
			_ = backend.Close() // it is abandoned
		}
	}()
	x.confine(res)
	x.observe(r, res)
	if !isWebSocket(res.Header) {
		x.upstreamError(w, r, fmt.Errorf("%w: it switches to the protocol %q", errInvalidResponse, upgradeType(res.Header)))
		return
	}
	s, open, c, use := &shortway.WebSocket{}, x.proxy.open, x.connection, x.use
	rest := shortway.Of(r)
	rest.Begin(func(done shortway.Done) {
		s.Run(func(sent int64, panicked *shortway.Panic) {
			use.end()
			open.remove(c)
			done(sent, panicked)
		})
	})
	if err := shake(s, w, res, backend); err != nil {
		rest.Abort()
		if !errors.Is(err, errHandshake) {
			x.upstreamError(w, r, err)
		}
		return
	}
	x.continues = true
	c.socket.Store(s)
	c.detach()
}

// errHandshake is a client that does not receive the response.
var errHandshake = errors.New("send the response of the handshake")

// shake takes over the client's connection for s and sends the response on it.
func shake(s *shortway.WebSocket, w *visitorWriter, res *http.Response, backend net.Conn) error {
	client, _, err := w.hijack(backend)
	if err != nil {
		return err
	}
	header := w.Header() // after the hijacking, which changes it
	for name, values := range res.Header {
		header[name] = append(header[name], values...)
	}
	var head bytes.Buffer
	res.Header, res.Body = header, nil
	if err = res.Write(&head); err == nil {
		w.connection.BeginWrite()
		_, err = client.Conn.Write(head.Bytes())
		w.connection.EndWrite(0)
	}
	if err != nil {
		_ = client.Close()
		return fmt.Errorf("%w: %w", errHandshake, err)
	}
	s.Client, s.Backend = client, &containerConn{backend, client}
	client.relayedBy(s)
	return nil
}

// containerConn is the container's side of a WebSocket of which client is the other one.
type containerConn struct {
	net.Conn
	client *visitorConn
}

// Direct returns the connection below, from which the same is read.
func (c *containerConn) Direct() (net.Conn, bool) { return c.Conn, true }

// Write lets the activity be detected after the bytes were relayed.
func (c *containerConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if watch := c.client.watch; watch != nil {
		watch.sent(p[:max(n, 0)])
	}
	c.client.connection.moved(n)
	return n, err
}

// CloseWrite closes the container's side for writing.
func (c *containerConn) CloseWrite() error {
	c.client.ending()
	return closeWrite(c.Conn)
}

// notForwarded are headers of a client that are not sent to the container: those of one
// connection, and what a client says of its address.
var notForwarded = slices.Concat(hopByHop, []string{
	"Content-Length", "Host", // of HTTP/2, where they frame nothing
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto",
})

// removeHopByHop removes the headers for one connection from a response.
func removeHopByHop(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = textproto.TrimString(name); name != "" {
				h.Del(name)
			}
		}
	}
	for _, name := range hopByHop {
		delete(h, name)
	}
}

// hopByHop are headers for one connection.
var hopByHop = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// forwarded returns a client's header without notForwarded, with room for what is added.
func forwarded(header http.Header) http.Header {
	out := make(http.Header, len(header)+6)
	for name, values := range header {
		if !slices.Contains(notForwarded, name) {
			out[name] = values
		}
	}
	return out
}

// pass passes a response that does not switch protocols on to the client.
func (x *exchange) pass(w *visitorWriter, r *http.Request, res *http.Response) {
	defer res.Body.Close()
	removeHopByHop(res.Header)
	x.confine(res)
	confineTrailers(res)
	x.observe(r, res)
	if !shortway.Respond(w, res, &x.connection.account.large) {
		panic(http.ErrAbortHandler) // the client must not take it for complete
	}
}

// forwardHints returns a function that passes on an informational response.
func (x *exchange) forwardHints(w *visitorWriter) func(code int, h http.Header) error {
	return func(code int, h http.Header) error {
		if err := x.confineHint(h); err != nil {
			return err
		}
		all := w.Header()
		own := maps.Clone(all)
		maps.Copy(all, h)
		w.connection.BeginWrite()
		w.WriteHeader(code)
		w.connection.EndWrite(0)
		clear(all)
		maps.Copy(all, own)
		return nil
	}
}
