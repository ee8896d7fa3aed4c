package proxy

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"codehub/api"
	"codehub/internal/gateway/origin"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
)

// visitors is an in-memory Visitors. A session cookie of a host is "user-n@id:port".
type visitors struct {
	accounts
	mu      sync.Mutex
	tickets map[string]string // the session cookie that each becomes, by ticket and nonce
	n       int
}

const (
	hostCookie  = "codehub_workspace"
	nonceCookie = "codehub_nonce"
)

func at(h workspace.Host) string { return fmt.Sprintf("@%s:%d", h.ID, h.Port) }

func (v *visitors) AuthenticateWorkspace(r *http.Request, h workspace.Host) (workspace.Caller, error) {
	if r.Header.Get(api.TokenHeader) != "" {
		return v.Authenticate(r, false)
	}
	for _, c := range r.CookiesNamed(hostCookie) {
		if session, ok := strings.CutSuffix(c.Value, at(h)); ok {
			user, _, _ := strings.Cut(session, "-")
			return workspace.Caller{UserID: user, Username: user, Session: session}, nil
		}
	}
	return workspace.Caller{}, workspace.Errorf(workspace.CodeUnauthenticated, "Log in first.")
}

func (v *visitors) Nonce(r *http.Request) (string, *http.Cookie) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.n++
	nonce := fmt.Sprintf("nonce-%026d", v.n)
	if c, err := r.Cookie(nonceCookie); err == nil && strings.HasPrefix(c.Value, "nonce-") {
		nonce = c.Value
	}
	return hex.EncodeToString([]byte(nonce)), &http.Cookie{Name: nonceCookie, Value: nonce, Path: "/"}
}

func (v *visitors) Entered(r *http.Request) bool {
	c, err := r.Cookie(nonceCookie)
	return err == nil && c.Value == "entered"
}

func (v *visitors) IssueTicket(_ context.Context, caller workspace.Caller, h workspace.Host, nonce string) (string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	b, err := hex.DecodeString(nonce)
	if err != nil {
		return "", err
	}
	v.n++
	ticket := fmt.Sprint("ticket-", v.n)
	v.tickets[ticket+string(b)] = caller.Session + at(h)
	return ticket, nil
}

func (v *visitors) RedeemTicket(r *http.Request, ticket string, h workspace.Host) ([]*http.Cookie, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c, err := r.Cookie(nonceCookie)
	if err != nil || c.Value == "entered" {
		return nil, workspace.Errorf(workspace.CodeInvalid, "no cookie")
	}
	session, ok := v.tickets[ticket+c.Value]
	delete(v.tickets, ticket+c.Value)
	if !ok || !strings.HasSuffix(session, at(h)) {
		return nil, workspace.Errorf(workspace.CodeUnauthenticated, "Log in first.")
	}
	return []*http.Cookie{{Name: hostCookie, Value: session, Path: "/"}, {Name: nonceCookie, Value: "entered", Path: "/"}}, nil
}

// hostWorld is a world in which each workspace has an origin of its own.
type hostWorld struct {
	*world
	main     string // origin
	visitors *visitors
	client   *http.Client // follows no redirects, and resolves *.localhost
}

func newHostWorld(t testing.TB, change ...func(*Config)) *hostWorld {
	t.Helper()
	h := &hostWorld{visitors: &visitors{tickets: map[string]string{}}}
	h.world = newWorld(t, append([]func(*Config){func(c *Config) {
		_, port, _ := net.SplitHostPort(origin.Host(c.Layout.Main()))
		h.main = "http://localhost:" + port
		c.Layout, c.Visitors = layoutOf(t, &url.URL{Scheme: "http", Host: "localhost:" + port}, ""), h.visitors
		c.CookieNames = append(c.CookieNames, hostCookie, nonceCookie)
	}}, change...)...)
	address := h.server.Listener.Addr().String()
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	h.client = &http.Client{Transport: transport, CheckRedirect: noRedirects.CheckRedirect}
	return h
}

func (h *hostWorld) at(id workspace.ID) string {
	return h.proxy.layout.URL(workspace.Host{ID: id})
}

