package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"codehub/internal/origin"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// An application on a port of a workspace does not know the container's secret, so it
// cannot refuse a request that a stale route brings to another workspace's container.
// Therefore every new connection to a port is verified before a byte is sent on it: the
// IDE at the same address has to accept the secret.

const (
	verifyTimeout = 5 * time.Second
	// verifyPath is a path that no IDE answers without its secret.
	verifyPath = origin.OwnPrefix + "verify"
)

var (
	errNotVerified = errors.New("the IDE at the address of the port does not accept the workspace's secret")
	errNoPorts     = errors.New("the container has no address of its own that the server can reach")
	errNoListener  = errors.New("nothing listens on the port")
)

// notReached reports whether a request for a port failed before a byte of it was sent,
// because nothing listens on the container's own address.
func notReached(err error) bool {
	return errors.Is(err, errNoPorts) || isDialError(err) && !errors.Is(err, errNotVerified)
}

// sendToApplication sends a request below /w/{id}/proxy/{port}/ to the port of the
// container's own address. If nothing listens there, the IDE forwards the request to the
// port of 127.0.0.1.
func (x *exchange) sendToApplication(to *upstream, out *http.Request) (*http.Response, error) {
	app := x.visit.app
	// out stays as it is, so that the application does not get the IDE's secret.
	direct := out.Clone(out.Context())
	direct.URL.Path, direct.URL.RawPath = app.path, app.rawPath
	if out.Body != nil {
		direct.Body = openBody{out.Body}
	}
	x.prefix = x.visit.appPrefix()
	err := setUpstream(direct, to, app.port)
	if err == nil {
		var res *http.Response
		if res, err = to.transport.RoundTrip(direct); err == nil {
			return res, nil
		}
	}
	if !notReached(err) || out.Context().Err() != nil {
		return nil, err
	}
	forwarded := out.Clone(out.Context())
	x.prefix = x.visit.prefix // code-server adds the rest of the application's prefix
	if err := setUpstream(forwarded, to, 0); err != nil {
		return nil, err
	}
	res, err := to.transport.RoundTrip(forwarded)
	if err == nil && refusedByIDE(res, app.port) {
		_ = res.Body.Close()
		return nil, errNoListener
	}
	return res, err
}

// openBody is a body that a failed attempt to connect does not close. The server closes
// it after the request.
type openBody struct{ io.ReadCloser }

func (openBody) Close() error { return nil }

// refusedByIDE reports whether code-server says that nothing listens on the port: in the
// body, or to a WebSocket in the status line. The response stays complete.
func refusedByIDE(res *http.Response, port int) bool {
	if res.StatusCode != http.StatusInternalServerError || res.Header.Get("Content-Type") != "" {
		return false
	}
	refused := func(s string) bool {
		return strings.HasPrefix(s, "connect ECONNREFUSED ") && strings.HasSuffix(s, ":"+strconv.Itoa(port))
	}
	if refused(strings.TrimPrefix(res.Status, "500 ")) {
		return true
	}
	// One read: an application's response is not delayed until its end.
	b := make([]byte, 128)
	n, _ := res.Body.Read(b)
	if refused(string(b[:n])) {
		return true
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(b[:n]), res.Body), res.Body}
	return false
}

// portAddress returns the address of a port in the container.
func (u *upstream) portAddress(port int) (string, error) {
	ide, err := netip.ParseAddrPort(u.Addr)
	if err != nil {
		return "", fmt.Errorf("parse the container's address: %w", err)
	}
	// A loopback address is a published port: the host's other ports are not the
	// workspace's.
	if ide.Addr().IsLoopback() && !u.loopback {
		return "", errNoPorts
	}
	return netip.AddrPortFrom(ide.Addr(), uint16(port)).String(), nil
}

// dial connects to the IDE, or to a port that it verifies.
func (u *upstream) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil || address == u.Addr {
		return conn, err
	}
	if err := u.verify(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// verify checks that the container at the upstream's address is still the workspace's.
func (u *upstream) verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+u.Addr+verifyPath, nil)
	if err != nil {
		return err
	}
	setSecret(r.Header, u.Secret)
	res, err := u.transport.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("verify the address of a port: %w", errors.Join(errNotVerified, err))
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 4<<10) // lets the connection be used again
	switch {
	case res.StatusCode == http.StatusUnauthorized, res.StatusCode == http.StatusForbidden, res.StatusCode >= 300 && res.StatusCode < 400:
		return fmt.Errorf("%w: status %d", errNotVerified, res.StatusCode)
	}
	return nil
}

// asksAgent reports whether a request leads to the port of the workspace's agent, which
// is for the server alone: by the name of the host, or by a path from which the IDE, too,
// takes a port. The visit it returns has the port for the page that is shown.
func (v visit) asksAgent() (visit, bool) {
	if v.host.Port != 0 || v.app.port != 0 {
		return v, v.host.Port == runtime.AgentPort || v.app.port == runtime.AgentPort
	}
	rest, ok := strings.CutPrefix(v.path, "/")
	if !ok {
		return v, false
	}
	name, rest, ok := strings.Cut(rest, "/")
	if !ok || !strings.EqualFold(name, "proxy") && !strings.EqualFold(name, "absproxy") {
		return v, false
	}
	port, _, _ := strings.Cut(rest, "/")
	// Other spellings are for the IDE to read; none of them may mean the port.
	n, err := strconv.ParseUint(strings.TrimSpace(port), 10, 64)
	if err != nil || n != runtime.AgentPort {
		return v, false
	}
	v.app.port = runtime.AgentPort
	return v, true
}

// noListener answers a request for a port on which nothing listens.
func (p *Proxy) noListener(w http.ResponseWriter, r *http.Request, v visit) {
	page := NoticePage{Notice: NoticePort, Port: v.host.Port, Home: p.layout.Main() + "/"}
	message := "Nothing listens on port " + strconv.Itoa(page.Port) + " of the workspace's own address."
	if v.app.port != 0 {
		page.Notice, page.Port = NoticeAppPort, v.app.port
		message = "Nothing listens on port " + strconv.Itoa(page.Port) + " of the workspace."
		page.Again = p.layout.URL(v.host) + localPathOf(r)
		if v.host.ID == "" {
			page.Again = p.layout.Main() + pathOf(r)
		}
	} else {
		page.Again = p.layout.URL(v.host) + localPathOf(r)
	}
	if !v.navigation {
		refuse(w, http.StatusBadGateway, workspace.CodeUnavailable, message, map[string]any{"port": page.Port})
		return
	}
	setOwnHeaders(w, http.StatusBadGateway)
	p.pages.Notice(w, r, http.StatusBadGateway, page)
}
