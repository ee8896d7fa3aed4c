package proxy

import (
	"io"
	"net/http"
	"strings"

	"codehub/internal/activity"
	"codehub/internal/activity/vscode"
)

// use records what one visit shows of people (design §9, ADR 10). It is nil
// for a visit that can show nothing, as most cannot: assets, polling, events.
//
// All of it looks at bytes that are passed on anyway, and after they were.
type use struct {
	mark  *activity.Mark
	open  bool          // a page is opened
	body  bool          // what is sent counts
	watch *vscode.Watch // of a WebSocket, once there is one
}

// useOf finds out what a visit can show.
func (p *Proxy) useOf(r *http.Request, v visit) *use {
	if p.used == nil {
		return nil
	}
	body := tellsOfPeople(r, v)
	if !v.navigation && !body && !isWebSocket(r.Header) {
		return nil
	}
	return &use{mark: p.used.Mark(v.id), open: v.navigation, body: body}
}

// end comes after the last byte that is recorded.
func (u *use) end() {
	if u == nil {
		return
	}
	if u.watch != nil {
		u.watch.Close()
	}
	u.mark.Release()
}

// tellsOfPeople reports whether somebody sends something of their own. The
// workspace image's IDE never does so by requests: it has its WebSockets, and
// what it posts by itself (/mint-key) has no body.
func tellsOfPeople(r *http.Request, v visit) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect:
		return false
	}
	return r.ContentLength != 0 && !isReport(r.Header) && !vscode.ForwardedPort(v.path)
}

// isReport is for what pages send of themselves: beacons, which are the only
// bodies sent without CORS by script of the same site, and browsers' reports.
func isReport(h http.Header) bool {
	return h.Get("Sec-Fetch-Mode") == "no-cors" || h.Get("Sec-Fetch-Dest") == "report" || h.Get("Ping-To") != ""
}

// request is given what goes to the container.
func (u *use) request(out *http.Request) {
	if u != nil && u.body && out.Body != nil {
		out.Body = &usedBody{ReadCloser: out.Body, mark: u.mark}
	}
}

// usedBody counts for as long as something comes.
type usedBody struct {
	io.ReadCloser
	mark *activity.Mark
}

func (b *usedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.mark.Touch(activity.Client)
	}
	return n, err
}

// answered is given the container's answer before it is passed on.
func (x *exchange) answered(in *http.Request, res *http.Response) {
	u := x.use
	if u == nil {
		return
	}
	if u.open {
		u.mark.Touch(activity.Open)
	}
	if res.StatusCode != http.StatusSwitchingProtocols || !isWebSocket(res.Header) {
		return
	}
	backend, ok := res.Body.(io.ReadWriteCloser)
	if !ok {
		return
	}
	// VS Code's address has carried this for as long as it has run in
	// browsers; what it really is shows in its first messages.
	own := strings.Contains(in.URL.RawQuery, "reconnectionToken=")
	if own {
		vscode.CompressAlone(res.Header)
	}
	u.watch = vscode.New(vscode.Options{
		Touch:      u.mark.Touch,
		Extensions: res.Header["Sec-Websocket-Extensions"],
		VSCode:     own,
		Forwarded:  vscode.ForwardedPort(x.visit.path),
		Lost: func(side vscode.Side, err error) {
			x.proxy.unreadable.WithLabelValues(string(side)).Inc()
			x.proxy.log.Info("websocket of an IDE cannot be read any more", "workspace", x.visit.id, "side", string(side), "err", err)
		},
	})
	res.Body = &watchedBackend{ReadWriteCloser: backend, watch: u.watch}
}

// watchedBackend is the container's end of a WebSocket.
type watchedBackend struct {
	io.ReadWriteCloser
	watch *vscode.Watch
}

func (b *watchedBackend) Write(p []byte) (int, error) {
	n, err := b.ReadWriteCloser.Write(p)
	b.watch.Client(p[:max(n, 0)])
	return n, err
}

// CloseWrite tells the container that the visitor has ended.
func (b *watchedBackend) CloseWrite() error {
	if half, ok := b.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}
