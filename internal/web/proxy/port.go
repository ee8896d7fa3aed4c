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
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"codehub/internal/gateway/origin"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// An application on a port listens on the container's own address, or on a loopback
// address alone. The first is reached directly; if it refuses the connection, the second is
// tried through the container's agent. Connections of both kinds are kept and used again.
//
// An application does not know the container's secret, so it cannot refuse a request that a stale route brings to another workspace's container.
// Therefore every new connection to a port is verified before a byte is sent on it: the
// IDE at the same address has to accept the secret. An agent accepts nothing without it.

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
// because nothing listens there.
func notReached(err error) bool {
	return errors.Is(err, errNoPorts) || errors.Is(err, errNoListener) || isDialError(err) && !errors.Is(err, errNotVerified)
}

// sendToApplication sends a request below /w/{id}/proxy/{port}/ to the port of the
// container. In a container without an agent the IDE forwards it to the port of 127.0.0.1
// if nothing listens on the container's own address.
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
	if to.Agent != "" { // which has tried 127.0.0.1 as well
		return nil, fmt.Errorf("%w: %w", errNoListener, err)
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

// agentHost is the host in the address of a port that only the agent reaches.
const agentHost = "workspace"

// portAddress returns the address of a port in the container.
func (u *upstream) portAddress(port int) (string, error) {
	ide, err := netip.ParseAddrPort(u.Addr)
	if err != nil {
		return "", fmt.Errorf("parse the container's address: %w", err)
	}
	// A loopback address is a published port: the host's other ports are not the
	// workspace's.
	switch published := ide.Addr().IsLoopback() && !u.loopback; {
	case published && u.Agent == "":
		return "", errNoPorts
	case published:
		return net.JoinHostPort(agentHost, strconv.Itoa(port)), nil
	}
	return netip.AddrPortFrom(ide.Addr(), uint16(port)).String(), nil
}

// insideFor is how long a port that was reached through the agent is tried there first.
const insideFor = 30 * time.Second

// insidePorts are the ports that were last reached through the agent.
type insidePorts struct {
	mu sync.Mutex
	by map[string]time.Time
}

func (p *insidePorts) has(port string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.by[port]
	return ok && time.Since(at) < insideFor
}

func (p *insidePorts) set(port string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by == nil {
		p.by = map[string]time.Time{}
	}
	p.by[port] = time.Now() // at most one for each port
}

// dial connects to the IDE, or to a port that it verifies.
func (u *upstream) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if address == u.Addr {
		return dialDirect(ctx, network, address)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if host == agentHost {
		return u.dialInside(ctx, port)
	}
	if u.Agent != "" && u.inside.has(port) {
		if conn, err := u.dialInside(ctx, port); err == nil || errors.Is(err, errNotVerified) {
			return conn, err
		}
	}
	conn, err := dialDirect(ctx, network, address)
	if err == nil {
		if err := u.verify(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return conn, nil
	}
	if u.Agent == "" || !errors.Is(err, syscall.ECONNREFUSED) {
		return nil, err
	}
	inside, insideErr := u.dialInside(ctx, port)
	switch {
	case insideErr == nil:
		u.inside.set(port)
		return inside, nil
	case errors.Is(insideErr, errNotVerified):
		return nil, insideErr
	}
	return nil, err
}

func dialDirect(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}
	return dialer.DialContext(ctx, network, address)
}

// dialInside connects to a loopback address of the container through its agent, which
// accepts the workspace's secret alone.
func (u *upstream) dialInside(ctx context.Context, port string) (net.Conn, error) {
	client := &agent.Client{Addr: u.Agent, Secret: u.Secret}
	var refused *agent.RefusedError
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := client.Dial(ctx, "tcp", net.JoinHostPort(host, port))
		switch {
		case err == nil:
			return conn, nil
		case !errors.As(err, &refused):
			return nil, err
		case refused.Status == http.StatusUnauthorized || refused.Status == http.StatusForbidden:
			return nil, fmt.Errorf("%w: %w", errNotVerified, err)
		}
	}
	return nil, fmt.Errorf("%w: %w", errNoListener, refused)
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

// forwardsToReserved reports whether the path makes the IDE forward the request to a port
// that is codehub's own.
func (v visit) forwardsToReserved() bool {
	port, ok := portOf(v.path)
	return ok && v.host.Port == 0 && v.app.port == 0 && workspace.ReservedPort(port)
}

// portOf returns the port to which the IDE forwards requests for a path, with every
// spelling that the IDE accepts: it matches the first name in any case, and reads the port
// by JavaScript's parseInt, which skips white space and a sign, and stops at the first
// character that is no digit. A port that is too large is larger than 65535.
func portOf(path string) (port int, ok bool) {
	name, rest, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if !ok || !strings.HasPrefix(path, "/") || !strings.EqualFold(name, "proxy") && !strings.EqualFold(name, "absproxy") {
		return 0, false
	}
	rest = strings.TrimLeftFunc(rest, func(r rune) bool { return unicode.IsSpace(r) || r == '\ufeff' })
	if rest != "" && (rest[0] == '+' || rest[0] == '-') {
		rest = rest[1:]
	}
	n := 0
	for ; n < len(rest) && '0' <= rest[n] && rest[n] <= '9'; n++ {
		port = min(10*port+int(rest[n]-'0'), 1<<16)
	}
	return port, n > 0
}

// reserved answers a request for a port that is codehub's own.
func (p *Proxy) reserved(w http.ResponseWriter, r *http.Request, v visit) {
	if !v.navigation {
		refuse(w, http.StatusNotFound, workspace.CodeNotFound, "This port is codehub's own.", nil)
		return
	}
	p.notice(w, r, http.StatusNotFound, NoticeNoPage, "")
}

// noListener answers a request for a port on which nothing listens.
func (p *Proxy) noListener(w http.ResponseWriter, r *http.Request, v visit) {
	page := NoticePage{Notice: NoticePort, Port: v.host.Port, Home: p.layout.Main() + "/", Again: p.addressOf(r, v)}
	prefix, base, message := p.layout.URL(v.host), "", "Nothing listens on port "+strconv.Itoa(page.Port)+" of the workspace."
	if v.app.port != 0 {
		page.Notice, page.Port = NoticeAppPort, v.app.port
		prefix, base, message = p.layout.Main()+v.appPrefix(), v.appPrefix(), "Nothing listens on port "+strconv.Itoa(page.Port)+" of the workspace."
	}
	if !v.navigation {
		refuse(w, http.StatusBadGateway, workspace.CodeUnavailable, message, map[string]any{"port": page.Port})
		return
	}
	page.Wait = base + portWaitPath + "?" + url.Values{"path": {strings.TrimPrefix(page.Again, prefix)}}.Encode()
	if v.polls {
		page.N, _ = strconv.Atoi(r.URL.Query().Get("n"))
		page.N = max(0, page.N)
	}
	setOwnHeaders(w, http.StatusBadGateway)
	p.pages.Notice(w, r, http.StatusBadGateway, page)
}

// portWaitPath is the address, on the host of a port or below /w/{id}/proxy/{port}, at
// which the page of a port without a listener waits for one. It wakes nothing, and the
// application gets no request.
const portWaitPath = origin.OwnPrefix + "port"

// addressOf returns the address that a page about a port or a host leads back to.
func (p *Proxy) addressOf(r *http.Request, v visit) string {
	path := localPathOf(r)
	switch {
	case v.polls:
		path = localPath(r.URL.Query().Get("path"))
	case v.app.port != 0:
		path = v.app.rawPath // r may be the container's request
		if r.URL.RawQuery != "" {
			path += "?" + r.URL.RawQuery
		}
		path = localPath(path)
	}
	switch {
	case v.app.port != 0:
		return p.layout.Main() + v.appPrefix() + path
	case v.host.ID != "":
		return p.layout.URL(v.host) + path
	}
	return p.layout.Main() + path
}

// awaitPort answers the page of a port without a listener: it leads to the application
// once that accepts connections.
func (p *Proxy) awaitPort(w http.ResponseWriter, r *http.Request, v visit, to *upstream) bool {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	c, answered := p.begin(w, r, v, to, cancel)
	if c == nil {
		return answered
	}
	defer p.open.remove(c)
	err := to.listens(ctx, v.host.Port+v.app.port)
	switch {
	case r.Context().Err() != nil, c.wasCut():
		panic(http.ErrAbortHandler)
	case err == nil && v.navigation:
		redirect(w, p.addressOf(r, v))
	case err == nil:
		setOwnHeaders(w, http.StatusOK)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{\"listening\":true}\n")
	case notReached(err):
		p.noListener(w, r, v)
	default:
		if errors.Is(err, errNotVerified) {
			p.routes.invalidate(v.id)
		}
		p.unavailable(w, r, v, http.StatusBadGateway, "The workspace is not responding.")
	}
	return true
}

// listens returns nil if a port accepts connections.
func (u *upstream) listens(ctx context.Context, port int) error {
	address, err := u.portAddress(port)
	if err != nil {
		return err
	}
	conn, err := u.dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}
