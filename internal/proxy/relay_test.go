package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"codehub/api"
	"codehub/internal/harness"
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

// What the IDE writes arrives immediately, headers first.
func TestStreaming(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.serve(wsA)
	next := make(chan string)
	i.handle = func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Length", "9") // known, and streamed nevertheless
		rw.WriteHeader(http.StatusOK)
		rc := http.NewResponseController(rw)
		_ = rc.Flush()
		for s := range next {
			_, _ = io.WriteString(rw, s)
			_ = rc.Flush()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	res, err := noRedirects.Do(w.request(http.MethodGet, under(wsA)+"/").WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for _, s := range []string{"one", "two", "six"} {
		next <- s
		got := make([]byte, 3)
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != s {
			t.Fatalf("%q: %v", got, err)
		}
	}
	close(next)
}

// 64 MiB pass in both directions in lockstep: each chunk is sent when the previous
// one has come back, so nothing buffers the whole body.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.serve(wsA)
	i.handle = func(rw http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(rw)
		if err := rc.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		rw.WriteHeader(http.StatusOK)
		_ = rc.Flush()
		buf := make([]byte, 256<<10)
		for {
			n, err := r.Body.Read(buf)
			if n > 0 {
				_, _ = rw.Write(buf[:n])
				_ = rc.Flush()
			}
			if err != nil {
				return
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	body, send := io.Pipe()
	r := w.request(http.MethodPost, under(wsA)+"/").WithContext(ctx)
	r.Body = body
	chunk, back := make([]byte, 1<<20), make([]byte, 1<<20)
	_, _ = rand.Read(chunk)
	first := make(chan error, 1)
	go func() { _, err := send.Write(chunk); first <- err }()
	res, err := noRedirects.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for n := range 64 {
		if n > 0 {
			go func() { _, err := send.Write(chunk); first <- err }()
		}
		if _, err := io.ReadFull(res.Body, back); err != nil {
			t.Fatalf("chunk %d: %v", n, err)
		}
		if err := <-first; err != nil || !bytes.Equal(chunk, back) {
			t.Fatalf("chunk %d differs: %v", n, err)
		}
	}
	send.Close()
	if n, err := io.Copy(io.Discard, res.Body); n != 0 || err != nil {
		t.Errorf("%d bytes more: %v", n, err)
	}
}

// An upload waits for the IDE's 100 Continue if the client asks for it.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.serve(wsA)
	i.handle = func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusRequestEntityTooLarge) }
	res := w.raw("POST " + under(wsA) + "/ HTTP/1.1\nHost: localhost\nCookie: " + sessionCookie + "=ann-1\nExpect: 100-continue\nContent-Length: 1000000\n\n")
	if res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d", res.StatusCode)
	}
}

// The client and the IDE negotiate compression; the proxy does not interfere.
func TestWebSocketDeflate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.serve(wsA)
	conn := w.dial(under(wsA)+"/ws", "ann-1")
	if got := i.received().Header.Get("Sec-WebSocket-Extensions"); !strings.HasPrefix(got, "permessage-deflate") {
		t.Errorf("extensions %q", got)
	}
	for _, size := range []int{0, 1, 125, 126, 65535, 65536, 4 << 20} {
		say(t, conn, strings.Repeat("compressible ", size)[:size])
	}
	random := make([]byte, 1<<20)
	_, _ = rand.Read(random)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := conn.Write(ctx, websocket.MessageBinary, random); err != nil {
		t.Fatal(err)
	}
	if _, got, err := conn.Read(ctx); err != nil || !bytes.Equal(got, random) {
		t.Errorf("%d bytes: %v", len(got), err)
	}
	if err := conn.Close(websocket.StatusNormalClosure, "bye"); err != nil {
		t.Errorf("the closing handshake: %v", err)
	}
	harness.EventuallyWithin(t, patience, "nothing is open", func() bool { return w.proxy.OpenConnections() == 0 })
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

// Requests to an unchanged workspace call neither the database nor the runtime.
func TestCachedRequestsNeedNoLookups(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(wsA)
	w.get(under(wsA) + "/")
	reads, _ := w.store.counts()
	asks := w.runtime.count()
	for n := range 200 {
		if a := w.get(fmt.Sprintf("%s/%d", under(wsA), n), navigation[:4*(n%2)]...); a.StatusCode != http.StatusOK {
			t.Fatalf("status %d", a.StatusCode)
		}
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
