package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"codehub/internal/gateway/origin"
	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// app is an application on a port of a workspace. It accepts requests without a secret.
type app struct {
	port   int
	bytes  atomic.Int64 // received, on all connections
	mu     sync.Mutex
	header http.Header
}

// countedListener counts the bytes of all its connections.
type countedListener struct {
	net.Listener
	app *app
}

type countedConn struct {
	net.Conn
	app *app
}

func (l countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countedConn{c, l.app}, err
}

func (c countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.app.bytes.Add(int64(n))
	return n, err
}

func newApp(t *testing.T) *app {
	t.Helper()
	a := &app{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.header = r.Header.Clone()
		a.mu.Unlock()
		if isWebSocket(r.Header) {
			if c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}); err == nil {
				c.CloseNow()
			}
			return
		}
		if r.URL.Path == "/absolute" {
			w.Header().Set("Location", "http://"+r.Host+"/x")
			w.Header().Set("Set-Cookie", "own=1; Path=/")
			w.WriteHeader(http.StatusFound)
			return
		}
		fmt.Fprintf(w, "app %s %s", r.Host, r.RequestURI)
	}))
	a.port = server.Listener.Addr().(*net.TCPAddr).Port
	server.Listener = countedListener{server.Listener, a}
	server.Start()
	t.Cleanup(server.Close)
	return a
}

func (a *app) host() workspace.Host { return workspace.Host{ID: wsA, Port: a.port} }

func newPortWorld(t *testing.T) (*hostWorld, *app) {
	t.Helper()
	h := newHostWorld(t)
	h.proxy.routes.loopbackPorts = true
	return h, newApp(t)
}

func TestPorts(t *testing.T) {
	t.Parallel()
	h, a := newPortWorld(t)
	i := h.serve(wsA)
	url := h.proxy.layout.URL(a.host())
	b := h.tab("ann-1")
	if res := b.visit(url + "/page?x=1"); res.StatusCode != http.StatusOK || b.last() != url+"/page?x=1" {
		t.Fatalf("%d after\n%s", res.StatusCode, strings.Join(b.trail, "\n"))
	}
	a.mu.Lock()
	cookies := a.header.Get("Cookie")
	a.mu.Unlock()
	if strings.Contains(cookies, i.secret) || strings.Contains(cookies, "codehub_") {
		t.Errorf("the application received the cookies %q", cookies)
	}
	if got := i.received().URI; got != verifyPath {
		t.Errorf("the IDE was asked for %q, want %q", got, verifyPath)
	}
	session := hostCookie + "=ann-1" + at(a.host())
	if res := h.send("GET", url+"/absolute", "Cookie", session); res.Header.Get("Location") != "/x" && res.Header.Get("Location") != url+"/x" {
		t.Errorf("a redirect leads to %q", res.Header.Get("Location"))
	}
	// Each port is an origin with a session of its own.
	for name, cookie := range map[string]string{
		"the workspace's session": hostCookie + "=ann-1" + at(workspace.Host{ID: wsA}),
		"another port's session":  hostCookie + "=ann-1" + at(workspace.Host{ID: wsA, Port: a.port - 1}),
		"the main session":        sessionCookie + "=ann-1",
	} {
		if res := h.send("GET", url+"/", "Cookie", cookie); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, res.StatusCode)
		}
	}
	if res := h.send("POST", url+"/", "Cookie", session, "Origin", h.at(wsA)); res.StatusCode != http.StatusForbidden {
		t.Errorf("a request of the IDE's origin: %d", res.StatusCode)
	}
	if res := h.tab("bob-1").visit(url + "/"); res.StatusCode != http.StatusForbidden {
		t.Errorf("another user: %d", res.StatusCode)
	}
}

func TestPortWithoutListener(t *testing.T) {
	t.Parallel()
	h, _ := newPortWorld(t)
	h.serve(wsA)
	port, _ := harness.ReservePort(t)
	free := workspace.Host{ID: wsA, Port: port}
	if res := h.tab("ann-1").visit(h.proxy.layout.URL(free) + "/"); res.StatusCode != 502 || res.Header.Get("X-Page") != "notice port" {
		t.Errorf("%d %s", res.StatusCode, res.Header.Get("X-Page"))
	}
	res := h.send("GET", h.proxy.layout.URL(free)+"/", "Cookie", hostCookie+"=ann-1"+at(free))
	if res.StatusCode != 502 || res.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %s", res.StatusCode, res.Header.Get("Content-Type"))
	}
}

