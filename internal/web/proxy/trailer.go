package proxy

import (
	"io"
	"net/http"
	"slices"
	"strings"

	"codehub/api"
)

// notInTrailers are fields that would change how a message is framed, routed,
// authenticated or cached, or what a page may do. Some recipients merge trailers into
// the header, after the header was checked.
var notInTrailers = []string{
	"Age", "Allow", "Authorization", "Cache-Control", "Connection", "Cookie", "Date", "Expect", "Expires", "Forwarded", "Host",
	"Keep-Alive", "Link", "Location", "Max-Forwards", "Origin", "Pragma", "Proxy-Authenticate", "Proxy-Authorization",
	"Proxy-Connection", "Range", "Realm", "Referer", "Refresh", "Retry-After", "Service-Worker-Allowed", "Set-Cookie", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade", "Vary", "Via", "Warning", "Www-Authenticate", "X-Content-Type-Options", "X-Frame-Options",
	"X-Real-Ip", api.TokenHeader,
}

// notInTrailersPrefixes are the beginnings of further such fields.
var notInTrailersPrefixes = []string{"Access-Control-", "Content-", "Cross-Origin-", "If-", "Sec-", "X-Forwarded-"}

// mayTrail reports whether a trailer with this canonical name may pass.
func mayTrail(name string) bool {
	return !slices.Contains(notInTrailers, name) && !wholeOrigin[name] && !directsProxy(name) &&
		!slices.ContainsFunc(notInTrailersPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// dropTrailers removes the trailers that may not pass.
func dropTrailers(h http.Header) {
	for name := range h {
		if !mayTrail(name) {
			delete(h, name)
		}
	}
}

// confineTrailers removes trailers of a response: those that are announced at once, and
// those that are sent when the body ends.
func confineTrailers(res *http.Response) {
	if res.StatusCode == http.StatusSwitchingProtocols {
		return // the body is a connection
	}
	dropTrailers(res.Trailer)
	res.Body = &trailedBody{res.Body, res}
}

// trailedBody is the body of a response. net/http adds the trailers to the response
// when it has read the body.
type trailedBody struct {
	io.ReadCloser
	res *http.Response
}

// Waits reports whether the next Read may have to wait for the container. Before that
// copyBody passes on what it has read.
func (b *trailedBody) Waits() bool {
	source, ok := b.ReadCloser.(interface{ Waits() bool })
	return !ok || source.Waits()
}

func (b *trailedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		dropTrailers(b.res.Trailer)
	}
	return n, err
}

func (b *trailedBody) Close() error {
	err := b.ReadCloser.Close()
	dropTrailers(b.res.Trailer)
	return err
}

// announceTrailers announces the trailers of a request to the workspace. Their values
// are known when the body ends.
func announceTrailers(out, in *http.Request) {
	out.Trailer = nil
	for name := range in.Trailer {
		if !mayTrail(name) {
			continue
		}
		if out.Trailer == nil {
			out.Trailer = http.Header{}
		}
		out.Trailer[name] = nil
	}
	if out.Trailer != nil && out.Body != nil {
		out.Body = &trailingBody{out.Body, out.Trailer, in}
	}
}

// trailingBody is the body of a request with trailers.
type trailingBody struct {
	io.ReadCloser
	trailer http.Header // of the request to the workspace
	in      *http.Request
}

func (b *trailingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		for name := range b.trailer {
			b.trailer[name] = b.in.Trailer[name]
		}
	}
	return n, err
}
