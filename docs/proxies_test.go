package docs_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"codehub/internal/gateway/front"
	"codehub/internal/gateway/origin"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/web/proxy"
	"codehub/internal/workspace"
)

const (
	mainHost      = "code.example.com"
	workspaceHost = "0b54a3a6-0d3f-4d5e-9f3c-1d9c9a3b7f10.ws.example.com"
)

// site is a reverse proxy with codehub's listener behind it.
type site struct {
	t           *testing.T
	dir         string
	http, https string // addresses of the proxy
	backend     string // address of the listener
	roots       *x509.CertPool
}

// newSite starts a listener with codehub's settings behind a proxy that is not started
// yet. With tcp it expects PROXY protocol and serves https itself.
func newSite(t *testing.T, tcp bool) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), roots: x509.NewCertPool()}
	for _, address := range []*string{&s.http, &s.https} {
		var err error
		if *address, err = proc.FreeAddress(); err != nil {
			t.Fatal(err)
		}
	}
	cert, key := filepath.Join(s.dir, "tls.crt"), filepath.Join(s.dir, "tls.key")
	s.certificate(cert, key)
	settings := front.Settings{TrustedProxies: "127.0.0.1", MinVersion: "1.2", ReloadInterval: time.Hour}
	if tcp {
		settings.ProxyProtocol, settings.Cert, settings.Key = true, cert, key
	}
	if err := settings.Resolve(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.backend = l.Addr().String()
	f, err := front.Open(front.Config{Settings: settings, Names: []string{mainHost, "*.ws.example.com"}, Log: slog.New(slog.DiscardHandler)}, l)
	if err != nil {
		t.Fatal(err)
	}
	layout, err := origin.Parse(&url.URL{Scheme: "https", Host: mainHost}, "https://*.ws.example.com")
	if err != nil {
		t.Fatal(err)
	}
	own := func(host string) bool { return layout.Route(host).Kind != origin.Unknown }
	srv := &http.Server{Handler: settings.Proxies.Handler(own, behind(layout, settings.Proxies)), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(f.Listener) })
	t.Cleanup(func() {
		srv.Close()
		wg.Wait()
	})
	return s
}

// behind stands for codehub: the hosts are told apart by its proxy, everything else is this test's.
func behind(layout origin.Layout, proxies front.Proxies) http.Handler {
	main := http.NewServeMux()
	main.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, metrics) })
	main.HandleFunc("/", page)
	rest := proxy.New(proxy.Config{Layout: layout, Store: oneWorkspace{}, Trusted: proxies.Contain, Log: slog.New(slog.DiscardHandler)}).Wrap(main)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case layout.Route(r.Host).Kind == origin.Workspace, r.Host == mainHost && r.URL.Path != "/metrics" && r.URL.Path != askPath: // a mux would clean the path
			page(w, r)
		default:
			rest.ServeHTTP(w, r)
		}
	})
}

// oneWorkspace is a store with the workspace of workspaceHost.
type oneWorkspace struct{ proxy.Store }

func (oneWorkspace) EnterableWorkspace(_ context.Context, _ workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	if !strings.HasPrefix(workspaceHost, string(id)) {
		return workspace.Workspace{}, workspace.Errorf(workspace.CodeNotFound, "There is no such workspace.")
	}
	return workspace.Workspace{ID: id}, nil
}

func (oneWorkspace) Guests(context.Context, workspace.ID) (workspace.Guests, error) {
	return workspace.Guests{}, nil
}

// askPath is where Caddy asks which hosts exist.
const askPath = "/_codehub/tls-ask"

// metrics is the body of codehub's /metrics.
const metrics = "codehub_http_requests_open 1\n"

func page(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/websocket":
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(-1)
		for {
			kind, message, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, message) != nil {
				return
			}
		}
	case "/stream":
		_, _ = io.WriteString(w, "first\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case "/upload":
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	default:
		fmt.Fprint(w, front.Address(r), " ", front.Scheme(r), " ", r.Host, " ", r.URL.RequestURI())
	}
}

// certificate writes a self-signed certificate of both names and its key.
func (s *site) certificate(cert, key string) {
	s.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{mainHost, "*.ws.example.com"}, NotAfter: time.Now().Add(time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		s.t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		s.t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})
	s.roots.AppendCertsFromPEM(certPEM)
	s.write(cert, certPEM)
	s.write(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}))
}