// The ports of the host are not those of a workspace whose IDE is published there. It has its
// ports through its agent.
func TestPublishedContainer(t *testing.T) {
	t.Parallel()
	h, a := newPortWorld(t)
	h.proxy.routes.loopbackPorts = false
	i := h.serve(wsA)
	if res := h.tab("ann-1").visit(h.proxy.layout.URL(a.host()) + "/"); res.StatusCode != 502 || res.Header.Get("X-Page") != "notice port" {
		t.Errorf("%d %s", res.StatusCode, res.Header.Get("X-Page"))
	}
	if n := a.bytes.Load(); n != 0 {
		t.Errorf("%d bytes reached a port of the host", n)
	}
	up := i.upstream("c-a")
	up.Agent, _ = newAgent(t, i.secret)
	h.runtime.put(wsA, up)
	h.proxy.Invalidate(wsA)
	if res := h.tab("ann-1").visit(h.proxy.layout.URL(a.host()) + "/"); res.StatusCode != http.StatusOK {
		t.Errorf("through the agent: %d", res.StatusCode)
	}
}

// A stale route leads to the address of another workspace's container: its application
// receives no byte.
func TestPortOfForeignContainer(t *testing.T) {
	t.Parallel()
	h, a := newPortWorld(t)
	other := newIDE(t, "secret-of-another", "127.0.0.1:0")
	h.runtime.put(wsA, runtime.Upstream{ContainerID: "stale", Addr: other.addr(), Secret: "secret-of-a"})
	url := h.proxy.layout.URL(a.host())
	session := hostCookie + "=ann-1" + at(a.host())
	if res := h.send("POST", url+"/login?password=x", "Cookie", session+"; own=secret"); res.StatusCode != http.StatusBadGateway {
		t.Errorf("%d", res.StatusCode)
	}
	if res := h.tab("ann-1").visit(url + "/"); res.StatusCode != http.StatusBadGateway || res.Header.Get("X-Page") != "notice unavailable" {
		t.Errorf("a page: %d %s", res.StatusCode, res.Header.Get("X-Page"))
	}
	if n := a.bytes.Load(); n != 0 {
		t.Errorf("%d bytes reached another workspace's application", n)
	}
	if other.served.Load() != 0 || other.refused.Load() == 0 {
		t.Errorf("the other IDE served %d requests and refused %d", other.served.Load(), other.refused.Load())
	}
}

