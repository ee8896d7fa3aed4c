package proxy

import (
	"cmp"
	"crypto/tls"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"codehub/internal/gateway/origin"
	"codehub/internal/workspace"
)

func TestWebSocketOrigin(t *testing.T) {
	t.Parallel()
	tests := []struct {
		public, host, origin string
		tls                  bool
		want                 bool
	}{
		{"http://localhost:8080", "localhost:8080", "http://localhost:8080", false, true},
		{"http://localhost:8080", "localhost:8080", "HTTP://LOCALHOST:8080", false, true},
		{"http://localhost:8080", "127.0.0.1:8080", "http://127.0.0.1:8080", false, true},
		{"http://localhost:8080", "localhost:8080", "http://127.0.0.1:8080", false, false},
		{"http://localhost:8080", "localhost:8080", "http://localhost", false, false},
		{"http://localhost:8080", "localhost:8080", "http://localhost:80801", false, false},
		{"http://localhost:8080", "localhost:8080", "http://evil.localhost:8080", false, false},
		{"http://localhost:8080", "localhost:8080", "http://localhost:8080.evil.example", false, false},
		{"http://localhost:8080", "localhost:8080", "http://localhost:8080/", false, false},
		{"http://localhost:8080", "localhost:8080", "http://x@localhost:8080", false, false},
		{"http://localhost:8080", "localhost:8080", "https://localhost:8080", false, false},
		{"http://localhost:8080", "localhost:8080", "null", false, false},
		{"http://localhost:8080", "localhost:8080", "", false, false},
		{"http://codehub.example", "codehub.example:80", "http://codehub.example", false, true},
		// TLS is terminated in front of the server.
		{"https://codehub.example", "codehub.example", "https://codehub.example", false, true},
		{"https://codehub.example", "codehub.example:443", "https://codehub.example", false, true},
		{"https://codehub.example", "127.0.0.1:8080", "https://codehub.example", false, true},
		{"https://codehub.example", "codehub.example", "http://codehub.example", false, false},
		{"https://codehub.example", "ws.codehub.example", "https://codehub.example.evil", false, false},
		{"https://codehub.example", "other.example", "https://other.example", true, true},
		{"https://codehub.example", "other.example", "http://other.example", true, false},
	}
	for _, test := range tests {
		public, err := url.Parse(test.public)
		if err != nil {
			t.Fatal(err)
		}
		r := &http.Request{Host: test.host, Header: http.Header{"Connection": {"keep-alive, upgrade"}, "Upgrade": {"WebSocket"}}}
		if test.origin != "" {
			r.Header.Set("Origin", test.origin)
		}
		if test.tls {
			r.TLS = &tls.ConnectionState{}
		}
		o := newOrigins(layoutOf(t, public, origin.PathMode))
		for _, byToken := range []bool{false, true} {
			want := test.want || test.origin == "" && byToken
			if got := o.allows(r, false, byToken); got != want {
				t.Errorf("%s asked as %s by %q (token: %v): %v", test.public, test.host, test.origin, byToken, got)
			}
		}
		r.Header.Add("Origin", test.origin)
		r.Header.Add("Origin", test.origin)
		if o.allows(r, false, true) {
			t.Errorf("%q sent twice was accepted", test.origin)
		}
	}
}

// In path mode a service worker would answer for codehub's own pages under its path, and
// act on the dashboard after its workspace has stopped. So no script of one is served.
func TestServiceWorkersInPathMode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.serve(wsA)
	header := []string{"Service-Worker", "script", "Sec-Fetch-Mode", "same-origin", "Sec-Fetch-Dest", "serviceworker", "Sec-Fetch-Site", "same-origin"}
	for _, h := range [][]string{header, header[:2], header[2:]} {
		if got := w.get(under(wsA)+"/sw.js", h...); got.StatusCode != http.StatusForbidden {
			t.Errorf("%v: %d", h, got.StatusCode)
		}
	}
	if i.served.Load() != 0 {
		t.Error("the request reached the workspace")
	}
	// On an origin of its own a workspace has service workers.
	h := newHostWorld(t)
	h.serve(wsA)
	if res := h.send("GET", h.at(wsA)+"/sw.js", append(header, "Cookie", hostCookie+"=ann-1"+at(workspace.Host{ID: wsA}))...); res.StatusCode != http.StatusOK {
		t.Errorf("on its own origin: %d", res.StatusCode)
	}
}

// A service worker of an IDE's host cannot have a scope with codehub's own paths, where it would
// read tickets: every response for a script says so, since browsers may register it from their
// cache.
func TestServiceWorkerScopes(t *testing.T) {
	t.Parallel()
	h := newHostWorld(t)
	h.hostile(wsA, func(conn io.Writer, r *http.Request) {
		allowed := r.URL.Query().Get("allowed")
		if allowed != "" {
			allowed = "service-worker-allowed: " + allowed + "\r\n"
		}
		kind := cmp.Or(r.URL.Query().Get("kind"), "text/javascript")
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: "+kind+"\r\nContent-Length: 2\r\n"+allowed+"\r\nok")
	})
	h.store.put(running(wsA, ann))
	for path, want := range map[string]string{
		"/sw.js": "/_/", "/sw.js?x=/a/": "/_/", "/": "/_/", "/sw.js?allowed=/": "/_/", "/sw.js?kind=Application/X-ECMAScript%3Ba": "/_/",
		"/sw.js?kind=text/html": "", "/sw.js?kind=text/html&allowed=/": "",
		"/pre/sw.js": "", "/pre/sw.js?allowed=/": "", "/pre/sw.js?allowed=..": "",
	} {
		res := h.send("GET", h.at(wsA)+path, "Cookie", hostCookie+"=ann-1"+at(workspace.Host{ID: wsA}))
		if got := strings.Join(res.Header["Service-Worker-Allowed"], ", "); res.StatusCode != 200 || got != want {
			t.Errorf("%s: %d, %q, want %q", path, res.StatusCode, got, want)
		}
	}
}
