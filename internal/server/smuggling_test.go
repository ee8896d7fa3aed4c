package server

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"codehub/internal/gateway/inbound"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
)

// smuggled are requests whose end two programs may see in different places: a few of those of
// TestFraming in package inbound. HOST is replaced.
var smuggled = map[string]string{
	"coding and length":       "POST /healthz HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"length and coding":       "POST /healthz HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
	"folded coding":           "POST /healthz HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
	"bare LF":                 "GET /healthz HTTP/1.1\r\nHost: HOST\nX: a\r\n\r\n",
	"no host":                 "GET /healthz HTTP/1.1\r\n\r\n",
	"chunk with bare LF":      "POST /login HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0\n\r\n",
	"chunk extension with CR": "POST /login HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0;a\rb\r\n\r\n",
}

// after is answered with 200 if the server takes it for a request of its own.
const after = "GET /healthz HTTP/1.1\r\nHost: HOST\r\n\r\n"

func exchange(t *testing.T, c net.Conn, request, host string) string {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	_, err := io.WriteString(c, strings.ReplaceAll(request, "HOST", host))
	try(t, err)
	b, err := io.ReadAll(c)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the connection is still open: %v", err)
	}
	return string(b)
}

// Requests that are framed ambiguously are refused, and the connection is closed.
func smuggledRequestsAreRefused(t *testing.T, s *proc.Server) {
	host := s.URL[len("http://"):]
	open := func() net.Conn {
		c, err := net.Dial("tcp", address(s))
		try(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	if got := exchange(t, open(), after+after, host); strings.Count(got, "HTTP/1.1 200") != 2 {
		t.Fatalf("two requests that are in order: %q", got)
	}
	for name, request := range smuggled {
		got := exchange(t, open(), request+after, host)
		if strings.Contains(got, " 200 ") || strings.Count(got, "HTTP/1.1 ") > 1 || got != "" && !strings.HasPrefix(got, "HTTP/1.1 4") && !strings.HasPrefix(got, "HTTP/1.1 5") {
			t.Errorf("%s: %q", name, got)
		}
		// Also after a request on the same connection.
		got = exchange(t, open(), after+request+after, host)
		if strings.Count(got, "HTTP/1.1 200") > 1 {
			t.Errorf("%s, as the second request: %q", name, got)
		}
	}
	// A request for another protocol that is not switched to ends the connection.
	upgrade := strings.Replace(after, "\r\n\r\n", "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 1)
	if got := exchange(t, open(), upgrade+after, host); strings.Count(got, "HTTP/1.1 ") != 1 {
		t.Errorf("after an upgrade: %q", got)
	}
}

// The same over TLS, where HTTP/2 and r.TLS stay as they are.
func TestSmuggledRequestsOverTLS(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = io.WriteString(w, r.Proto)
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	config := srv.TLS.Clone()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	try(t, err)
	own := inbound.Settings{RequestTimeout: time.Minute, IdleTimeout: time.Second}.Server(srv.Config.Handler)
	go func() { _ = own.Serve(inbound.Strict(tls.NewListener(l, config), nil)) }()
	defer own.Close()
	client := srv.Client()
	for _, protocol := range []string{"HTTP/2.0", "HTTP/1.1"} {
		if protocol == "HTTP/1.1" {
			client.Transport = &http.Transport{TLSClientConfig: client.Transport.(*http.Transport).TLSClientConfig.Clone(), DisableKeepAlives: true}
			client.Transport.(*http.Transport).TLSClientConfig.NextProtos = nil
		}
		res, err := client.Get("https://" + l.Addr().String())
		try(t, err)
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 200 || string(b) != protocol {
			t.Errorf("%s: %d %q %v", protocol, res.StatusCode, b, err)
		}
	}
	secure, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	try(t, err)
	defer secure.Close()
	if got := exchange(t, secure, smuggled["length and coding"]+after, "x"); !strings.HasPrefix(got, "HTTP/1.1 400") || strings.Count(got, "HTTP/1.1 ") != 1 {
		t.Errorf("%q", got)
	}
	plain, err := net.Dial("tcp", l.Addr().String())
	try(t, err)
	defer plain.Close()
	if got := exchange(t, plain, after, "x"); !strings.HasPrefix(got, "HTTP/1.0 400") {
		t.Errorf("plain http: %q", got)
	}
}
