package proxy

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"codehub/internal/bus/activity"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// newAgent serves an agent, and counts its connections.
func newAgent(t *testing.T, secret string) (address string, dialed *atomic.Int64) {
	t.Helper()
	dialed = &atomic.Int64{}
	s := httptest.NewUnstartedServer(inside.NewServer(inside.Config{Secret: secret, Log: slog.New(slog.DiscardHandler)}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			dialed.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), dialed
}

// newInsideWorld is a world whose workspace A has an agent, and the container's address
// 127.0.0.2, so that an application on 127.0.0.1 is one that listens on loopback alone.
func newInsideWorld(t *testing.T, change ...func(*Config)) (*hostWorld, *atomic.Int64) {
	t.Helper()
	h := newHostWorld(t, change...)
	h.proxy.routes.loopbackPorts = true
	i := newIDE(t, "secret-of-a", "127.0.0.2:0")
	up := i.upstream("c-a")
	var dialed *atomic.Int64
	up.Agent, dialed = newAgent(t, "secret-of-a")
	h.runtime.put(wsA, up)
	return h, dialed
}

// An application that listens on a loopback address alone is reached through the agent,
// with WebSockets, and its connections are used again.
func TestLoopbackPort(t *testing.T) {
	t.Parallel()
	h, dialed := newInsideWorld(t)
	a := newApp(t)
	address := h.proxy.layout.URL(a.host())
	b := h.tab("ann-1")
	if res := b.visit(address + "/x?y=1"); res.StatusCode != http.StatusOK {
		t.Fatalf("%d after\n%s", res.StatusCode, strings.Join(b.trail, "\n"))
	}
	session := hostCookie + "=ann-1" + at(a.host())
	for range 5 {
		if res := h.send("GET", address+"/y", "Cookie", session); res.StatusCode != http.StatusOK {
			t.Fatalf("%d", res.StatusCode)
		}
	}
	if n := dialed.Load(); n > 3 {
		t.Errorf("%d connections to the agent for 6 requests in a row", n)
	}
	if got := a.received().Get("Cookie"); strings.Contains(got, "secret-of-a") || strings.Contains(got, "codehub_") {
		t.Errorf("the application received the cookies %q", got)
	}
	res := h.send("GET", address+"/socket", "Cookie", session, "Origin", address, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
	if res.StatusCode != http.StatusSwitchingProtocols {
		t.Errorf("a WebSocket: %d", res.StatusCode)
	}
	for _, port := range []int{runtime.IDEPort, runtime.AgentPort} {
		own := workspace.Host{ID: wsA, Port: port}
		if res := h.send("GET", h.proxy.layout.URL(own)+"/", "Cookie", hostCookie+"=ann-1"+at(own)); res.StatusCode != http.StatusNotFound {
			t.Errorf("port %d: %d", port, res.StatusCode)
		}
		if res := h.tab("ann-1").visit(h.proxy.layout.URL(own) + "/"); res.StatusCode != http.StatusNotFound {
			t.Errorf("a page of port %d: %d", port, res.StatusCode)
		}
	}
}

// An agent of another container refuses the secret: its applications receive no byte.
func TestLoopbackPortOfForeignContainer(t *testing.T) {
	t.Parallel()
	h, _ := newInsideWorld(t)
	a := newApp(t)
	other, _ := newAgent(t, "secret-of-another")
	up, _ := h.runtime.Upstream(t.Context(), wsA)
	up.Agent = other
	h.runtime.put(wsA, up)
	if res := h.send("GET", h.proxy.layout.URL(a.host())+"/", "Cookie", hostCookie+"=ann-1"+at(a.host())); res.StatusCode != http.StatusBadGateway {
		t.Errorf("%d", res.StatusCode)
	}
	if n := a.bytes.Load(); n != 0 {
		t.Errorf("%d bytes reached another workspace's application", n)
	}
}

// In path mode, too, with the path that the application knows.
func TestLoopbackPortByPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.proxy.routes.loopbackPorts = true
	i := newIDE(t, "secret-of-a", "127.0.0.2:0")
	up := i.upstream("c-a")
	up.Agent, _ = newAgent(t, "secret-of-a")
	w.runtime.put(wsA, up)
	a := newApp(t)
	prefix := under(wsA) + "/proxy/" + strconv.Itoa(a.port)
	if res := w.open(prefix + "/x"); res.StatusCode != 200 || !strings.HasSuffix(res.body, " /x") {
		t.Errorf("%d %s", res.StatusCode, res.body)
	}
	if res := w.get(prefix + "/absolute"); res.Header.Get("Location") != prefix+"/x" {
		t.Errorf("a redirect leads to %q", res.Header.Get("Location"))
	}
	silent := under(wsA) + "/proxy/" + silentPort(t)
	res := w.open(silent + "/x?y=1")
	if res.StatusCode != 502 || res.Header.Get("X-Page") != "notice app_port" || !strings.Contains(res.body, "Wait:"+silent+portWaitPath+"?path=%2Fx%3Fy%3D1") {
		t.Errorf("%d %s %s", res.StatusCode, res.Header.Get("X-Page"), res.body)
	}
	if !strings.Contains(res.body, "Again:"+w.proxy.layout.Main()+silent+"/x?y=1") {
		t.Errorf("the page leads back elsewhere: %s", res.body)
	}
	if res := w.open(prefix + portWaitPath + "?path=%2Fx"); res.StatusCode != http.StatusSeeOther || !strings.HasSuffix(res.Header.Get("Location"), prefix+"/x") {
		t.Errorf("%d %s", res.StatusCode, res.Header.Get("Location"))
	}
	if res := w.get(under(wsA) + "/proxy/" + strconv.Itoa(runtime.AgentPort) + "/"); res.StatusCode != http.StatusNotFound {
		t.Errorf("the agent's port: %d", res.StatusCode)
	}
}

// The page of a port without a listener learns when there is one. It wakes nothing, and
// the application gets no request.
func TestPortWaits(t *testing.T) {
	t.Parallel()
	h, _ := newInsideWorld(t)
	port, listen := harness.ReservePort(t)
	host := workspace.Host{ID: wsA, Port: port}
	address := h.proxy.layout.URL(host)
	session := hostCookie + "=ann-1" + at(host)
	ask := func(header ...string) *http.Response {
		return h.send("GET", address+portWaitPath+"?path=%2Fx%3Fy%3D1", append([]string{"Cookie", session}, header...)...)
	}
	if res := ask(); res.StatusCode != http.StatusBadGateway {
		t.Errorf("nothing listens: %d", res.StatusCode)
	}
	if res := ask(navigation...); res.StatusCode != http.StatusBadGateway || res.Header.Get("X-Page") != "notice port" {
		t.Errorf("a page: %d", res.StatusCode)
	}
	var requests atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	s.Listener.Close()
	s.Listener = listen()
	s.Start()
	t.Cleanup(s.Close)
	if res := ask(); res.StatusCode != http.StatusOK {
		t.Errorf("it listens: %d", res.StatusCode)
	}
	if res := ask(navigation...); res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != address+"/x?y=1" {
		t.Errorf("a page: %d %q", res.StatusCode, res.Header.Get("Location"))
	}
	if res := h.send("GET", address+portWaitPath+"?path=//evil.example", append([]string{"Cookie", session}, navigation...)...); res.Header.Get("Location") != address+"/" {
		t.Errorf("it leads to %q", res.Header.Get("Location"))
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("the application got %d requests", n)
	}
	if res := h.send("GET", address+portWaitPath); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a session: %d", res.StatusCode)
	}
	ws := running(wsA, ann)
	ws.Phase, ws.DesiredState = workspace.PhaseStandby, workspace.DesiredStandby
	h.store.put(ws)
	h.proxy.Invalidate(wsA)
	for _, header := range [][]string{nil, navigation} {
		if res := ask(header...); res.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("stopped: %d", res.StatusCode)
		}
	}
	if _, wakes := h.store.counts(); wakes != 0 {
		t.Errorf("it was woken %d times", wakes)
	}
}