// send sends a request without cookies to an address of any host.
func (h *hostWorld) send(method, address string, header ...string) *http.Response {
	h.t.Helper()
	r, err := http.NewRequestWithContext(h.t.Context(), method, address, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	set(r.Header, header...)
	res, err := h.client.Do(r)
	if err != nil {
		h.t.Fatal(err)
	}
	res.Body.Close()
	return res
}

// tab is a browser that follows redirects by hand, with cookies for each host.
type tab struct {
	*hostWorld
	cookies map[string]map[string]string
	trail   []string
	off     bool // accepts no cookies
}

func (h *hostWorld) tab(session string) *tab {
	b := &tab{hostWorld: h, cookies: map[string]map[string]string{}}
	if session != "" {
		b.cookies[origin.Host(h.main)] = map[string]string{sessionCookie: session}
	}
	return b
}

// step sends one navigation and stores the cookies of the response.
func (b *tab) step(address string) *http.Response {
	b.t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		b.t.Fatal(err)
	}
	var pairs []string
	for name, value := range b.cookies[u.Host] {
		pairs = append(pairs, name+"="+value)
	}
	header := append([]string{"Cookie", strings.Join(pairs, "; ")}, navigation...)
	res := b.send(http.MethodGet, address, header...)
	for _, c := range res.Cookies() {
		if b.off {
			continue
		}
		if b.cookies[u.Host] == nil {
			b.cookies[u.Host] = map[string]string{}
		}
		b.cookies[u.Host][c.Name] = c.Value
	}
	return res
}

// visit opens an address and follows at most 20 redirects, as browsers do.
func (b *tab) visit(address string) *http.Response {
	b.t.Helper()
	b.trail = nil
	for range 20 {
		res := b.step(address)
		b.trail = append(b.trail, address)
		next := res.Header.Get("Location")
		if next == "" {
			return res
		}
		u, err := res.Request.URL.Parse(next)
		if err != nil {
			b.t.Fatal(err)
		}
		if u.Host != origin.Host(b.main) && !strings.HasSuffix(u.Host, ".localhost:"+u.Port()) {
			b.t.Fatalf("a redirect leads to %s", u)
		}
		address = u.String()
	}
	b.t.Fatalf("redirects without end: %s", strings.Join(b.trail, "\n"))
	return nil
}

func (b *tab) last() string { return b.trail[len(b.trail)-1] }

func TestEntryByRedirects(t *testing.T) {
	t.Parallel()
	h := newHostWorld(t)
	i := h.serve(wsA)
	b := h.tab("ann-1")
	res := b.visit(h.main + under(wsA) + "/a%2fb//c?folder=/home&x=%0a")
	if res.StatusCode != http.StatusOK || b.last() != h.at(wsA)+"/a%2fb//c?folder=/home&x=%0a" || len(b.trail) != 5 {
		t.Fatalf("%d after\n%s", res.StatusCode, strings.Join(b.trail, "\n"))
	}
	got := i.received()
	if got.URI != "/a%2fb//c?folder=/home&x=%0a" || got.Host != origin.Host(h.at(wsA)) || got.Header.Get("X-Forwarded-Host") != got.Host ||
		got.Header.Get("X-Forwarded-Proto") != "http" || strings.Contains(got.Header.Get("Cookie"), "codehub_") {
		t.Errorf("the IDE received %+v", got)
	}
	// The session of the host is enough from now on.
	if res := b.visit(h.at(wsA) + "/next"); res.StatusCode != http.StatusOK || len(b.trail) != 1 {
		t.Errorf("%d after %v", res.StatusCode, b.trail)
	}
	// A link to the workspace's own origin, in a browser that is logged in, works as well.
	if b := h.tab("ann-2"); b.visit(h.at(wsA)+"/direct?x=1").StatusCode != http.StatusOK || b.last() != h.at(wsA)+"/direct?x=1" {
		t.Errorf("%v", b.trail)
	}
	// Without a login it leads to the login page, and from there back.
	b = h.tab("")
	if res := b.visit(h.at(wsA) + "/direct"); res.StatusCode != http.StatusTeapot || !strings.HasPrefix(b.last(), h.main+"/login?next=") {
		t.Fatalf("%d after %v", res.StatusCode, b.trail)
	}
	u, err := url.Parse(b.last())
	if err != nil || !origin.LocalPath(u.Query().Get("next")) {
		t.Fatalf("the login page leads to %q", u.Query().Get("next"))
	}
	b.cookies[origin.Host(h.main)] = map[string]string{sessionCookie: "ann-3"}
	if res := b.visit(h.main + u.Query().Get("next")); res.StatusCode != http.StatusOK || b.last() != h.at(wsA)+"/direct" {
		t.Errorf("%d after %v", res.StatusCode, b.trail)
	}
}

