package proxy

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"sync"

	"codehub/internal/gateway/shortway"
)

// Most requests are plain: an IDE loads its files without a body, an upgrade or
// trailers. They are relayed on the goroutine that serves them, over the connections of
// shortway.Pool; all others by httputil.ReverseProxy and http.Transport. Both change the
// headers in the same way.

// isPlain reports whether a request can be relayed by relayPlain.
func isPlain(r *http.Request, v visit) bool {
	if !shortway.Sends(r) || v.app.port != 0 || v.host.Port != 0 {
		return false
	}
	for _, name := range []string{"Upgrade", "Te", "Trailer", "Expect"} {
		if r.Header[name] != nil {
			return false
		}
	}
	for _, line := range r.Header["Connection"] {
		if !strings.EqualFold(line, "keep-alive") && !strings.EqualFold(line, "close") {
			return false
		}
	}
	return true
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

// relayPlain relays a plain request.
func (x *exchange) relayPlain(w *visitorWriter, r *http.Request) {
	x.hint = x.forwardHints(w)
	out := new(http.Request)
	*out = *r
	out.Header, out.Body = forwarded(r.Header), nil
	x.address(out, r)
	res, err := x.RoundTrip(out)
	if err != nil {
		x.upstreamError(w, r, err)
		return
	}
	x.letRepeat(w, r, out)
	x.pass(w, r, res)
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
	if !respond(w, res, x.connection.account) {
		panic(http.ErrAbortHandler) // the client must not take it for complete
	}
}

// respond writes a response to a user's request. It returns false if that ended early.
func respond(w http.ResponseWriter, res *http.Response, user *account) bool {
	h := w.Header()
	for name, values := range res.Header {
		if h[name] == nil {
			h[name] = values
			continue
		}
		h[name] = append(h[name], values...)
	}
	announced := len(res.Trailer)
	if announced > 0 {
		h["Trailer"] = append(h["Trailer"], strings.Join(slices.Collect(maps.Keys(res.Trailer)), ", "))
	}
	w.WriteHeader(res.StatusCode)
	if err := copyBody(w, res.Body, user); err != nil {
		return false
	}
	if len(res.Trailer) == 0 {
		return true
	}
	// Without this net/http could give a short body a length instead of trailers.
	_ = http.NewResponseController(w).Flush()
	prefix := http.TrailerPrefix
	if len(res.Trailer) == announced {
		prefix = ""
	}
	for name, values := range res.Trailer {
		h[prefix+name] = append(h[prefix+name], values...)
	}
	return true
}

// copyBody copies a body to a user's client, and flushes whenever the container has to be
// waited for.
func copyBody(w http.ResponseWriter, body io.Reader, user *account) error {
	source, _ := body.(interface{ Waits() bool })
	b := buffers.Get()
	defer buffers.Put(b)
	var large []byte
	defer func() { largeBuffers.put(large, user) }()
	into := b
	for copied := 0; ; {
		if source == nil || source.Waits() {
			if err := http.NewResponseController(w).Flush(); err != nil {
				return err
			}
		}
		n, err := body.Read(into)
		// In small parts, because a client that needs too long for one is disconnected.
		for part := range slices.Chunk(into[:n], bufferSize) {
			if _, err := w.Write(part); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if copied += n; large == nil && copied >= largeBody && n == len(into) {
			if large = largeBuffers.get(user); large != nil {
				into = large
			}
		}
	}
}

// After largeBody bytes, a body is read into a larger buffer if the container sends faster
// than the proxy reads. Fewer, larger reads need about 40 % less processor time. A body for
// which none of the buffers is free, or whose user has maxLargePerUser of them, continues
// with a small one.
const (
	largeBody       = 1 << 20
	largeBufferSize = 512 << 10
	maxLargeBuffers = 32
	maxLargePerUser = 8
)

var largeBuffers = &limitedPool{taken: make(chan struct{}, maxLargeBuffers), pool: sync.Pool{New: func() any { return new([largeBufferSize]byte) }}}

// limitedPool reuses a limited number of large buffers.
type limitedPool struct {
	taken chan struct{}
	pool  sync.Pool
}

// get returns a buffer, or nil if all are taken, or those of the user.
func (l *limitedPool) get(user *account) []byte {
	if user.large.Add(1) <= maxLargePerUser {
		select {
		case l.taken <- struct{}{}:
			return l.pool.Get().(*[largeBufferSize]byte)[:]
		default:
		}
	}
	user.large.Add(-1)
	return nil
}

// put takes back what get has returned for the user.
func (l *limitedPool) put(b []byte, user *account) {
	if b != nil {
		l.pool.Put((*[largeBufferSize]byte)(b))
		<-l.taken
		user.large.Add(-1)
	}
}