// share shares a port of workspace A, as the database and its event do.
func (h *hostWorld) share(port int, with workspace.Visibility, lasting time.Duration) {
	h.store.mu.Lock()
	h.store.shares = map[workspace.ID][]workspace.PortShare{}
	if with != workspace.VisibleOwner {
		s := workspace.PortShare{Port: port, With: with}
		if lasting != 0 {
			end := time.Now().Add(lasting)
			s.ExpiresAt = &end
		}
		h.store.shares[wsA] = []workspace.PortShare{s}
	}
	h.store.mu.Unlock()
	h.proxy.Invalidate(wsA)
}

func (a *app) received() http.Header {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.header
}

// newSharingWorld is a world whose administrators allow most.
func newSharingWorld(t *testing.T, most workspace.Visibility, change ...func(*Config)) (*hostWorld, *app) {
	t.Helper()
	h := newHostWorld(t, append(change, func(c *Config) { c.Settings.Ports.PortVisibilityMax = string(most) })...)
	h.proxy.routes.loopbackPorts = true
	h.serve(wsA)
	return h, newApp(t)
}

// A port that is shared with users is open to them, and nothing else is.
func TestPortSharedWithUsers(t *testing.T) {
	t.Parallel()
	used := activity.New()
	h, a := newSharingWorld(t, workspace.VisiblePublic, func(c *Config) { c.Activity = used })
	address, other := h.proxy.layout.URL(a.host()), newApp(t)
	if res := h.tab("bob-1").visit(address + "/"); res.StatusCode != http.StatusForbidden {
		t.Errorf("before: %d", res.StatusCode)
	}
	h.share(a.port, workspace.VisibleUsers, 0)
	b := h.tab("bob-1")
	if res := b.visit(address + "/page"); res.StatusCode != http.StatusOK || b.last() != address+"/page" {
		t.Fatalf("%d after\n%s", res.StatusCode, strings.Join(b.trail, "\n"))
	}
	for name, values := range a.received() {
		if all := strings.Join(values, " "); strings.Contains(strings.ToLower(name+all), "codehub") || strings.Contains(all, "bob") {
			t.Errorf("the application received %s: %s", name, all)
		}
	}
	if last, ok := used.Last(wsA); ok {
		t.Errorf("a visitor counts as use: %v", last)
	}
	for name, host := range map[string]workspace.Host{"the IDE": {ID: wsA}, "another port": other.host()} {
		if res := h.tab("bob-1").visit(h.proxy.layout.URL(host) + "/"); res.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %d", name, res.StatusCode)
		}
		// Not even with a session of that host, or with the shared port's.
		for _, session := range []string{"bob-1" + at(host), "bob-1" + at(a.host())} {
			res := h.send("GET", h.proxy.layout.URL(host)+"/", "Cookie", hostCookie+"="+session)
			if res.StatusCode != http.StatusForbidden && res.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s with the session %s: %d", name, session, res.StatusCode)
			}
		}
	}
	if res := h.send("GET", h.main+under(wsA)+"/", "Codehub-Session-Token", "chub_bob"); res.StatusCode != http.StatusForbidden {
		t.Errorf("the path with a token: %d", res.StatusCode)
	}
	session := hostCookie + "=bob-1" + at(a.host())
	if res := h.send("POST", address+"/", "Cookie", session, "Origin", h.at(wsA)); res.StatusCode != http.StatusForbidden {
		t.Errorf("another origin: %d", res.StatusCode)
	}
	if res := h.send("GET", address+"/"); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a session: %d", res.StatusCode)
	}
	h.share(a.port, workspace.VisibleOwner, 0)
	if res := h.send("GET", address+"/", "Cookie", session); res.StatusCode != http.StatusForbidden {
		t.Errorf("after: %d", res.StatusCode)
	}
}