// No state of a browser or a workspace makes redirects without end, and none leads a
// visitor to a workspace of another user.
func TestEntryEnds(t *testing.T) {
	t.Parallel()
	h := newHostWorld(t)
	i := h.serve(wsA)
	h.store.put(running(wsB, bob))
	h.serve(wsB)
	shows := func(name string, b *tab, address, page string, status int) {
		t.Helper()
		if res := b.visit(address); res.StatusCode != status || res.Header.Get("X-Page") != page {
			t.Errorf("%s: %d %q after\n%s", name, res.StatusCode, res.Header.Get("X-Page"), strings.Join(b.trail, "\n"))
		}
	}
	blocked := h.tab("ann-1")
	blocked.off = true
	shows("no cookies", blocked, h.main+under(wsA)+"/", "notice cookies", 403)
	shows("another user's workspace", h.tab("ann-1"), h.main+under(wsB)+"/", "forbidden", 403)
	shows("another user's host", h.tab("ann-1"), h.at(wsB)+"/", "forbidden", 403)
	shows("unknown workspace", h.tab("ann-1"), h.at("0198c0de-0000-7000-8000-00000000000c")+"/", "not found", 404)

	// The browser drops the session cookie, but not the nonce.
	forgetful := h.tab("ann-1")
	forgetful.visit(h.at(wsA) + "/")
	delete(forgetful.cookies[origin.Host(h.at(wsA))], hostCookie)
	shows("a session cookie that is not kept", forgetful, h.at(wsA)+"/x", "notice cookies", 403)

	// A ticket of another browser, twice.
	b := h.tab("ann-1")
	ticket, _ := h.visitors.IssueTicket(t.Context(), workspace.Caller{UserID: "bob", Session: "bob-1"}, workspace.Host{ID: wsA}, hex.EncodeToString([]byte("other")))
	shows("a ticket without a nonce", h.tab(""), h.at(wsA)+ticketPath+"?again=1&ticket="+ticket, "notice cookies", 403)
	b.step(h.at(wsA) + "/") // has a nonce now
	shows("a foreign ticket, again", b, h.at(wsA)+ticketPath+"?again=1&ticket="+ticket, "notice expired", 403)
	if res := b.visit(h.at(wsA) + ticketPath + "?path=/y&ticket=" + ticket); res.StatusCode != 200 || b.last() != h.at(wsA)+"/y" {
		t.Errorf("a foreign ticket leads to %d after %v", res.StatusCode, b.trail)
	}

	// Not running: the pages are on the main origin, whichever host is asked.
	ws := running(wsA, ann)
	ws.Phase, ws.DesiredState = workspace.PhaseArchived, workspace.DesiredArchived
	h.store.put(ws)
	h.proxy.Invalidate(wsA)
	for _, address := range []string{h.main + under(wsA) + "/p?x=1", h.at(wsA) + "/p?x=1"} {
		b := h.tab("ann-1")
		shows("archived", b, address, "restore", 502)
		if b.last() != h.main+under(wsA)+"/p?x=1" {
			t.Errorf("%s ends at %s", address, b.last())
		}
	}
	shows("archived, with a session of the host", b, h.at(wsA)+"/p?x=1", "restore", 502)
	if res := h.send("GET", h.at(wsA)+"/", "Cookie", hostCookie+"=ann-1"+at(workspace.Host{ID: wsA})); res.StatusCode != 502 || res.Header.Get("Content-Type") != "application/json" {
		t.Errorf("archived, no navigation: %d", res.StatusCode)
	}

	// Running, but the IDE is gone: a page, no circle.
	h.store.put(running(wsA, ann))
	h.proxy.Invalidate(wsA)
	i.stop()
	shows("not responding", b, h.at(wsA)+"/", "notice unavailable", 502)
	shows("not responding, from the main origin", b, h.main+under(wsA)+"/", "notice unavailable", 502)
}

