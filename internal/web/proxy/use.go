package proxy

import (
	"io"
	"net/http"
	"strings"
	"time"

	"codehub/internal/bus/activity"
	"codehub/internal/bus/activity/vscode"
	"codehub/internal/workspace"
)

// use records the user activity in one visit; see ADR 10. It is nil for a visit
// that cannot show any, such as assets, polling and events. It only inspects bytes
// after they were relayed.
type use struct {
	mark       *activity.Mark
	navigation bool          // the visit opens a page
	countBody  bool          // the request body counts as activity
	watch      *vscode.Watch // set for WebSockets
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
		u.watch.Close()
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

// forwarded reports whether the visit is for an application in the workspace and not
// for its IDE.
func (v visit) forwarded() bool { return v.host.Port != 0 || vscode.ForwardedPort(v.path) }

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
		u.watch = x.proxy.newWatch(u.mark, x.visit, in, res)
	}
}

// newWatch returns a watch for a WebSocket, and changes the response so that it can be
// decoded. The watch holds nothing of the request, since it may stay open all day.
func (p *Proxy) newWatch(mark *activity.Mark, v visit, in *http.Request, res *http.Response) *vscode.Watch {
	// VS Code's WebSockets have this parameter in all its versions for browsers;
	// the first messages confirm the protocol.
	isVSCode := strings.Contains(in.URL.RawQuery, "reconnectionToken=")
	if isVSCode {
		vscode.CompressAlone(res.Header)
	}
	id, user, pace := workspace.ID(strings.Clone(string(v.id))), v.caller.UserID, p.open.pace
	return vscode.New(vscode.Options{
		Touch:      mark.Touch,
		Typed:      func() { pace.typed(user, time.Now().UnixNano()) },
		Extensions: res.Header["Sec-Websocket-Extensions"],
		VSCode:     isVSCode,
		Forwarded:  v.forwarded(),
		OnError: func(side vscode.Side, err error) {
			p.unreadable.WithLabelValues(string(side)).Inc()
			p.log.Info("decode VS Code messages failed", "workspace", id, "side", string(side), "err", err)
		},
	})
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
	watch *vscode.Watch
}

func (b *watchedBackend) Write(p []byte) (int, error) {
	n, err := b.ReadWriteCloser.Write(p)
	b.watch.Client(p[:max(n, 0)])
	return n, err
}

// CloseWrite closes the container's side for writing.
func (b *watchedBackend) CloseWrite() error {
	if half, ok := b.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}