func (s *site) write(path string, content []byte) {
	s.t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// start runs a proxy in the foreground until the end of the test.
func (s *site) start(args ...string) {
	s.t.Helper()
	program, err := exec.LookPath(args[0])
	if err != nil {
		s.t.Fatalf("scripts/setup.sh check installs it: %v", err)
	}
	log, err := os.Create(filepath.Join(s.dir, "proxy.log"))
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(program, args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.Env = append(os.Environ(), "HOME="+s.dir, "XDG_DATA_HOME="+s.dir, "XDG_CONFIG_HOME="+s.dir)
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	var ended sync.WaitGroup
	ended.Go(func() { _ = cmd.Wait() })
	s.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		stop := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		ended.Wait()
		stop.Stop()
		log.Close()
		if text, err := os.ReadFile(log.Name()); s.t.Failed() && err == nil {
			s.t.Logf("%v:\n%s", args, text)
		}
	})
	harness.Eventually(s.t, args[0]+" accepts connections", func() bool {
		c, err := net.Dial("tcp", s.https)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// client speaks HTTP/2 where the proxy does, and comes from 127.0.0.3. Every name leads
// to the proxy.
func (s *site) client(http2 bool) *http.Client {
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: s.roots}, ForceAttemptHTTP2: http2,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			to := s.https
			if strings.HasSuffix(address, ":80") {
				to = s.http
			}
			return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}}).DialContext(ctx, network, to)
		},
	}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// works tries all that codehub needs of a proxy.
func (s *site) works(tcp bool) {
	t := s.t
	t.Helper()
	fetch := func(http2 bool, request *http.Request) (*http.Response, string) {
		t.Helper()
		res, err := s.client(http2).Do(request.WithContext(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(body)
	}
	request := func(method, url string, body io.Reader, headers ...string) *http.Request {
		t.Helper()
		r, err := http.NewRequest(method, url, body)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Add(headers[i], headers[i+1])
		}
		return r
	}
	for _, host := range []string{mainHost, workspaceHost} {
		for _, http2 := range []bool{true, false} {
			// The client's own words about itself do not count.
			res, body := fetch(http2, request("GET", "https://"+host+"/a%2Fb//c?d", nil,
				"X-Forwarded-For", "203.0.113.9", "X-Forwarded-For", "127.0.0.1", "X-Forwarded-Host", "evil.example", "Forwarded", "for=203.0.113.9"))
			if want := "127.0.0.3 https " + host + " /a%2Fb//c?d"; body != want || res.ProtoMajor != map[bool]int{true: 2, false: 1}[http2] {
				t.Errorf("%s: %s, %q, want %q", host, res.Proto, body, want)
			}
		}
		s.upgrades(host)
		s.streams(host)
	}
	large := 20 << 20
	if _, body := fetch(true, request("POST", "https://"+workspaceHost+"/upload", bytes.NewReader(make([]byte, large)))); body != fmt.Sprint(large, nil) {
		t.Errorf("upload: %q", body)
	}
	if tcp {
		return
	}
	if res, _ := fetch(true, request("GET", "https://"+mainHost+"/metrics", nil)); res.StatusCode != http.StatusNotFound {
		t.Errorf("metrics of codehub: %s", res.Status)
	}
	if res, _ := fetch(true, request("GET", "https://"+workspaceHost+"/metrics", nil)); res.StatusCode != http.StatusOK {
		t.Errorf("a workspace's page called metrics: %s", res.Status)
	}
	s.hidesMetrics()
	for _, host := range []string{mainHost, workspaceHost} {
		res, _ := fetch(false, request("GET", "http://"+host+"/x?y", nil))
		location := regexp.MustCompile(`:\d+/`).ReplaceAllString(res.Header.Get("Location"), "/") // the test's own port
		if res.StatusCode/100 != 3 || location != "https://"+host+"/x?y" {
			t.Errorf("plain http: %s to %q", res.Status, location)
		}
	}
}

// hidesMetrics asks for codehub's metrics through the proxy, by every name and spelling that
// could lead there, and on codehub's own address, where they are.
func (s *site) hidesMetrics() {
	t := s.t
	t.Helper()
	if res, err := http.Get("http://" + s.backend + "/metrics"); err != nil {
		t.Fatal(err)
	} else if body, err := io.ReadAll(res.Body); err != nil || res.Body.Close() != nil || string(body) != metrics {
		t.Errorf("codehub's own address: %s %q, %v", res.Status, body, err)
	}
	ask := func(target, host string) {
		t.Helper()
		conn, err := tls.Dial("tcp", s.https, &tls.Config{RootCAs: s.roots, ServerName: mainHost})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(harness.Patience))
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", target, host); err != nil {
			t.Fatal(err)
		}
		if answer, err := io.ReadAll(conn); err != nil && len(answer) == 0 || bytes.Contains(answer, []byte(metrics)) {
			t.Errorf("%s of %s: %s, %v", target, host, answer, err)
		}
	}
	for _, host := range []string{
		mainHost, "CODE.example.com", mainHost + ":443", mainHost + ".", // the same
		"x.ws.example.com", "metrics.ws.example.com", workspaceHost + ".ws.example.com", "ws.example.com", // no workspace's
		"other.example", "localhost", "localhost:8080", "127.0.0.1", "127.0.0.1:8080", "[::1]:8080", s.backend,
	} {
		for _, target := range []string{"/metrics", "/metrics?x", "/%6detrics", "/./metrics", "//metrics"} {
			ask(target, host)
		}
		ask("https://"+host+"/metrics", host)
		ask("https://"+workspaceHost+"/metrics", host)
		ask("https://"+host+"/metrics", workspaceHost)
		r, err := http.NewRequest("GET", "https://"+mainHost+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		res, err := s.client(true).Do(r)
		if err != nil {
			continue // the proxy refuses the name
		}
		if body, _ := io.ReadAll(res.Body); bytes.Contains(body, []byte(metrics)) {
			t.Errorf("/metrics of %s over %s: %s", host, res.Proto, res.Status)
		}
		res.Body.Close()
	}
}