// A shared port does not start a stopped workspace for anyone but its owner.
func TestSharedPortWakesNothing(t *testing.T) {
	t.Parallel()
	h, a := newSharingWorld(t, workspace.VisiblePublic)
	h.share(a.port, workspace.VisiblePublic, time.Hour)
	ws := running(wsA, ann)
	ws.Phase, ws.DesiredState = workspace.PhaseStandby, workspace.DesiredStandby
	h.store.put(ws)
	h.proxy.Invalidate(wsA)
	address := h.proxy.layout.URL(a.host())
	// A visitor without a session of the host may be its owner, who can log in and start it.
	for cookie, home := range map[string]string{"": under(wsA), "bob-1": "/"} {
		b := h.tab("")
		if cookie != "" {
			b.cookies[a.name(h)] = map[string]string{hostCookie: cookie + at(a.host())}
		}
		if res := b.visit(address + "/"); res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("X-Page") != "notice asleep" || res.Header.Get("X-Home") != h.main+home {
			t.Errorf("%q: %d %s, leads to %s", cookie, res.StatusCode, res.Header.Get("X-Page"), res.Header.Get("X-Home"))
		}
	}
	if res := h.send("GET", address+"/", "Cookie", hostCookie+"=bob-1"+at(a.host())); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a request: %d", res.StatusCode)
	}
	if _, wakes := h.store.counts(); wakes != 0 {
		t.Errorf("it was woken %d times", wakes)
	}
	b := h.tab("ann-1")
	b.cookies[a.name(h)] = map[string]string{hostCookie: "ann-1" + at(a.host())}
	b.visit(address + "/")
	if _, wakes := h.store.counts(); wakes == 0 {
		t.Error("its owner did not wake it")
	}
}

