package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"codehub/api"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
)

// secured is a codehub that serves https at code.example.com and *.ws.example.com.
type secured struct {
	*server
	port, redirect string
}

// client comes from an address of this machine; every name leads to the server.
func (s *secured) client(from string, jar http.CookieJar, http2 bool) *http.Client {
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: s.certificate.roots.Clone()}, ForceAttemptHTTP2: http2,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(ctx, network, "127.0.0.1:"+port)
		},
	}
	s.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Jar: jar}
}

func (s *secured) do(c *http.Client, method, url, body string, headers ...string) (*http.Response, string) {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, url, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.Fatal(err)
	}
	return res, string(text)
}

// codehub itself serves https and HTTP/2 for the dashboard and for a workspace, takes
// over a changed certificate, redirects plain http, and knows its clients. It
// takes over 20 s beside other tests, for a server and a workspace.
func TestServesHTTPS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var addresses [2]string
	for i := range addresses {
		var err error
		if addresses[i], err = proc.FreeAddress(); err != nil {
			t.Fatal(err)
		}
	}
	s := &secured{server: &server{test: test{t}, home: filepath.Join(dir, "data"), docker: env.docker, runtime: dockerState{}, certificate: newCertificate(dir)}, redirect: addresses[1]}
	_, s.port, _ = net.SplitHostPort(addresses[0])
	main := "https://code.example.com:" + s.port
	s.subnet = dockertest.NewSubnet(t)
	first := s.certificate.issue(t, "code.example.com", "*.ws.example.com")
	var err error
	s.Server, err = proc.New(proc.Options{Binary: env.binary, DataDir: s.home, Listen: addresses[0], Env: []string{
		"CODEHUB_DEFAULT_IMAGE=" + env.testImage, s.subnet.Setting(), "CODEHUB_DATABASE_URL=" + database(t),
		"CODEHUB_URL=" + main, "CODEHUB_WORKSPACE_URL=https://*.ws.example.com:" + s.port, "CODEHUB_TRUSTED_PROXIES=127.0.0.2",
		"CODEHUB_TLS_CERT=" + s.certificate.cert, "CODEHUB_TLS_KEY=" + s.certificate.key, "CODEHUB_TLS_RELOAD_INTERVAL=100ms", "CODEHUB_REDIRECT_LISTEN=" + s.redirect,
	}})
	if err != nil {
		t.Fatal(err)
	}
	cleanup(t, func() {
		s.logIfFailed("server")
		s.Close()
		s.sweep()
	})
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := s.client("127.0.0.2", jar, true)
	harness.Eventually(t, "ready at https", func() bool {
		res, err := browser.Get(main + "/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK && res.ProtoMajor == 2 && res.TLS.PeerCertificates[0].SerialNumber.Cmp(first) == 0
	})
	if err := s.subnet.UsedBy(s.Installation()); err != nil {
		t.Fatal(err)
	}

	// The client's address, through the trusted proxy and past it.
	const proxied = "203.0.113.9"
	res, body := s.do(browser, "POST", main+"/api/v1/login", `{"username":"admin","password":"`+proc.AdminPassword+`"}`, "Content-Type", "application/json", "X-Forwarded-For", "198.51.100.1, "+proxied)
	if res.StatusCode != http.StatusOK || len(res.Cookies()) != 1 || res.Cookies()[0].Name != "__Host-codehub_session" || !res.Cookies()[0].Secure {
		t.Fatalf("login: %s %s, cookies %v", res.Status, body, res.Cookies())
	}
	var sessions api.SessionList
	if _, body = s.do(browser, "GET", main+"/api/v1/sessions", ""); json.Unmarshal([]byte(body), &sessions) != nil || len(sessions.Sessions) != 1 || sessions.Sessions[0].Address != proxied {
		t.Errorf("sessions: %s", body)
	}
	s.do(s.client("127.0.0.3", nil, true), "GET", main+"/api/v1/session", "", "X-Forwarded-For", proxied, "X-Request-Id", "past-the-proxy")
	harness.Eventually(t, "the request past the proxy is logged with its own address", func() bool {
		for line := range strings.Lines(s.Log()) {
			if strings.Contains(line, "request_id=past-the-proxy") && strings.Contains(line, "remote=127.0.0.3 ") {
				return true
			}
		}
		return false
	})

	// Plain http, and a host that is not codehub's.
	plain := s.client("127.0.0.1", nil, false)
	plain.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	_, redirectPort, _ := net.SplitHostPort(s.redirect)
	if res, _ := s.do(plain, "GET", "http://code.example.com:"+redirectPort+"/login?next=/x", ""); res.StatusCode != http.StatusPermanentRedirect || res.Header.Get("Location") != main+"/login?next=/x" {
		t.Errorf("plain http: %s to %s", res.Status, res.Header.Get("Location"))
	}
	if res, _ := s.do(plain, "GET", "http://evil.example:"+redirectPort+"/", ""); res.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("plain http for another host: %s", res.Status)
	}

	// A workspace, by HTTP/2 and WebSocket.
	var w api.Workspace
	if _, body = s.do(browser, "POST", main+"/api/v1/workspaces", `{"name":"one"}`, "Content-Type", "application/json"); json.Unmarshal([]byte(body), &w) != nil || w.ID == "" {
		t.Fatalf("create: %s", body)
	}
	harness.Eventually(t, "the workspace runs", func() bool {
		_, body = s.do(browser, "GET", main+"/api/v1/workspaces/"+w.ID, "")
		return json.Unmarshal([]byte(body), &w) == nil && w.Phase == "RUNNING" && w.Operation == "NONE"
	})
	host := w.ID + ".ws.example.com:" + s.port
	res, body = s.do(browser, "GET", main+"/w/"+w.ID+"/", "", "Accept", "text/html", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
	if res.Request.URL.Host != host || res.StatusCode != http.StatusOK || res.ProtoMajor != 2 {
		t.Fatalf("entry: %s %s at %s: %.300s", res.Proto, res.Status, res.Request.URL, body)
	}
	var seen struct {
		Host    string      `json:"host"`
		Headers http.Header `json:"headers"`
	}
	_, body = s.do(browser, "GET", "https://"+host+"/x", "", "X-Forwarded-For", proxied)
	if err := json.Unmarshal([]byte(body), &seen); err != nil {
		t.Fatalf("%v: %.300s", err, body)
	}
	if seen.Host != host || seen.Headers.Get("X-Forwarded-Proto") != "https" || seen.Headers.Get("X-Forwarded-For") != proxied {
		t.Errorf("the workspace sees %+v", seen)
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	conn, res, err := websocket.Dial(ctx, "wss://"+host+"/ws", &websocket.DialOptions{
		HTTPClient: s.client("127.0.0.1", jar, false), HTTPHeader: http.Header{"Origin": {"https://" + host}}, CompressionMode: websocket.CompressionContextTakeover,
	})
	if err != nil {
		t.Fatalf("WebSocket: %v", err)
	}
	defer conn.CloseNow()
	if !strings.Contains(res.Header.Get("Sec-Websocket-Extensions"), "permessage-deflate") {
		t.Errorf("WebSocket without compression: %v", res.Header)
	}
	message := bytes.Repeat([]byte("codehub"), 1000)
	if err := conn.Write(ctx, websocket.MessageText, message); err != nil {
		t.Fatal(err)
	}

	// A new certificate; open connections stay.
	second := s.certificate.issue(t, "code.example.com", "*.ws.example.com")
	harness.Eventually(t, "the new certificate is served", func() bool {
		res, err := s.client("127.0.0.1", nil, true).Get(main + "/healthz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.TLS.PeerCertificates[0].SerialNumber.Cmp(second) == 0
	})
	if _, got, err := conn.Read(ctx); err != nil || !bytes.Equal(got, message) {
		t.Errorf("WebSocket: %d bytes, %v", len(got), err)
	}
}