func TestMainOriginRelaysOnlyTokens(t *testing.T) {
	t.Parallel()
	h := newHostWorld(t)
	h.serve(wsA)
	for name, kind := range kinds {
		header := append([]string{"Cookie", sessionCookie + "=ann-1"}, kind.header...)
		if res := h.send(kind.method, h.main+under(wsA)+"/x", header...); res.StatusCode != http.StatusForbidden {
			t.Errorf("%s with a session: %d", name, res.StatusCode)
		}
		header = append(header, api.TokenHeader, "chub_ann")
		if res := h.send(kind.method, h.main+under(wsA)+"/x", header...); res.StatusCode >= 300 && res.StatusCode != 403 || name == "command line" && res.StatusCode != 200 {
			t.Errorf("%s with a token: %d", name, res.StatusCode)
		}
	}
}

// The origin of a request to a workspace's host must be that host's, exactly.
func TestOriginOfHost(t *testing.T) {
	t.Parallel()
	h := newHostWorld(t)
	h.serve(wsA)
	own, other := h.at(wsA), h.at(wsB)
	cookie := []string{"Cookie", hostCookie + "=ann-1" + at(workspace.Host{ID: wsA})}
	socket := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}
	for _, tc := range []struct {
		name   string
		method string
		header []string
		want   int
	}{
		{"a WebSocket of its own", "GET", append([]string{"Origin", own}, socket...), 101},
		{"a WebSocket without an origin", "GET", socket, 403},
		{"a WebSocket of the main origin", "GET", append([]string{"Origin", h.main}, socket...), 403},
		{"a WebSocket of another workspace", "GET", append([]string{"Origin", other}, socket...), 403},
		{"a WebSocket of another port", "GET", append([]string{"Origin", own + "0"}, socket...), 403},
		{"a WebSocket of another scheme", "GET", append([]string{"Origin", strings.Replace(own, "http", "https", 1)}, socket...), 403},
		{"a WebSocket of null", "GET", append([]string{"Origin", "null"}, socket...), 403},
		{"a request of its own", "POST", []string{"Sec-Fetch-Site", "same-origin", "Origin", own}, 200},
		{"a request of the user", "GET", []string{"Sec-Fetch-Site", "none"}, 200},
		{"a request of a sibling", "GET", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"a request of another site", "GET", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"a frame of a sibling", "GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, 403},
		{"a form of another site", "POST", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 403},
		{"no Sec-Fetch, its own origin", "POST", []string{"Origin", own}, 200},
		{"no Sec-Fetch, the main origin", "POST", []string{"Origin", h.main}, 403},
		{"no Sec-Fetch, another workspace", "POST", []string{"Origin", other}, 403},
		{"no headers", "GET", nil, 200},
	} {
		if res := h.send(tc.method, own+"/x", append(tc.header, cookie...)...); res.StatusCode != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, res.StatusCode, tc.want)
		}
	}
	for name, cookie := range map[string]string{
		"the main session":   sessionCookie + "=ann-1",
		"another workspace":  hostCookie + "=ann-1" + at(workspace.Host{ID: wsB}),
		"a port":             hostCookie + "=ann-1" + at(workspace.Host{ID: wsA, Port: 80}),
		"no cookie":          "x=y",
		"an unknown session": hostCookie + "=x",
	} {
		if res := h.send("GET", own+"/x", "Cookie", cookie, "Sec-Fetch-Site", "same-origin"); res.StatusCode != 401 {
			t.Errorf("%s: %d", name, res.StatusCode)
		}
	}
}

