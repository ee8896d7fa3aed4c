package proxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"codehub/api"
	"codehub/internal/gateway/origin"
	"codehub/internal/runtime"
)

// secretHeaders has every header that must not reach a workspace.
var secretHeaders = http.Header{
	"Cookie": {
		"theme=dark; " + sessionCookie + "=ann-1; " + runtime.SecretCookie + "=made-up;  q=\"a b\"",
		secureCookie + "=other; app=%7B%22x%22%3A1%7D",
	},
	api.TokenHeader:      {"chub_ann"},
	"Authorization":      {"Bearer chub_ann"},
	"Connection":         {"keep-alive, X-Hop, Cookie"},
	"X-Hop":              {"1"},
	"Keep-Alive":         {"timeout=5"},
	"Proxy-Connection":   {"keep-alive"},
	"Forwarded":          {"for=1.2.3.4;host=evil.example"},
	"X-Forwarded-For":    {"1.2.3.4"},
	"X-Forwarded-Host":   {"evil.example"},
	"X-Forwarded-Proto":  {"gopher"},
	"X-App":              {"1", "2"},
	"Accept-Encoding":    {"br"},
	"Accept":             {"text/x"},
	"User-Agent":         {"test"},
	"Sec-Websocket-Tail": {"x"},
}

func TestRequestHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.serve(wsA)
	host := w.server.Listener.Addr().String()

	check := func(t *testing.T, upgrade bool) {
		got := i.received()
		for _, v := range slices.Concat(slices.Collect(func(yield func([]string) bool) {
			for _, v := range got.Header {
				if !yield(v) {
					return
				}
			}
		})...) {
			for _, secret := range []string{"ann-1", "chub_", "made-up", "codehub_session", "evil.example", "1.2.3.4", "gopher"} {
				if strings.Contains(v, secret) {
					t.Errorf("%q arrived: %v", secret, got.Header)
				}
			}
		}
		want := []string{runtime.SecretCookie + "=" + i.secret + "; theme=dark;  q=\"a b\"", "app=%7B%22x%22%3A1%7D"}
		if !slices.Equal(got.Header["Cookie"], want) {
			t.Errorf("cookies %q, want %q", got.Header["Cookie"], want)
		}
		for name, want := range map[string]string{
			"X-Forwarded-Host": host, "X-Forwarded-Proto": "http", "X-Forwarded-For": "127.0.0.1",
			"X-Hop": "", "Keep-Alive": "", "Proxy-Connection": "", "Forwarded": "", "Authorization": "",
			"User-Agent": "test", "Accept": "text/x", "Accept-Encoding": "br", api.TokenHeader: "",
		} {
			if v := got.Header.Get(name); v != want {
				t.Errorf("%s: %q, want %q", name, v, want)
			}
		}
		if v := got.Header["X-App"]; !slices.Equal(v, []string{"1", "2"}) {
			t.Errorf("X-App: %q", v)
		}
		if upgrade != isWebSocket(got.Header) || !upgrade && got.Header.Get("Connection")+got.Header.Get("Upgrade") != "" {
			t.Errorf("Connection %q, Upgrade %q", got.Header["Connection"], got.Header["Upgrade"])
		}
		if got.Host != host {
			t.Errorf("Host %q", got.Host)
		}
	}

	send := func(t *testing.T, change func(http.Header)) *http.Response {
		head := bytes.NewBufferString("GET " + under(wsA) + "/x HTTP/1.1\r\nHost: " + host + "\r\n")
		h := secretHeaders.Clone()
		// ReverseProxy drops headers that the client lists as hop-by-hop, so the
		// secret is added afterwards.
		h.Set("Connection", "keep-alive, X-Hop")
		change(h)
		if err := h.Write(head); err != nil {
			t.Fatal(err)
		}
		return w.raw(strings.ReplaceAll(head.String(), "\r\n", "\n") + "\n")
	}
	t.Run("http", func(t *testing.T) {
		if res := send(t, func(http.Header) {}); res.StatusCode != http.StatusOK {
			t.Fatalf("status %d", res.StatusCode)
		}
		check(t, false)
	})
	t.Run("websocket", func(t *testing.T) {
		res := send(t, func(h http.Header) {
			h.Set("Connection", "X-Hop, upgrade")
			h.Set("Upgrade", "websocket")
			h.Set("Origin", w.server.URL)
			h.Set("Sec-WebSocket-Version", "13")
			h.Set("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
		})
		if res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("status %d", res.StatusCode)
		}
		check(t, true)
	})
	t.Run("another protocol", func(t *testing.T) {
		if res := send(t, func(h http.Header) { h.Set("Connection", "X-Hop, Upgrade"); h.Set("Upgrade", "h2c") }); res.StatusCode != http.StatusOK {
			t.Fatalf("status %d", res.StatusCode)
		}
		check(t, false)
	})
	t.Run("several protocols", func(t *testing.T) {
		if res := send(t, func(h http.Header) {
			h.Set("Connection", "X-Hop, Upgrade")
			h["Upgrade"] = []string{"h2c", "websocket"}
		}); res.StatusCode != http.StatusOK {
			t.Fatalf("status %d", res.StatusCode)
		}
		check(t, false)
	})
	t.Run("cookies as hop-by-hop", func(t *testing.T) {
		send(t, func(h http.Header) { h.Set("Connection", "Cookie") })
		if got := i.received().Header["Cookie"]; !slices.Equal(got, []string{runtime.SecretCookie + "=" + i.secret}) {
			t.Errorf("cookies %q", got)
		}
	})
	t.Run("a bearer token of the workspace", func(t *testing.T) {
		send(t, func(h http.Header) { h.Set("Authorization", "Bearer abc") })
		if got := i.received().Header.Get("Authorization"); got != "Bearer abc" {
			t.Errorf("Authorization %q", got)
		}
	})
	if i.refused.Load() != 0 {
		t.Error("the IDE did not receive the secret")
	}
}

