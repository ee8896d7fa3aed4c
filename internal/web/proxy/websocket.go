package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"codehub/internal/gateway/shortway"
)

// WebSockets of an IDE are relayed without httputil.ReverseProxy, whose goroutines,
// stacks and buffers need several times the memory of the rest while a WebSocket is
// idle, as most are most of the time. Both change the headers in the same way.

// isPlainUpgrade reports whether relayWebSocket can relay a request.
func isPlainUpgrade(r *http.Request, v visit) bool {
	if r.ProtoMajor != 1 || r.ProtoMinor != 1 || r.Method != http.MethodGet || !shortway.Sends(r) || v.app.port != 0 || v.host.Port != 0 ||
		!isWebSocket(r.Header) || len(r.Header["Upgrade"]) != 1 {
		return false
	}
	for _, name := range []string{"Te", "Trailer", "Expect"} {
		if r.Header[name] != nil {
			return false
		}
	}
	for _, line := range r.Header["Connection"] {
		for token := range strings.SplitSeq(line, ",") {
			token = strings.TrimSpace(token)
			if !strings.EqualFold(token, "Upgrade") && !strings.EqualFold(token, "keep-alive") {
				return false
			}
		}
	}
	return true
}

// relayWebSocket relays a request for a WebSocket.
func (x *exchange) relayWebSocket(w *visitorWriter, r *http.Request) {
	x.upgrade, x.hint = true, x.forwardHints(w)
	out := &http.Request{Method: r.Method, Header: forwarded(r.Header)}
	out.Header["Connection"], out.Header["Upgrade"] = []string{"Upgrade"}, r.Header["Upgrade"]
	x.address(out, r)
	res, err := x.RoundTrip(out.WithContext(r.Context()))
	if err != nil {
		x.upstreamError(w, r, err)
		return
	}
	backend, switched := res.Body.(*shortway.Switched)
	if !switched {
		x.pass(w, r, res)
		return
	}
	defer func() {
		if !x.continues {
			_ = backend.Close() // it is abandoned
		}
	}()
	x.confine(res)
	confineTrailers(res)
	x.observe(r, res)
	if !isWebSocket(res.Header) {
		x.upstreamError(w, r, fmt.Errorf("%w: it switches to the protocol %q", errInvalidResponse, upgradeType(res.Header)))
		return
	}
	x.connect(w, r, res, backend)
}

// connect completes the handshake with the client, and relays.
func (x *exchange) connect(w *visitorWriter, r *http.Request, res *http.Response, backend *shortway.Switched) {
	s := &webSocket{open: x.proxy.open, connection: x.connection, use: x.use}
	rest := shortway.Of(r)
	if rest != nil {
		rest.Begin(s.run)
	}
	err := s.connect(w, res, backend)
	if err != nil {
		if rest != nil {
			rest.Abort()
		}
		if !errors.Is(err, errHandshake) {
			x.upstreamError(w, r, err)
		}
		return
	}
	x.continues = true
	x.connection.socket.Store(s)
	if rest != nil {
		x.connection.detach()
		return
	}
	ended := make(chan *shortway.Panic)
	s.run(func(_ int64, panicked *shortway.Panic) { ended <- panicked })
	if p := <-ended; p != nil {
		panic(fmt.Sprintf("%v, in a goroutine with this stack:\n%s", p.Value, p.Stack))
	}
}

// errHandshake is a client that does not receive the response.
var errHandshake = errors.New("send the response of the handshake")

// connect takes over the client's connection and sends the response on it.
func (s *webSocket) connect(w *visitorWriter, res *http.Response, backend *shortway.Switched) error {
	client, rw, err := w.hijack(backend.Conn)
	if err != nil {
		return err
	}
	defer func() {
		if s.client == nil {
			_ = client.Close()
		}
	}()
	header := w.Header() // after the hijacking, which changes it
	for name, values := range res.Header {
		header[name] = append(header[name], values...)
	}
	var head bytes.Buffer
	res.Header, res.Body = header, nil
	if err = res.Write(&head); err == nil {
		s.connection.beginWrite()
		_, err = client.Conn.Write(head.Bytes())
		s.connection.endWrite()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errHandshake, err)
	}
	s.up.socket, s.up.from, s.up.first = s, client.Conn, early(rw.Reader)
	s.down.socket, s.down.from, s.down.first = s, backend.Conn, backend.Rest
	s.client, s.backend = client, backend.Conn
	client.relayedBy(s)
	return nil
}

// early returns what the client has sent since its request.
func early(from *bufio.Reader) []byte {
	b, _ := from.Peek(from.Buffered())
	return bytes.Clone(b)
}