func TestOwnPathsOfHost(t *testing.T) {
	t.Parallel()
	h := newHostWorld(t)
	i := h.serve(wsA)
	cookie := []string{"Cookie", hostCookie + "=ann-1" + at(workspace.Host{ID: wsA})}
	for _, path := range []string{"/_codehub", "/_codehub/", "/_codehub/x", "/_codehub/enter", "/%5fcodehub/x", "/_codehub/%2e%2e/x"} {
		if res := h.send("GET", h.at(wsA)+path, cookie...); res.StatusCode != 404 {
			t.Errorf("%s: %d", path, res.StatusCode)
		}
	}
	for _, header := range [][]string{nil, {"Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}, {"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}} {
		if res := h.send("GET", h.at(wsA)+ticketPath+"?ticket=x", header...); res.StatusCode != 403 {
			t.Errorf("a ticket that is not opened as a page (%v): %d", header, res.StatusCode)
		}
		if res := h.send("GET", h.main+entryPath+"?"+entryQuery(workspace.Host{ID: wsA}, strings.Repeat("0", 64), "/", false).Encode(), append(header, "Cookie", sessionCookie+"=ann-1")...); res.StatusCode != 403 {
			t.Errorf("an entry that is not opened as a page (%v): %d", header, res.StatusCode)
		}
	}
	if i.served.Load() != 0 {
		t.Error("a path of codehub's reached the workspace")
	}
	for _, query := range []string{"", "workspace=x", "workspace=" + string(wsA), "workspace=" + string(wsA) + "&nonce=x", "workspace=" + string(wsA) + "&nonce=" + strings.Repeat("0", 64) + "&port=0",
		"workspace=" + string(wsA) + "&nonce=" + strings.Repeat("0", 64) + "&port=65536"} {
		if res := h.send("GET", h.main+entryPath+"?"+query, append(navigation, "Cookie", sessionCookie+"=ann-1")...); res.StatusCode != 404 {
			t.Errorf("entry with %q: %d", query, res.StatusCode)
		}
	}
}

// No parameter leads to another host.
func TestRedirectsStayHere(t *testing.T) {
	t.Parallel()
	h := newHostWorld(t)
	h.serve(wsA)
	hash, nonce := h.visitors.Nonce(&http.Request{})
	for _, path := range []string{"//evil.example", "/\\evil.example", "/%09/evil.example", "https://evil.example/", "evil.example", "", "@evil.example", "/\t/evil.example", "/%5cevil.example", ".evil.example"} {
		res := h.send("GET", h.main+entryPath+"?"+entryQuery(workspace.Host{ID: wsA}, hash, path, false).Encode(), append(navigation, "Cookie", sessionCookie+"=ann-1")...)
		to, err := url.Parse(res.Header.Get("Location"))
		if err != nil || "http://"+to.Host != h.at(wsA) {
			t.Fatalf("%q: the entry leads to %q", path, res.Header.Get("Location"))
		}
		q := to.Query()
		q.Set("path", path)
		res = h.send("GET", h.at(wsA)+ticketPath+"?"+q.Encode(), append(navigation, "Cookie", nonce.Name+"="+nonce.Value)...)
		if got := res.Header.Get("Location"); got != h.at(wsA)+"/" {
			t.Errorf("%q: the ticket leads to %q", path, got)
		}
	}
	b := h.tab("ann-1")
	for _, path := range []string{"//evil.example/x", "/x//evil.example"} {
		if b.visit(h.main + under(wsA) + path); !strings.HasPrefix(b.last(), h.at(wsA)+"/") {
			t.Errorf("%s leads to %s", path, b.last())
		}
	}
}

// In local mode pages open at codehub's own host alone. Programs may use localhost.
func TestLocalhostLeadsToOwnHost(t *testing.T) {
	t.Parallel()
	h := newHostWorld(t, func(c *Config) {
		port := strings.TrimPrefix(origin.Host(c.Layout.Main()), "localhost:")
		c.Layout = layoutOf(t, &url.URL{Scheme: "http", Host: origin.LocalHost + ":" + port}, "")
	})
	h.serve(wsA)
	own := h.proxy.layout.Main()
	for _, path := range []string{"/", "/setup?code=A-B", "//evil.example/%2f?next=//x", under(wsA) + "/a%20b?c"} {
		for _, from := range []string{h.main, strings.Replace(h.main, "localhost", "127.0.0.1", 1)} {
			res := h.send("GET", from+path, append(navigation, "Cookie", sessionCookie+"=ann-1; other=x")...)
			want := own + path
			if got := res.Header.Get("Location"); res.StatusCode != http.StatusSeeOther || got != want {
				t.Errorf("%s%s: %d to %q, want %q", from, path, res.StatusCode, got, want)
			}
			if set := res.Cookies(); len(set) != 1 || set[0].Name != sessionCookie || set[0].MaxAge >= 0 {
				t.Errorf("%s%s: cookies %v", from, path, set)
			}
		}
	}
	for name, res := range map[string]*http.Response{
		"its own host": h.send("GET", own+"/", navigation...),
		"a program":    h.send("GET", h.main+"/api/v1/session", "Accept", "*/*"),
		"a token":      h.send("GET", h.main+"/", append(navigation, api.TokenHeader, "chub_x")...),
		"a form":       h.send("POST", h.main+"/login", navigation...),
	} {
		if strings.HasPrefix(res.Header.Get("Location"), own) || res.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %d %v", name, res.StatusCode, res.Header)
		}
	}
}

