package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/api"
)

// raw sends bytes unchanged and returns the response.
func (w *world) raw(head string) *http.Response {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, strings.ReplaceAll(head, "\n", "\r\n")); err != nil {
		w.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { res.Body.Close() })
	return res
}

// A path reaches the IDE byte for byte, without the prefix. Only bytes that are
// invalid in a path are escaped.
func TestPaths(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.serve(wsA)
	for _, test := range []struct{ path, want string }{
		{"/", "/"},
		{"/?", "/?"},
		{"/a/b/", "/a/b/"},
		{"/a%2Fb", "/a%2Fb"},
		{"/a%2fb/%7e", "/a%2fb/%7e"},
		{"//", "//"},
		{"//evil.example/x", "//evil.example/x"},
		{"/a//b", "/a//b"},
		{"/a/./b/../c", "/a/./b/../c"},
		{"/../../api/v1/workspaces", "/../../api/v1/workspaces"},
		{"/%2e%2e/%2E%2E/x", "/%2e%2e/%2E%2E/x"},
		{"/" + string(wsB) + "/", "/" + string(wsB) + "/"},
		{"/*", "/*"},
		{"/a;b=c,d:e@f!$&'()*+", "/a;b=c,d:e@f!$&'()*+"},
		{"/[x]", "/[x]"},
		{"/%25%00%0d%0a", "/%25%00%0d%0a"},
		{"/a%2Fb|c\"d", "/a%2Fb%7Cc%22d"},
		{"/é%C3%A9", "/%C3%A9%C3%A9"},
		{"/x?a=1;b=2&c=%zz&d=a+b%20c&&=", "/x?a=1;b=2&c=%zz&d=a+b%20c&&="},
		{"/x?redirect=/w/" + string(wsA) + "/", "/x?redirect=/w/" + string(wsA) + "/"},
	} {
		res := w.raw("GET " + under(wsA) + test.path + " HTTP/1.1\nHost: " + w.server.Listener.Addr().String() + "\nCookie: " + sessionCookie + "=ann-1\n\n")
		if res.StatusCode != http.StatusOK || i.received().URI != test.want {
			t.Errorf("%q: status %d, the IDE got %q, want %q", test.path, res.StatusCode, i.received().URI, test.want)
		}
	}
	// In absolute form, as to a forward proxy.
	res := w.raw("GET http://" + w.server.Listener.Addr().String() + under(wsA) + "/a%2Fb?x HTTP/1.1\nHost: ignored\nCookie: " + sessionCookie + "=ann-1\n\n")
	if res.StatusCode != http.StatusOK || i.received().URI != "/a%2Fb?x" {
		t.Errorf("absolute form: status %d, the IDE got %q", res.StatusCode, i.received().URI)
	}
}

func FuzzPath(f *testing.F) {
	for _, seed := range []string{"/", "//", "/a%2Fb", "/%", "/\"%2f", "/a?b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		in, err := url.ParseRequestURI(under(wsA) + path)
		if err != nil || strings.ContainsAny(path, "?#") {
			return
		}
		target, ok := parseTarget(&http.Request{URL: in})
		if !ok {
			return
		}
		out := url.URL{Scheme: "http", Host: "c", Path: target.path, RawPath: target.rawPath}
		if got := out.EscapedPath(); got != escapeStray(path) {
			t.Fatalf("%q is sent as %q", path, got)
		}
		if in.Path != under(wsA)+target.path {
			t.Fatalf("%q is read as %q here and %q there", path, in.Path, target.path)
		}
	})
}

// Refused WebSockets do not reach the IDE.
func TestWebSocketRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.serve(wsA)
	for name, test := range map[string]struct {
		header []string
		want   int
	}{
		"no session":          {[]string{"Cookie", "", "Origin", w.server.URL}, 401},
		"another user":        {[]string{"Cookie", sessionCookie + "=bob-1", "Origin", w.server.URL}, 403},
		"another site":        {[]string{"Origin", "http://evil.example"}, 403},
		"no origin":           {nil, 403},
		"another site, token": {[]string{"Cookie", "", api.TokenHeader, "chub_ann", "Origin", "http://evil.example"}, 403},
		"no origin, token":    {[]string{"Cookie", "", api.TokenHeader, "chub_ann"}, 101},
	} {
		a := w.get(under(wsA)+"/ws", append(slices.Clone(kinds["websocket"].header), test.header...)...)
		if a.StatusCode != test.want {
			t.Errorf("%s: status %d, want %d", name, a.StatusCode, test.want)
		}
	}
	if n := i.served.Load() + i.refused.Load(); n != 1 {
		t.Errorf("the IDE was asked %d times", n)
	}
}

// Requests to an unchanged workspace call neither the database nor the runtime, and do not
// register to be notified of the end of their session.
func TestCachedRequestsNeedNoLookups(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.CheckInterval = time.Hour })
	w.serve(wsA)
	w.get(under(wsA) + "/")
	reads, _ := w.store.counts()
	asks := w.runtime.count()
	for n := range 200 {
		if a := w.get(fmt.Sprintf("%s/%d", under(wsA), n), navigation[:4*(n%2)]...); a.StatusCode != http.StatusOK {
			t.Fatalf("status %d", a.StatusCode)
		}
	}
	if n := w.sessions.count("ann-1"); n != 1 {
		t.Errorf("%d registrations of the session", n)
	}
	for range 20 {
		conn := w.dial(under(wsA)+"/ws", "ann-1")
		say(t, conn, "hello")
		conn.CloseNow()
	}
	// The same for a tab that reconnects to a stopped workspace.
	ws := running(wsB, ann)
	ws.Phase = "STANDBY"
	w.store.put(ws)
	w.get(under(wsB) + "/")
	for range 200 {
		if a := w.get(under(wsB) + "/"); a.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("status %d", a.StatusCode)
		}
	}
	now, wakes := w.store.counts()
	if now != reads+1 || w.runtime.count() != asks || wakes != 0 {
		t.Errorf("%d reads, %d lookups, %d wakes", now-reads, w.runtime.count()-asks, wakes)
	}
}
