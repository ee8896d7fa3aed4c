package proxy

import (
	"io"
	"net/http"
	"strings"
	"time"

	"codehub/internal/bus/activity"
)

// use records the user activity in one visit; see ADR 10. What the IDE's page reports is not a
// part of it (reported). It is nil for a visit that cannot show any, such as assets, polling and
// events. It only inspects bytes after they were relayed.
type use struct {
	mark       *activity.Mark
	navigation bool      // the visit opens a page
	countBody  bool      // the request body counts as activity
	watch      *messages // of a WebSocket; or nil
}

// newUse returns a use if the visit can show user activity, or nil.
func (p *Proxy) newUse(r *http.Request, v visit) *use {
	if p.activity == nil || v.guest {
		return nil
	}
	body := sendsInput(r, v)
	if !v.navigation && !body && !isWebSocket(r.Header) {
		return nil
	}
	return &use{mark: p.activity.Mark(v.id), navigation: v.navigation, countBody: body}
}

// end must be called after the last byte was recorded.
func (u *use) end() {
	if u == nil {
		return
	}
	if u.watch != nil {
		u.watch.close()
	}
	u.mark.Release()
}

// sendsInput reports whether the request body is user input. The default image's
// IDE sends input over WebSockets only, and its background requests (/mint-key)
// have no body.
func sendsInput(r *http.Request, v visit) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect:
		return false
	}
	return r.ContentLength != 0 && !isReport(r.Header) && !v.forwarded()
}

// forwarded reports whether the visit is for an application that listens in the workspace, and
// not for its IDE.
//
// Opening a page there is use, and so is what it sends over WebSockets, which may be a notebook
// or another terminal. But pages of development servers send heartbeats as data and poll with
// POST, and an open preview must not keep its workspace running forever. So WebSocket messages
// count only if they differ from the most recent ones, and of requests only navigations count.
// The loss is small: a heartbeat with a counter still counts, and submitting forms only by
// script does not.
func (v visit) forwarded() bool {
	_, ok := portOf(v.path)
	return ok || v.host.Port != 0
}

// isReport reports whether a page sent the request without its user: beacons, the only
// same-site requests with a body in mode no-cors, pings, and browsers' reports.
func isReport(h http.Header) bool {
	return h.Get("Sec-Fetch-Mode") == "no-cors" || h.Get("Sec-Fetch-Dest") == "report" || h.Get("Ping-To") != ""
}

// watchBody wraps the request's body if it counts as activity.
func (u *use) watchBody(out *http.Request) {
	if u != nil && u.countBody && out.Body != nil {
		out.Body = &countedBody{ReadCloser: out.Body, mark: u.mark}
	}
}

// countedBody records activity for every read.
type countedBody struct {
	io.ReadCloser
	mark *activity.Mark
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.mark.Touch(activity.Client)
	}
	return n, err
}

// observe records the container's response before it is relayed.
func (x *exchange) observe(in *http.Request, res *http.Response) {
	u := x.use
	if u == nil {
		return
	}
	if u.navigation {
		u.mark.Touch(activity.Open)
	}
	if res.StatusCode == http.StatusSwitchingProtocols && isWebSocket(res.Header) {
		u.watch = x.proxy.newWatch(u.mark, x.visit, in)
	}
}

// reportsUse is in the address of a WebSocket whose page reports its use (ide.js), so that what
// the page sends by it does not count.
const reportsUse = "&codehub-reports"

// newWatch returns what inspects a WebSocket. It holds nothing of the request, since it may stay
// open all day.
func (p *Proxy) newWatch(mark *activity.Mark, v visit, in *http.Request) *messages {
	user, pace := v.caller.UserID, p.open.pace
	return &messages{
		touch: mark.Touch, typed: func() { pace.typed(user, time.Now().UnixNano()) },
		forwarded: v.forwarded(), reported: strings.HasSuffix(in.URL.RawQuery, reportsUse),
	}
}

// watchBackend lets the watch of a WebSocket see what httputil.ReverseProxy sends to the
// container.
func (u *use) watchBackend(res *http.Response) {
	if u == nil || u.watch == nil {
		return
	}
	if backend, ok := res.Body.(io.ReadWriteCloser); ok {
		res.Body = &watchedBackend{ReadWriteCloser: backend, watch: u.watch}
	}
}

// watchedBackend is the container's side of a WebSocket.
type watchedBackend struct {
	io.ReadWriteCloser
	watch *messages
}

func (b *watchedBackend) Write(p []byte) (int, error) {
	n, err := b.ReadWriteCloser.Write(p)
	b.watch.sent(p[:max(n, 0)])
	return n, err
}

// CloseWrite closes the container's side for writing.
func (b *watchedBackend) CloseWrite() error { return closeWrite(b.ReadWriteCloser) }

func closeWrite(c io.Closer) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}