func TestUnknownHosts(t *testing.T) {
	t.Parallel()
	for mode, h := range map[string]*hostWorld{"hosts": newHostWorld(t), "path": {world: newWorld(t)}} {
		if h.client == nil {
			h.client, h.main = noRedirects, h.server.URL
		}
		h.serve(wsA)
		for _, host := range []string{"evil.example", "localhost.evil.example", "x.localhost", "localhost:0", string(wsA) + ".localhost"} {
			for _, path := range []string{"/", "/api/v1/session", under(wsA) + "/", entryPath, "/healthz/x", "/metrics"} {
				r, err := http.NewRequestWithContext(t.Context(), "GET", h.server.URL+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Host = host
				set(r.Header, "Cookie", sessionCookie+"=ann-1")
				if a := h.do(r); a.StatusCode != 421 || !strings.Contains(a.body, `"misdirected"`) || a.Header.Get("Set-Cookie") != "" {
					t.Errorf("%s: %s%s: %d %s", mode, host, path, a.StatusCode, a.body)
				}
				set(r.Header, navigation...)
				if a := h.do(r); a.StatusCode != 421 || a.Header.Get("X-Page") != "notice misdirected" {
					t.Errorf("%s: a page of %s%s: %d", mode, host, path, a.StatusCode)
				}
			}
			for _, path := range []string{"/healthz", "/readyz"} {
				r, err := http.NewRequestWithContext(t.Context(), "GET", h.server.URL+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Host = host
				if a := h.do(r); a.StatusCode != http.StatusTeapot {
					t.Errorf("%s: %s%s: %d", mode, host, path, a.StatusCode)
				}
			}
		}
		// Loopback addresses are the main origin.
		for _, path := range []string{"/", "/metrics"} {
			if a := h.do(h.request("GET", path)); a.StatusCode != http.StatusTeapot {
				t.Errorf("%s: %s of the rest of the server: %d", mode, path, a.StatusCode)
			}
		}
	}
}

// On the host of a workspace the probes are the workspace's own.
func TestProbesOfHost(t *testing.T) {
	t.Parallel()
	h := newHostWorld(t)
	i := h.serve(wsA)
	res := h.send("GET", h.at(wsA)+"/metrics", "Cookie", hostCookie+"=ann-1"+at(workspace.Host{ID: wsA}))
	if res.StatusCode != 200 || i.received().URI != "/metrics" {
		t.Errorf("%d", res.StatusCode)
	}
	if res := h.send("GET", h.at(wsA)+"/metrics"); res.StatusCode != 401 {
		t.Errorf("without a session: %d", res.StatusCode)
	}
}

// FuzzEntry checks that the redirects of any request lead to codehub's own hosts.
func FuzzEntry(f *testing.F) {
	f.Add("localhost:8080", entryPath, "workspace="+string(wsA)+"&path=//evil", "")
	f.Add(string(wsA)+".localhost:8080", "//evil.example", "x", "ann-1")
	f.Add("3000--"+string(wsA)+".localhost:8080", ticketPath, "ticket=x&path=/\\evil", "")
	f.Add("localhost:8080", under(wsA)+"//evil.example/%2f", "", "ann-1")
	w := &rows{by: map[workspace.ID]workspace.Workspace{}}
	w.put(running(wsA, ann))
	layout := layoutOf(f, &url.URL{Scheme: "http", Host: "localhost:8080"}, "")
	p := New(Config{
		Auth: accounts{}, Visitors: &visitors{tickets: map[string]string{}}, Store: w, Runtime: &fakeRuntime{}, Pages: plainPages{}, Log: slog.New(slog.DiscardHandler),
		Sessions: &watches{by: map[string][]context.CancelFunc{}}, Layout: layout, IsToken: func(string) bool { return false },
	})
	handler := p.Wrap(http.NotFoundHandler())
	f.Fuzz(func(t *testing.T, host, path, query, session string) {
		u := &url.URL{Path: path, RawQuery: query}
		if strings.ContainsFunc(path+query, isControl) || !strings.HasPrefix(path, "/") {
			return // refused by net/http
		}
		r := &http.Request{Method: "GET", URL: u, Host: host, Header: http.Header{"Accept": {"text/html"}, "Cookie": {sessionCookie + "=" + session}}}
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, r.WithContext(t.Context()))
		location := rec.Header().Get("Location")
		if location == "" {
			return
		}
		base := &url.URL{Scheme: "http", Host: "localhost:8080"}
		to, err := base.Parse(location)
		if err != nil {
			t.Fatalf("%s%s?%s leads to %q: %v", host, path, query, location, err)
		}
		if place := layout.Route(to.Host); place.Kind == origin.Unknown || to.Scheme != "http" {
			t.Fatalf("%s%s?%s leads to %q", host, path, query, location)
		}
	})
}

// The access log names the workspace and the port of every request, without asking
// anything for it.
func TestLogNamesWorkspace(t *testing.T) {
	t.Parallel()
	h := newHostWorld(t)
	port := workspace.Host{ID: wsA, Port: 3000}
	for address, want := range map[string]workspace.Host{
		h.at(wsA) + "/x":                {ID: wsA},
		h.at(wsB) + ticketPath:          {ID: wsB}, // does not exist
		h.proxy.layout.URL(port) + "/x": port,
		h.main + under(wsA) + "/x":      {ID: wsA},
		h.main + under("none") + "/x":   {},
		h.main + "/":                    {},
		"http://other.example/x":        {},
		h.main + entryPath:              {},
		h.main + entryPath + "?" + entryQuery(port, strings.Repeat("0", 64), "/", false).Encode(): port,
	} {
		var got accesslog.Request
		r := httptest.NewRequest(http.MethodGet, address, nil)
		h.handler().ServeHTTP(httptest.NewRecorder(), r.WithContext(accesslog.With(r.Context(), &got)))
		if got.Workspace != string(want.ID) || got.Port != want.Port {
			t.Errorf("%s: workspace %q, port %d", address, got.Workspace, got.Port)
		}
	}
}

// The page of a stopped workspace returns to the port that was opened.
func TestWakeReturnsToPort(t *testing.T) {
	t.Parallel()
	h, a := newPortWorld(t)
	h.serve(wsA)
	url := h.proxy.layout.URL(a.host())
	long := "/a" + strings.Repeat("%2f", 600) // longer than what a page returns to when it is escaped again
	for path, want := range map[string]string{"/page?x=1&next=//evil.example": "/page?x=1&next=//evil.example", long: "/"} {
		for _, kept := range []bool{true, false} {
			b := h.tab("ann-1")
			if kept { // the browser has a session of the port
				b.visit(url + "/")
			}
			ws := running(wsA, ann)
			ws.Phase, ws.DesiredState = workspace.PhaseStandby, workspace.DesiredStandby
			h.store.put(ws)
			h.proxy.Invalidate(wsA)
			res := b.visit(url + path)
			if res.StatusCode != 503 || res.Header.Get("X-Page") != "loading" || !strings.HasPrefix(b.last(), h.main+entryPath+"?") {
				t.Fatalf("%d %s after\n%s", res.StatusCode, res.Header.Get("X-Page"), strings.Join(b.trail, "\n"))
			}
			page := res.Header.Get("X-Path")
			if len(page) > maxNext || !origin.LocalPath(page) {
				t.Fatalf("the page returns to %.100q (%d bytes)", page, len(page))
			}
			if kept { // and it has lost its nonce while it waited
				delete(b.cookies, origin.Host(url))
			}
			h.store.put(running(wsA, ann))
			h.proxy.Invalidate(wsA)
			if res := b.visit(h.main + page); res.StatusCode != 200 || b.last() != url+want {
				t.Errorf("%d after\n%s", res.StatusCode, strings.Join(b.trail, "\n"))
			}
		}
	}
}