// name is the host name of the application.
func (a *app) name(h *hostWorld) string {
	u, err := url.Parse(h.proxy.layout.URL(a.host()))
	if err != nil {
		h.t.Fatal(err)
	}
	return u.Host
}

// A public port needs no session and carries nothing of codehub's.
func TestPublicPort(t *testing.T) {
	t.Parallel()
	h, a := newSharingWorld(t, workspace.VisiblePublic)
	h.share(a.port, workspace.VisiblePublic, time.Hour)
	address := h.proxy.layout.URL(a.host())
	b := h.tab("")
	if res := b.visit(address + "/"); res.StatusCode != http.StatusOK || len(b.trail) != 1 || len(res.Cookies()) != 0 {
		t.Fatalf("%d after %v, cookies %v", res.StatusCode, b.trail, res.Cookies())
	}
	res := h.send("POST", address+"/hook", "Cookie", sessionCookie+"=ann-1; "+hostCookie+"=stale; "+nonceCookie+"=x; own=1", "Authorization", "Bearer chub_ann")
	got := a.received()
	if res.StatusCode != http.StatusOK || got.Get("Cookie") != "own=1" || got.Get("Authorization") != "" {
		t.Errorf("%d, the application received %v", res.StatusCode, got)
	}
	for name, header := range map[string][]string{
		"a form of another site":   {"Sec-Fetch-Site", "cross-site", "Origin", "http://evil.example"},
		"a page of the IDE":        {"Sec-Fetch-Site", "same-site", "Origin", h.at(wsA)},
		"a frame of another site":  {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"},
		"a browser without states": {"Origin", "null"},
	} {
		if res := h.send("POST", address+"/", header...); res.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %d", name, res.StatusCode)
		}
	}
	socket := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}
	for from, want := range map[string]int{"": 101, address: 101, "http://evil.example": 403} {
		if res := h.send("GET", address+"/socket", append(socket, "Origin", from)...); res.StatusCode != want {
			t.Errorf("a WebSocket of %q: %d, want %d", from, res.StatusCode, want)
		}
	}
	for name, host := range map[string]workspace.Host{"the IDE": {ID: wsA}, "another port": newApp(t).host(), "another workspace": {ID: wsB, Port: a.port}} {
		if res := h.send("GET", h.proxy.layout.URL(host)+"/"); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, res.StatusCode)
		}
	}
	h.share(a.port, workspace.VisiblePublic, -time.Second)
	if res := h.send("GET", address+"/"); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("an expired share: %d", res.StatusCode)
	}
}

// What administrators do not allow has no effect, whatever is stored.
func TestSharesBelowTheMaximum(t *testing.T) {
	t.Parallel()
	for most, want := range map[workspace.Visibility]int{workspace.VisibleOwner: http.StatusForbidden, workspace.VisibleUsers: http.StatusOK, "": http.StatusForbidden} {
		h, a := newSharingWorld(t, most)
		h.share(a.port, workspace.VisiblePublic, time.Hour)
		address := h.proxy.layout.URL(a.host())
		if res := h.send("GET", address+"/"); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: without a session %d", most, res.StatusCode)
		}
		if res := h.tab("bob-1").visit(address + "/"); res.StatusCode != want {
			t.Errorf("%s: another user %d, want %d", most, res.StatusCode, want)
		}
	}
	h, _ := newSharingWorld(t, workspace.VisiblePublic)
	for _, port := range []int{runtime.AgentPort, runtime.IDEPort} {
		h.share(port, workspace.VisiblePublic, time.Hour)
		if res := h.send("GET", h.proxy.layout.URL(workspace.Host{ID: wsA, Port: port})+"/"); res.StatusCode != http.StatusNotFound {
			t.Errorf("port %d: %d", port, res.StatusCode)
		}
	}
}

