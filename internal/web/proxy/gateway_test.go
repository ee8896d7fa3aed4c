package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codehub/internal/gateway/inbound"
	"codehub/internal/gateway/shortway"
	"codehub/internal/runtime"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
)

// gateway is a way to the same IDE, on which the cases of conformance_test.go run.
type gateway struct {
	t      testing.TB
	name   string
	base   *url.URL // with the prefix of the workspace
	host   string   // Host of requests
	cookie string   // of a session
	http2  bool
	ide    *ide
	client *http.Client
}

// shortRequests is shorter than what some cases take, which relayed requests may.
const shortRequests = 2 * time.Second

// noShortWay turns the short way off.
func noShortWay(c *Config) { c.Settings.NoShortWay = true }

// gateways returns codehub over HTTP/1.1, with and without the short way, and HTTP/2, and in make verify for comparison nginx
// and no gateway at all. Each is before an IDE of its own.
func gateways(t *testing.T) []*gateway {
	t.Helper()
	settings := inbound.Settings{RequestTimeout: shortRequests, IdleTimeout: time.Minute}
	through := func(name string, i *ide, base, host string, transport *http.Transport) *gateway {
		u, err := url.Parse(base)
		if err != nil {
			t.Fatal(err)
		}
		transport.DisableCompression = true
		transport.ExpectContinueTimeout = patience
		t.Cleanup(transport.CloseIdleConnections)
		return &gateway{name: name, base: u, host: host, cookie: sessionCookie + "=ann-1", ide: i, client: &http.Client{Transport: transport}}
	}
	one, two, off := newWorld(t), newWorld(t), newWorld(t, noShortWay)
	secure := httptest.NewUnstartedServer(nil)
	secure.Config = settings.Server(two.handler())
	secure.EnableHTTP2 = true
	secure.StartTLS()
	t.Cleanup(secure.Close)
	overTLS := &http.Transport{TLSClientConfig: secure.Client().Transport.(*http.Transport).TLSClientConfig.Clone(), ForceAttemptHTTP2: true}
	list := []*gateway{
		through("codehub HTTP/1.1", one.serve(wsA), servePlain(t, settings.Server(one.handler()), false)+under(wsA), one.server.Listener.Addr().String(), &http.Transport{}),
		through("codehub HTTP/2", two.serve(wsA), secure.URL+under(wsA), two.server.Listener.Addr().String(), overTLS),
		through("codehub without the short way", off.serve(wsA), servePlain(t, settings.Server(off.handler()), true)+under(wsA), off.server.Listener.Addr().String(), &http.Transport{}),
	}
	list[1].http2 = true
	if !harness.Verifying() {
		return list
	}
	alone, behind := newIDE(t, "secret", "127.0.0.1:0"), newIDE(t, "secret", "127.0.0.1:0")
	address := nginx(t, behind.addr())
	return append(list,
		through("none", alone, "http://"+alone.addr(), alone.addr(), &http.Transport{}),
		through("nginx", behind, "http://"+address+under(wsA), address, &http.Transport{}))
}

// servePlain serves as codehub does, plain requests without net/http, and returns its address.
func servePlain(t *testing.T, server *http.Server, off bool) string {
	t.Helper()
	short := &shortway.Server{HTTP: server, Serves: func(string, string) bool { return true }, Off: off}
	s := httptest.NewUnstartedServer(nil)
	s.Config = short.HTTP
	s.Listener = short.Listen(s.Listener)
	s.Start()
	t.Cleanup(func() {
		s.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := short.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
	return s.URL
}

// nginx starts nginx before the IDE, with the configuration of docs/https.md#a-reverse-proxy as
// far as it is about relaying, and returns its address.
func nginx(t *testing.T, backend string) string {
	t.Helper()
	binary, err := exec.LookPath("nginx")
	if err != nil {
		t.Fatalf("scripts/setup.sh check installs it: %v", err)
	}
	address, err := proc.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	user := ""
	if os.Geteuid() == 0 {
		user = "user root;"
	}
	text := fmt.Sprintf(`daemon off; master_process off; %s pid %s/pid; error_log %s/error.log; events {}
http {
	access_log off;
	map $http_upgrade $connection_upgrade { default upgrade; '' ''; }
	upstream codehub { server %s; keepalive 64; keepalive_timeout 30s; }
	server {
		listen %s;
		location %s/ {
			proxy_pass http://codehub/;
			proxy_http_version 1.1;
			proxy_set_header Host $http_host;
			proxy_set_header X-Forwarded-For $remote_addr;
			proxy_set_header Upgrade $http_upgrade;
			proxy_set_header Connection $connection_upgrade;
			proxy_buffering off;
			proxy_request_buffering off;
			client_max_body_size 0;
		}
	}
`, user, dir, dir, backend, address, under(wsA))
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		text += kind + "_temp_path " + dir + "/" + kind + ";\n"
	}
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, []byte(text+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "-e", filepath.Join(dir, "error.log"), "-c", conf)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	harness.EventuallyWithin(t, patience, "nginx listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return address
}

// cookies are those of a session for codehub, and the secret for the others.
func (g *gateway) cookies() string {
	return g.cookie + "; " + runtime.SecretCookie + "=" + g.ide.secret
}

func (g *gateway) request(method, path string, body io.Reader, header ...string) *http.Request {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	g.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, g.base.String()+path, body)
	if err != nil {
		g.t.Fatal(err)
	}
	r.Host = g.host
	r.Header.Set("Cookie", g.cookies())
	set(r.Header, header...)
	return r
}

func (g *gateway) do(r *http.Request) *http.Response {
	g.t.Helper()
	res, err := g.client.Transport.RoundTrip(r)
	if err != nil {
		g.t.Fatalf("%s %s: %v", r.Method, r.URL.Path, err)
	}
	g.t.Cleanup(func() { res.Body.Close() })
	if want := map[bool]int{false: 1, true: 2}[g.http2]; res.ProtoMajor != want {
		g.t.Fatalf("the response is %s", res.Proto)
	}
	return res
}

func (g *gateway) get(path string, header ...string) *http.Response {
	g.t.Helper()
	return g.do(g.request(http.MethodGet, path, nil, header...))
}

func (g *gateway) text(res *http.Response) string {
	g.t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		g.t.Fatalf("read: %v", err)
	}
	return string(b)
}

// dial opens a connection over which a test sends HTTP/1.1 itself.
func (g *gateway) dial(head string, header ...string) (*net.TCPConn, *bufio.Reader) {
	g.t.Helper()
	conn, err := net.Dial("tcp", g.base.Host)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	method, path, _ := strings.Cut(head, " ")
	text := fmt.Sprintf("%s %s%s HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\n", method, g.base.Path, path, g.host, g.cookies())
	for i := 0; i < len(header); i += 2 {
		text += header[i] + ": " + header[i+1] + "\r\n"
	}
	if _, err := io.WriteString(conn, text+"\r\n"); err != nil {
		g.t.Fatal(err)
	}
	return conn.(*net.TCPConn), bufio.NewReader(conn)
}