// upgrades opens a WebSocket with compression.
func (s *site) upgrades(host string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), harness.Patience)
	defer cancel()
	c, res, err := websocket.Dial(ctx, "wss://"+host+"/websocket", &websocket.DialOptions{
		HTTPClient: s.client(false), HTTPHeader: http.Header{"Origin": {"https://" + host}}, CompressionMode: websocket.CompressionContextTakeover,
	})
	if err != nil {
		s.t.Errorf("%s: WebSocket: %v", host, err)
		return
	}
	defer c.CloseNow()
	if got := res.Header.Get("Sec-Websocket-Extensions"); !strings.Contains(got, "permessage-deflate") {
		s.t.Errorf("%s: WebSocket without compression: %q", host, got)
	}
	c.SetReadLimit(-1)
	message := bytes.Repeat([]byte("codehub "), 1<<17)
	for range 2 {
		if err := c.Write(ctx, websocket.MessageBinary, message); err != nil {
			s.t.Errorf("%s: WebSocket: %v", host, err)
			return
		}
		if _, got, err := c.Read(ctx); err != nil || !bytes.Equal(got, message) {
			s.t.Errorf("%s: WebSocket: %d bytes, %v", host, len(got), err)
			return
		}
	}
}

// streams reads the beginning of a response that does not end.
func (s *site) streams(host string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), harness.Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", "https://"+host+"/stream", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := s.client(true).Do(r)
	if err != nil {
		s.t.Errorf("%s: stream: %v", host, err)
		return
	}
	defer res.Body.Close()
	first := make([]byte, 6)
	if _, err := io.ReadFull(res.Body, first); err != nil {
		s.t.Errorf("%s: stream: %q, %v", host, first, err)
	}
}

// replaced returns an example of https.md with the addresses and files of the
// test.
func (s *site) replaced(text string, pairs ...string) string {
	s.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			s.t.Fatalf("the example has no %q", pairs[i])
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

func TestBehindNginx(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	text := regexp.MustCompile(`(?m)^ *listen \[::\].*\n`).ReplaceAllString(example(t, "https.md", "nginx"), "")
	text = s.replaced(text, "listen 80;", "listen "+s.http+";", "listen 443 ", "listen "+s.https+" ", "127.0.0.1:8080", s.backend,
		"/etc/letsencrypt/live/code.example.com/fullchain.pem", filepath.Join(s.dir, "tls.crt"),
		"/etc/letsencrypt/live/code.example.com/privkey.pem", filepath.Join(s.dir, "tls.key"))
	conf := "daemon off; pid " + s.dir + "/pid; error_log stderr; events {}\nhttp {\naccess_log off;\n"
	if os.Geteuid() == 0 {
		conf = "user root;\n" + conf // the folder of the test is root's
	}
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		conf += kind + "_temp_path " + s.dir + "/" + kind + ";\n"
	}
	file := filepath.Join(s.dir, "nginx.conf")
	s.write(file, []byte(conf+text+"}\n"))
	s.start("nginx", "-e", "stderr", "-c", file)
	s.works(false)
}

// nginx accepts the example with the lines for IPv6, where the machine has it.
func TestNginxConfigurationIsValid(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	text := s.replaced(example(t, "https.md", "nginx"),
		"/etc/letsencrypt/live/code.example.com/fullchain.pem", filepath.Join(s.dir, "tls.crt"),
		"/etc/letsencrypt/live/code.example.com/privkey.pem", filepath.Join(s.dir, "tls.key"))
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil { // the page says to remove these lines on a machine without IPv6
		text = regexp.MustCompile(`(?m)^ *listen \[::\].*\n`).ReplaceAllString(text, "")
	}
	conf := "pid " + s.dir + "/pid; error_log stderr; events {}\nhttp {\naccess_log off;\n"
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		conf += kind + "_temp_path " + s.dir + "/" + kind + ";\n"
	}
	file := filepath.Join(s.dir, "nginx.conf")
	s.write(file, []byte(conf+text+"}\n"))
	if out, err := exec.Command("nginx", "-t", "-e", filepath.Join(s.dir, "log"), "-c", file).CombinedOutput(); err != nil {
		t.Errorf("nginx -t: %v\n%s", err, out)
	}
}