// In path mode a share has no effect, of a port or of the workspace: what is shared would act
// as its visitors.
func TestNoSharesInPathMode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Settings.Ports.PortVisibilityMax = "public" })
	w.proxy.routes.loopbackPorts = true
	w.serve(wsA)
	a := newApp(t)
	w.store.guests = map[workspace.ID]workspace.Guests{wsA: {bob: workspace.AccessUse}}
	(&hostWorld{world: w}).share(a.port, workspace.VisiblePublic, time.Hour)
	for _, path := range []string{"/", "/proxy/" + strconv.Itoa(a.port) + "/"} {
		for session, want := range map[string]int{"": 401, sessionCookie + "=bob-1": 403} {
			if res := w.get(under(wsA)+path, "Cookie", session); res.StatusCode != want {
				t.Errorf("%s by %q: %d, want %d", path, session, res.StatusCode, want)
			}
		}
	}
}

// Open connections of visitors end with the share: by itself, also while the database does not
// respond, when it is ended, and when the visitor's session ends.
func TestSharedConnectionsEnd(t *testing.T) {
	t.Parallel()
	h, a := newSharingWorld(t, workspace.VisiblePublic)
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}); err == nil {
			_, _, _ = c.Read(context.Background())
		}
	}))
	t.Cleanup(echo.CloseClientConnections)
	a.port = echo.Listener.Addr().(*net.TCPAddr).Port
	address := h.proxy.layout.URL(a.host())
	open := func(header ...string) *websocket.Conn {
		all := http.Header{"Origin": {address}}
		set(all, header...)
		c, _, err := websocket.Dial(t.Context(), address, &websocket.DialOptions{HTTPClient: h.client, HTTPHeader: all})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.CloseNow() })
		return c
	}
	ends := func(what string, c *websocket.Conn) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, _, err := c.Read(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("%s: the connection stays open: %v", what, err)
		}
	}
	bobs := []string{"Cookie", hostCookie + "=bob-1" + at(a.host())}
	h.share(a.port, workspace.VisiblePublic, time.Hour)
	anyone, user, owner := open(), open(bobs...), open("Cookie", hostCookie+"=ann-1"+at(a.host()))
	h.share(a.port, workspace.VisiblePublic, time.Second)
	ends("the share expires", anyone)
	ends("the share expires", user)

	h.share(a.port, workspace.VisiblePublic, time.Hour)
	anyone, user = open(), open(bobs...)
	h.share(a.port, workspace.VisibleUsers, 0)
	ends("the share becomes narrower", anyone)
	h.sessions.end("bob-1")
	ends("the session ends", user)
	user = open("Cookie", hostCookie+"=bob-2"+at(a.host()))
	h.share(a.port, workspace.VisibleOwner, 0)
	ends("the share is ended", user)
	harness.Eventually(t, "the owner's connection alone is open", func() bool { return h.proxy.OpenConnections() == 1 })
	owner.CloseNow()
	harness.Eventually(t, "nothing is open", func() bool { return h.proxy.OpenConnections() == 0 })

	h.share(a.port, workspace.VisiblePublic, time.Hour)
	anyone = open()
	asked, answer := make(chan struct{}, 100), make(chan struct{})
	h.store.mu.Lock()
	h.store.read = func() { asked <- struct{}{}; <-answer }
	h.store.mu.Unlock()
	t.Cleanup(func() { close(answer) })
	h.proxy.Invalidate(wsA)
	<-asked
	h.proxy.open.closeWhere(wsA, func(c *connection) bool {
		c.until.Store(stamp(time.Now()))
		return false
	})
	ends("the share expires without the database", anyone)
}