// In path mode the path of a port leads to the container's own address without the
// prefix, after the IDE there has accepted the secret.
func TestPortByPath(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), newApp(t)
	w.proxy.routes.loopbackPorts = true
	i := w.serve(wsA)
	prefix := under(wsA) + "/proxy/" + strconv.Itoa(a.port)
	if res := w.open(prefix + "/a%2fb?x=1"); res.StatusCode != 200 || res.body != "app "+origin.Host(w.server.URL)+" /a%2fb?x=1" {
		t.Fatalf("%d %s", res.StatusCode, res.body)
	}
	a.mu.Lock()
	cookies := a.header.Get("Cookie")
	a.mu.Unlock()
	if strings.Contains(cookies, i.secret) || strings.Contains(cookies, "codehub_") {
		t.Errorf("the application received the cookies %q", cookies)
	}
	if got := i.received().URI; got != verifyPath {
		t.Errorf("the IDE was asked for %q, want %q", got, verifyPath)
	}
	if res := w.get(prefix + "?y=1"); res.StatusCode != http.StatusPermanentRedirect || res.Header.Get("Location") != prefix+"/?y=1" {
		t.Errorf("without the slash: %d %s", res.StatusCode, res.Header.Get("Location"))
	}
	res := w.get(prefix + "/absolute")
	if res.Header.Get("Location") != prefix+"/x" {
		t.Errorf("a redirect leads to %q", res.Header.Get("Location"))
	}
	if got := res.Header.Values("Set-Cookie"); len(got) != 1 || got[0] != "own=1; Path="+prefix+"/" {
		t.Errorf("cookies %q", got)
	}
	socket := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}
	for from, want := range map[string]int{w.server.URL: 101, "http://other.example": 403, "": 403} {
		if res := w.get(prefix+"/socket", append(socket, "Origin", from)...); res.StatusCode != want {
			t.Errorf("a WebSocket of %q: %d, want %d", from, res.StatusCode, want)
		}
	}
	// A port that is not in its only form is the IDE's.
	for _, port := range []string{"0" + strconv.Itoa(a.port), "65536", "0", "%33000", "3000x"} {
		if res := w.get(under(wsA) + "/proxy/" + port + "/x"); res.StatusCode != 200 || i.received().URI != "/proxy/"+port+"/x" {
			t.Errorf("port %s: %d, the IDE received %q", port, res.StatusCode, i.received().URI)
		}
	}
	bytes := a.bytes.Load()
	for name, want := range map[string]int{"bob-1": 403, "none": 401} {
		if res := w.get(prefix+"/", "Cookie", sessionCookie+"="+name); res.StatusCode != want {
			t.Errorf("%s: %d, want %d", name, res.StatusCode, want)
		}
	}
	if res := w.get(prefix+"/", "Sec-Fetch-Site", "cross-site"); res.StatusCode != 403 {
		t.Errorf("another site: %d", res.StatusCode)
	}
	if a.bytes.Load() != bytes {
		t.Error("a refused request reached the application")
	}
}

// A port on which nothing listens at the container's own address is that of 127.0.0.1,
// which code-server forwards to, with the whole body.
func TestPortByPathIsForwarded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.proxy.routes.loopbackPorts = true
	i := w.serve(wsA)
	port := silentPort(t)
	prefix := under(wsA) + "/proxy/" + port
	i.handle = func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/proxy/" + port + "/none":
			if isWebSocket(r.Header) { // as code-server does, without a header
				c, _, err := http.NewResponseController(rw).Hijack()
				if err == nil {
					_, _ = c.Write([]byte("HTTP/1.1 500 connect ECONNREFUSED 0.0.0.0:" + port + "\r\n\r\n"))
					c.Close()
				}
				return
			}
			rw.Header()["Content-Type"] = nil
			rw.WriteHeader(500)
			fmt.Fprint(rw, "connect ECONNREFUSED 0.0.0.0:"+port)
		case "/proxy/" + port + "/broken":
			rw.Header()["Content-Type"] = nil
			rw.WriteHeader(500)
			fmt.Fprint(rw, strings.Repeat("connect ECONNREFUSED ", 1000))
		default:
			rw.Header().Set("Location", "/proxy/"+port+"/y")
			rw.Header().Set("Set-Cookie", "own=1; Path=/")
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(rw, r.RequestURI, n, err)
		}
	}
	r := w.request(http.MethodPost, prefix+"/x?y=1")
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 1<<20))), 1<<20
	res := w.do(r)
	if res.StatusCode != 200 || res.body != fmt.Sprint("/proxy/"+port+"/x?y=1", 1<<20, nil) {
		t.Fatalf("%d %s", res.StatusCode, res.body)
	}
	if res.Header.Get("Location") != prefix+"/y" || res.Header.Get("Set-Cookie") != "own=1; Path="+under(wsA)+"/" {
		t.Errorf("%v", res.Header)
	}
	if res := w.get(prefix + "/broken"); res.StatusCode != 500 || len(res.body) != 21000 {
		t.Errorf("an application's own error: %d, %d bytes", res.StatusCode, len(res.body))
	}
	if res := w.open(prefix + "/none"); res.StatusCode != 502 || res.Header.Get("X-Page") != "notice app_port" {
		t.Errorf("a page: %d %s", res.StatusCode, res.Header.Get("X-Page"))
	}
	socket := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==", "Origin", w.server.URL}
	for name, header := range map[string][]string{"a request": nil, "a WebSocket": socket} {
		if res := w.get(prefix+"/none", header...); res.StatusCode != 502 || !strings.Contains(res.body, "Nothing listens on port "+port) {
			t.Errorf("%s: %d %s", name, res.StatusCode, res.body)
		}
	}
	// Nothing at all responds: not the page of a port.
	i.stop()
	if res := w.open(prefix + "/none"); res.StatusCode != 502 || res.Header.Get("X-Page") != "unavailable" {
		t.Errorf("without an IDE: %d %s", res.StatusCode, res.Header.Get("X-Page"))
	}
}