// The IDE sees the public address even if a reverse proxy terminates TLS and
// changes the Host.
func TestPublicAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) {
		c.Layout = layoutOf(t, &url.URL{Scheme: "https", Host: "codehub.example"}, origin.PathMode)
	})
	i := w.serve(wsA)
	r := w.request(http.MethodGet, under(wsA)+"/")
	r.Host = "codehub.example"
	if a := w.do(r); a.StatusCode != http.StatusOK {
		t.Fatalf("status %d", a.StatusCode)
	}
	if h := i.received().Header; h.Get("X-Forwarded-Proto") != "https" || h.Get("X-Forwarded-Host") != "codehub.example" {
		t.Errorf("%v", h)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, w.server.URL+under(wsA)+"/ws", &websocket.DialOptions{
		HTTPHeader: http.Header{"Cookie": {sessionCookie + "=ann-1"}, "Origin": {"https://codehub.example"}},
	})
	if err != nil {
		t.Fatalf("a WebSocket behind a proxy that changes Host: %v", err)
	}
	conn.CloseNow()
}

func TestResponseHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.serve(wsA)
	i.handle = func(rw http.ResponseWriter, r *http.Request) {
		h := rw.Header()
		if r.URL.Query().Has("early") {
			h.Set("Set-Cookie", sessionCookie+"=early")
			h.Set("Link", "</x>; rel=preload")
			rw.WriteHeader(http.StatusEarlyHints)
		}
		h["Set-Cookie"] = []string{"app=1; Path=/", sessionCookie + "=evil; Path=/", runtime.SecretCookie + "=x"}
		h.Set("Location", "http://"+i.addr()+"/next")
		h.Set("Keep-Alive", "timeout=5")
		h.Set("X-App", "1")
		h.Set("Trailer", "X-Sum")
		rw.WriteHeader(http.StatusFound)
		_, _ = io.WriteString(rw, "body")
		h.Set("X-Sum", "4")
	}
	var early http.Header
	r := w.request(http.MethodGet, under(wsA)+"/?early")
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		early = http.Header(h).Clone()
		return nil
	}}))
	a := w.do(r)
	if got := a.Header["Set-Cookie"]; !slices.Equal(got, []string{"app=1; Path=" + under(wsA) + "/"}) {
		t.Errorf("cookies %q", got)
	}
	if a.StatusCode != http.StatusFound || a.Header.Get("Location") != under(wsA)+"/next" || a.Header.Get("X-App") != "1" || a.Header.Get("Keep-Alive") != "" {
		t.Errorf("status %d: %v", a.StatusCode, a.Header)
	}
	if a.body != "body" || a.Trailer.Get("X-Sum") != "4" {
		t.Errorf("%q, trailer %v", a.body, a.Trailer)
	}
	if early == nil || early.Get("Set-Cookie") != "" || early.Get("Link") == "" {
		t.Errorf("early hints %v", early)
	}

	// The response to a WebSocket handshake sets cookies as well.
	i.handle = func(rw http.ResponseWriter, r *http.Request) {
		rw.Header()["Set-Cookie"] = []string{"app=1", sessionCookie + "=evil"}
		i.echo(rw, r)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, res, err := websocket.Dial(ctx, w.server.URL+under(wsA)+"/ws", &websocket.DialOptions{
		HTTPHeader: http.Header{"Cookie": {sessionCookie + "=ann-1"}, "Origin": {w.server.URL}},
	})
	if err != nil {
		t.Fatal(err)
	}
	conn.CloseNow()
	if got := res.Header["Set-Cookie"]; !slices.Equal(got, []string{"app=1"}) {
		t.Errorf("cookies of a WebSocket %q", got)
	}
}