// Visitors without a session are limited by address and port.
func TestPublicPortLimits(t *testing.T) {
	t.Parallel()
	h, a := newSharingWorld(t, workspace.VisiblePublic, func(c *Config) {
		c.Settings.Ports.PublicRequests, c.Settings.Ports.PublicRate = 2, 1
	})
	h.share(a.port, workspace.VisiblePublic, time.Hour)
	address := h.proxy.layout.URL(a.host())
	status := map[int]int{}
	for n := 0; n < 1000 && status[429] == 0; n++ {
		status[h.send("GET", address+"/").StatusCode]++
	}
	if status[200] == 0 || status[429] == 0 {
		t.Errorf("%v", status)
	}
	// A user with a session is not counted with them.
	if res := h.send("GET", address+"/", "Cookie", hostCookie+"=bob-1"+at(a.host())); res.StatusCode != http.StatusOK {
		t.Errorf("a user: %d", res.StatusCode)
	}
	harness.Eventually(t, "the requests have ended", func() bool {
		h.proxy.guests.mu.Lock()
		defer h.proxy.guests.mu.Unlock()
		return len(h.proxy.guests.open) == 0
	})
	v := visit{target: target{id: wsA, host: a.host()}, payer: "address 192.0.2.1"}
	for n := range 2*perPort + 1 {
		if _, err := h.proxy.guests.enter(v); (err == nil) != (n < 2*perPort) {
			t.Errorf("request %d: %v", n, err)
		}
	}
}

// What outlives its handler, as a WebSocket may, counts against its port until it ends.
func TestPublicPortCountsUntilTheEnd(t *testing.T) {
	t.Parallel()
	h, a := newSharingWorld(t, workspace.VisiblePublic, func(c *Config) { c.Settings.Ports.PublicRequests = 1 })
	h.share(a.port, workspace.VisiblePublic, time.Hour)
	of, err := h.proxy.routes.get(t.Context(), wsA, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	begin := func(n int) (*connection, int) {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", h.proxy.layout.URL(a.host())+"/", nil)
		v := visit{target: target{id: wsA, host: a.host()}, payer: "address 192.0.2." + strconv.Itoa(n)}
		c, _ := h.proxy.begin(w, r, v, of.upstream, func() {})
		return c, w.Code
	}
	var all []*connection
	for n := range perPort {
		c, status := begin(n)
		if c == nil {
			t.Fatalf("connection %d: %d", n, status)
		}
		all = append(all, c)
	}
	if c, status := begin(perPort); c != nil || status != http.StatusTooManyRequests {
		t.Errorf("beyond the limit: %v %d", c, status)
	}
	for _, c := range all {
		h.proxy.open.remove(c)
	}
	c, status := begin(perPort)
	if c == nil {
		t.Fatalf("after the others ended: %d", status)
	}
	h.proxy.open.remove(c)
	if left := len(h.proxy.guests.open); left != 0 {
		t.Errorf("%d ports are counted", left)
	}
}

// Strangers cannot use up the rate of a port that is not public.
func TestPrivatePortHasNoRate(t *testing.T) {
	t.Parallel()
	h, a := newSharingWorld(t, workspace.VisiblePublic, func(c *Config) { c.Settings.Ports.PublicRate = 1 })
	unauthenticated := workspace.Errorf(workspace.CodeUnauthenticated, "Log in first.")
	ask := func(n int) (bool, error) {
		r := httptest.NewRequest("GET", h.proxy.layout.URL(a.host())+"/", nil)
		r.RemoteAddr = "192.0.2." + strconv.Itoa(n) + ":1"
		return h.proxy.admitAnyone(r, &visit{target: target{id: wsA, host: a.host()}}, unauthenticated)
	}
	for n := range 3 * perPort * burst {
		if public, err := ask(n); public || err != error(unauthenticated) {
			t.Fatalf("request %d: %v %v", n, public, err)
		}
	}
	h.share(a.port, workspace.VisiblePublic, time.Hour)
	if public, err := ask(200); !public || err != nil {
		t.Errorf("once it is public: %v %v", public, err)
	}
}

func TestAddressKey(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"192.0.2.7:1": "address 192.0.2.7", "[2001:db8::1:2]:3": "address 2001:db8::/64", "[::ffff:192.0.2.7]:1": "address 192.0.2.7", "[fe80::1%eth0]:1": "address fe80::/64", "@": "address @",
	} {
		if got := addressKey(&http.Request{RemoteAddr: from}); got != want {
			t.Errorf("%s: %q, want %q", from, got, want)
		}
	}
}