// A stale route leads the path of a port to no other workspace.
func TestPortByPathOfForeignContainer(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), newApp(t)
	w.proxy.routes.loopbackPorts = true
	other := newIDE(t, "secret-of-another", "127.0.0.1:0")
	w.runtime.put(wsA, runtime.Upstream{ContainerID: "stale", Addr: other.addr(), Secret: "secret-of-a"})
	for _, port := range []string{strconv.Itoa(a.port), silentPort(t)} {
		res := w.get(under(wsA)+"/proxy/"+port+"/", "Cookie", sessionCookie+"=ann-1; own=secret")
		if res.StatusCode == 200 {
			t.Errorf("port %s: %d", port, res.StatusCode)
		}
	}
	if n := a.bytes.Load(); n != 0 || other.served.Load() != 0 {
		t.Errorf("%d bytes reached another workspace's application, %d requests its IDE", n, other.served.Load())
	}
}

// silentPort returns a port on which nothing listens while the test runs.
func silentPort(t *testing.T) string {
	t.Helper()
	port, _ := harness.ReservePort(t)
	return strconv.Itoa(port)
}

// The agent's port is the server's alone: neither a host nor a path leads to it, however
// the path is written.
func TestAgentPortIsRefused(t *testing.T) {
	t.Parallel()
	h, _ := newPortWorld(t)
	onHost := h.serve(wsA)
	agentHost := workspace.Host{ID: wsA, Port: runtime.AgentPort}
	if res := h.tab("ann-1").visit(h.proxy.layout.URL(agentHost) + "/v1/hello"); res.StatusCode != 404 {
		t.Errorf("on its host: %d %s", res.StatusCode, res.Header.Get("X-Page"))
	}
	w := newWorld(t)
	byPath := w.serve(wsA)
	session := hostCookie + "=ann-1" + at(workspace.Host{ID: wsA})
	for _, path := range []string{
		"/proxy/61080/v1/hello", "/proxy/61080/", "/absproxy/61080/v1/hello", "/Proxy/61080/v1/hello", "/proxy/061080/v1/hello",
		"/proxy/%36%31080/v1/hello", "/%70roxy/61080/v1/hello", "/proxy/%2061080/v1/hello",
		"/proxy/61080x/v1/hello", "/proxy/+61080/v1/hello", "/proxy/-61080/v1/hello", "/proxy/61080.0/v1/hello", "/proxy/%EF%BB%BF61080/", "/proxy/%C2%A0+61080,/",
		"/proxy/00000000000000000061080", "/absproxy/61080%2Fv1/hello", "/proxy/61080e0/",
	} {
		if res := h.send("POST", h.at(wsA)+path, "Cookie", session, "Origin", h.at(wsA)); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s on the workspace's host: %d", path, res.StatusCode)
		}
		if res := w.open(under(wsA) + path); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s below the workspace's path: %d", path, res.StatusCode)
		}
	}
	if n := onHost.served.Load() + byPath.served.Load(); n != 0 {
		t.Errorf("the IDE received %d requests", n)
	}
}

// The IDE forwards requests for these paths to a port.
func TestPortOfPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/proxy/3000/": true, "/proxy/3000": true, "/absproxy/8888/api/kernels": true, "/proxy/": false, "/proxy/x/": false,
		"/proxy": false, "/proxyx/3000/": false, "/a/proxy/3000/": false, "/": false, "": false, "/3000/": false,
		"/Proxy/3000/": true, "/proxy/+3000x/": true, "/proxy/ 3000": true, "/proxy/99999999999999999999/": true, "/proxy/+/": false, "/proxy/+ 3000/": false, "/proxy//3000/": false, "proxy/3000": false,
	} {
		if _, ok := portOf(path); ok != want {
			t.Errorf("%q: %v", path, !want)
		}
	}
}