func TestBehindCaddy(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	_, httpPort, _ := net.SplitHostPort(s.http)
	_, httpsPort, _ := net.SplitHostPort(s.https)
	text := s.replaced(example(t, "https.md", "caddyfile"), "127.0.0.1:8080", s.backend,
		"/etc/caddy/tls.crt", filepath.Join(s.dir, "tls.crt"), "/etc/caddy/tls.key", filepath.Join(s.dir, "tls.key"))
	file := filepath.Join(s.dir, "Caddyfile")
	s.write(file, []byte("{\n\tadmin off\n\tdefault_bind 127.0.0.1\n\thttp_port "+httpPort+"\n\thttps_port "+httpsPort+"\n}\n"+text))
	s.start("caddy", "run", "--adapter", "caddyfile", "--config", file)
	s.works(false)
}

// Caddy of deploy/compose obtains certificates of hosts that exist, here from its own authority.
func TestBehindCaddyOfCompose(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	_, httpPort, _ := net.SplitHostPort(s.http)
	_, httpsPort, _ := net.SplitHostPort(s.https)
	text, err := os.ReadFile("../deploy/compose/Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.dir, "Caddyfile")
	s.write(file, []byte(s.replaced(string(text), "{$DOMAIN}", mainHost, "{$WORKSPACE_DOMAIN}", "ws.example.com", "{$CODEHUB_LISTEN}", s.backend,
		"{$CADDY_OPTIONS}", "local_certs\n\tskip_install_trust\n\tdefault_bind 127.0.0.1\n\thttp_port "+httpPort+"\n\thttps_port "+httpsPort)))
	s.start("caddy", "run", "--adapter", "caddyfile", "--config", file)
	root, err := os.ReadFile(filepath.Join(s.dir, "caddy/pki/authorities/local/root.crt"))
	if err != nil {
		t.Fatal(err)
	}
	s.roots.AppendCertsFromPEM(root)
	harness.Eventually(t, "Caddy has the certificate of codehub itself", func() bool {
		conn, err := tls.Dial("tcp", s.https, &tls.Config{RootCAs: s.roots, ServerName: mainHost})
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	s.works(false)
	for _, host := range []string{"1b54a3a6-0d3f-4d5e-9f3c-1d9c9a3b7f10.ws.example.com", "3000--" + workspaceHost, "x.ws.example.com", "ws.example.com", "other.example"} {
		conn, err := tls.Dial("tcp", s.https, &tls.Config{RootCAs: s.roots, ServerName: host})
		if err == nil {
			conn.Close()
			t.Errorf("%s has a certificate", host)
		}
	}
	// A visitor learns nothing there about hosts.
	res, err := s.client(true).Get("https://" + mainHost + askPath + "?domain=" + workspaceHost)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(body), askPath) {
		t.Errorf("a visitor asks: %s %q, %v", res.Status, body, err)
	}
}

func TestBehindHAProxy(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	cert, err := os.ReadFile(filepath.Join(s.dir, "tls.crt"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(s.dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	s.write(filepath.Join(s.dir, "codehub.pem"), append(cert, key...))
	text := s.replaced(example(t, "https.md", "haproxy"), "bind :80\n", "bind "+s.http+"\n", "bind :443 ", "bind "+s.https+" ",
		"127.0.0.1:8080", s.backend, "/etc/haproxy/codehub.pem", filepath.Join(s.dir, "codehub.pem"))
	file := filepath.Join(s.dir, "haproxy.cfg")
	s.write(file, []byte(text))
	s.start("haproxy", "-db", "-f", file)
	s.works(false)
}

func TestBehindHAProxyWithProxyProtocol(t *testing.T) {
	t.Parallel()
	s := newSite(t, true)
	page, err := os.ReadFile("https.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "```haproxy\ndefaults\n    mode tcp\n")
	text, _, closed := strings.Cut(text, "```")
	if !found || !closed {
		t.Fatal("https.md has no example of PROXY protocol")
	}
	text = s.replaced("defaults\n    mode tcp\n"+text, "bind :443\n", "bind "+s.https+"\n", "127.0.0.1:8443", s.backend)
	file := filepath.Join(s.dir, "haproxy.cfg")
	s.write(file, []byte(text))
	s.start("haproxy", "-db", "-f", file)
	s.works(true)
}
