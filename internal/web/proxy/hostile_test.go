package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	container "codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// hostile gives a workspace a container that answers every request by respond.
func (w *world) hostile(id workspace.ID, respond func(conn io.Writer, r *http.Request)) {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					respond(conn, r)
				}
			}()
		}
	}()
	w.runtime.put(id, container.Upstream{ContainerID: "hostile", Addr: l.Addr().String(), Secret: "s"})
}

// A status that HTTP does not define is 502, and the server goes on.
func TestInvalidStatuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hostile(wsA, func(conn io.Writer, r *http.Request) {
		status, body := strings.TrimPrefix(r.URL.Path, "/"), "ok"
		if status == "204" || status == "304" {
			body = "" // it would be read as the beginning of the next response
		}
		fmt.Fprintf(conn, "HTTP/1.1 %s Text\r\nContent-Length: 2\r\n\r\n%s", status, body)
	})
	for status := range 1000 {
		if status >= 100 && status <= 199 {
			continue // informational: tested below
		}
		want := status
		if status < 100 || status > 599 {
			want = http.StatusBadGateway
		}
		a := w.get(fmt.Sprintf("%s/%03d", under(wsA), status))
		if a.StatusCode != want {
			t.Errorf("%03d: %d, want %d", status, a.StatusCode, want)
		}
		if want == http.StatusBadGateway && status != want && !strings.Contains(a.body, `"unavailable"`) {
			t.Errorf("%03d: %s", status, a.body)
		}
	}
	for _, status := range []string{"", "1", "12", "1234", "abc", "-12", "+20", "2 0", "0x0", "٢٠٠"} {
		if a := w.get(under(wsA) + "/" + status); a.StatusCode != http.StatusBadGateway {
			t.Errorf("%q: %d", status, a.StatusCode)
		}
	}
	// A protocol that was not asked for, and informational responses without end.
	if a := w.get(under(wsA) + "/101"); a.StatusCode != http.StatusBadGateway {
		t.Errorf("101: %d", a.StatusCode)
	}
	w.hostile(wsB, func(conn io.Writer, r *http.Request) {
		for range 100_000 {
			if _, err := io.WriteString(conn, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"); err != nil {
				return
			}
		}
	})
	w.store.put(running(wsB, ann))
	if a := w.get(under(wsB) + "/"); a.StatusCode != http.StatusBadGateway {
		t.Errorf("endless informational responses: %d", a.StatusCode)
	}
	if log := w.log.String(); strings.Contains(log, "panic") {
		t.Error("a status caused a panic")
	}
}

// Headers that apply to the whole origin reach no visitor, as header or as trailer, and
// trailers cannot set what a header may not.
func TestWholeOriginHeadersAreRemoved(t *testing.T) {
	t.Parallel()
	testWholeOriginHeadersAreRemoved(t, newWorld(t))
	testWholeOriginHeadersAreRemoved(t, newWorld(t, noShortWay))
}

func testWholeOriginHeadersAreRemoved(t *testing.T, w *world) {
	t.Helper()
	names := slices.Concat(slices.Collect(maps.Keys(wholeOrigin)), []string{"Set-Cookie", "Location", "Service-Worker-Allowed", "Content-Security-Policy", "Cross-Origin-Opener-Policy", "Access-Control-Allow-Origin"})
	w.hostile(wsA, func(conn io.Writer, r *http.Request) {
		var b bytes.Buffer
		b.WriteString("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n")
		for name := range wholeOrigin {
			fmt.Fprintf(&b, "%s: hostile\r\n", strings.ToLower(name))
		}
		if r.URL.Path == "/announced" {
			fmt.Fprintf(&b, "Trailer: %s, X-Sum\r\n", strings.Join(names, ", "))
		}
		b.WriteString("\r\n2\r\nok\r\n0\r\n")
		for _, name := range names {
			fmt.Fprintf(&b, "%s: hostile\r\n", strings.ToUpper(name))
		}
		b.WriteString("X-Sum: 1\r\n\r\n")
		_, _ = conn.Write(b.Bytes())
	})
	for _, path := range []string{"/announced", "/"} {
		res := w.raw("GET " + under(wsA) + path + " HTTP/1.1\nHost: localhost\nCookie: " + sessionCookie + "=ann-1\nTE: trailers\n\n")
		var raw bytes.Buffer
		if _, err := io.Copy(&raw, res.Body); err != nil || raw.String() != "ok" {
			t.Fatalf("%s: %q, %v", path, raw.String(), err)
		}
		for _, h := range []http.Header{res.Header, res.Trailer} {
			for name, values := range h {
				if slices.Contains(values, "hostile") {
					t.Errorf("%s: %s: %q passes", path, name, values)
				}
			}
		}
		if res.Trailer.Get("X-Sum") != "1" {
			t.Errorf("%s: trailers %v", path, res.Trailer)
		}
		for name := range res.Trailer {
			if name != "X-Sum" {
				t.Errorf("%s: the trailer %s is announced", path, name)
			}
		}
	}
}

// directives are headers of responses that a reverse proxy in front of codehub obeys.
var directives = []string{
	"X-Accel-Redirect", "X-Accel-Buffering", "X-Accel-Expires", "X-Accel-Limit-Rate", "X-Accel-Charset", // nginx
	"X-Sendfile", "X-Sendfile-Temporary", "X-Sendfile2", "X-LIGHTTPD-send-file", // Apache, lighttpd
	"X-LiteSpeed-Location", "X-LiteSpeed-Purge", "LSC-Cookie", "X-Reproxy-URL", "X-Reproxy-File", "X-Reproxy-Service", "X-Reproxy-Method", // LiteSpeed, H2O, Perlbal
	"X-Envoy-Immediate-Health-Check-Fail", "Surrogate-Control", "Edge-Control", "Fly-Replay", "Fly-Replay-Cache",
}

// Headers that a reverse proxy in front of codehub obeys, such as the path of a file to send
// instead of the response, reach it in no part of a response: on the short way, by
// httputil.ReverseProxy, in the handshake of a WebSocket, before the response and after it.
func TestReverseProxyHeadersAreRemoved(t *testing.T) {
	t.Parallel()
	testReverseProxyHeadersAreRemoved(t, newWorld(t))
	testReverseProxyHeadersAreRemoved(t, newWorld(t, noShortWay))
}

func testReverseProxyHeadersAreRemoved(t *testing.T, w *world) {
	t.Helper()
	var hostile strings.Builder
	for i, name := range directives {
		name = []string{name, strings.ToLower(name), strings.ToUpper(name)}[i%3]
		fmt.Fprintf(&hostile, "%s: hostile\r\n", name)
	}
	w.hostile(wsA, func(conn io.Writer, r *http.Request) {
		head := "HTTP/1.1 103 Early Hints\r\n" + hostile.String() + "X-Kept: 103\r\n\r\n"
		switch r.URL.Path {
		case "/socket":
			head += "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" + hostile.String() + "X-Kept: 101\r\n\r\n"
		case "/refused":
			head += "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n" + hostile.String() + "X-Kept: 403\r\n\r\n"
		default:
			head += "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + hostile.String() + "X-Kept: 200\r\n"
			if r.URL.Path == "/announced" {
				head += "Trailer: X-Sum, " + strings.Join(directives, ", ") + "\r\n"
			}
			head += "\r\n2\r\nok\r\n0\r\n" + hostile.String() + "X-Sum: 1\r\n\r\n"
		}
		_, _ = io.WriteString(conn, head)
	})
	const upgrade = "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n"
	for _, test := range []struct{ path, header, want string }{
		{"/", "", "103 200"},
		{"/announced", "", "103 200"},
		{"/", "TE: trailers\n", "103 200"},
		{"/announced", "TE: trailers\n", "103 200"},
		{"/socket", upgrade, "103 101"},
		{"/refused", upgrade, "103 403"},
	} {
		conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		head := "GET " + under(wsA) + test.path + " HTTP/1.1\nHost: localhost\nCookie: " + sessionCookie + "=ann-1\nOrigin: " + w.server.URL + "\n" + test.header + "\n"
		if _, err := io.WriteString(conn, strings.ReplaceAll(head, "\n", "\r\n")); err != nil {
			t.Fatal(err)
		}
		var kept []string
		for in := bufio.NewReader(conn); len(kept) < 2; {
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatalf("%s %q: %v", test.path, test.header, err)
			}
			if res.StatusCode != http.StatusSwitchingProtocols {
				if _, err := io.Copy(io.Discard, res.Body); err != nil {
					t.Fatalf("%s %q: %v", test.path, test.header, err)
				}
			}
			kept = append(kept, res.Header.Get("X-Kept"))
			for _, h := range []http.Header{res.Header, res.Trailer} {
				for name, values := range h {
					if slices.Contains(values, "hostile") || slices.ContainsFunc(directives, func(n string) bool { return strings.EqualFold(n, name) }) {
						t.Errorf("%s %q: %s: %q passes in the response %d", test.path, test.header, name, values, res.StatusCode)
					}
				}
			}
			if res.StatusCode == http.StatusOK && res.Trailer.Get("X-Sum") != "1" {
				t.Errorf("%s %q: trailers %v", test.path, test.header, res.Trailer)
			}
		}
		if got := strings.Join(kept, " "); got != test.want {
			t.Errorf("%s %q: responses %s, want %s", test.path, test.header, got, test.want)
		}
	}
}

// Trailers of a request reach the workspace, except codehub's credentials and what
// would change the request.
func TestRequestTrailers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.serve(wsA)
	got := make(chan http.Header, 1)
	i.handle = func(rw http.ResponseWriter, r *http.Request) {
		if b, err := io.ReadAll(r.Body); err != nil || string(b) != "hello" {
			t.Errorf("%q, %v", b, err)
		}
		got <- r.Trailer
	}
	const names = "X-Sum, Cookie, Codehub-Session-Token, Authorization, X-Forwarded-For, X-Not-Sent"
	res := w.raw("POST " + under(wsA) + "/ HTTP/1.1\nHost: localhost\nCookie: " + sessionCookie + "=ann-1\nTransfer-Encoding: chunked\nTrailer: " + names +
		"\n\n5\nhello\n0\nX-Sum: 1\nCookie: a=b\nCodehub-Session-Token: chub_ann\nAuthorization: Bearer chub_ann\nX-Forwarded-For: 1.2.3.4\nX-Unannounced: 1\n\n")
	if res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	trailer := <-got
	for name, values := range trailer {
		if name != "X-Sum" && len(values) > 0 {
			t.Errorf("%s: %q arrives", name, values)
		}
	}
	if trailer.Get("X-Sum") != "1" {
		t.Errorf("trailers %v", trailer)
	}
}

// Megabytes of header are 502, and many of them at the same time need little memory. Not
// parallel: it measures the process.
func TestLargeResponseHeaders(t *testing.T) {
	const most = memoryFactor * 100 << 20
	visitors := 10
	if harness.Verifying() {
		visitors = 50
	}
	w := newWorld(t)
	var all sync.WaitGroup
	lines := new(bytes.Buffer)
	for n := range 400_000 { // short lines need the most memory for their size
		fmt.Fprintf(lines, "%x:\r\n", n)
	}
	w.hostile(wsA, func(conn io.Writer, r *http.Request) {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
		if r.URL.Path == "/small" {
			fmt.Fprintf(conn, "Content-Length: 0\r\nX: %s\r\n\r\n", strings.Repeat("x", 100<<10))
			return
		}
		if r.URL.Path == "/many" { // within the limit of bytes
			_, _ = conn.Write(lines.Bytes()[:120_000])
			_, _ = io.WriteString(conn, "\r\nContent-Length: 0\r\n\r\n")
			return
		}
		all.Done()
		all.Wait()
		_, _ = conn.Write(lines.Bytes())
		_, _ = io.WriteString(conn, "Content-Length: 0\r\n\r\n")
	})
	if a := w.get(under(wsA) + "/small"); a.StatusCode != http.StatusOK {
		t.Errorf("100 KiB of header: %d", a.StatusCode)
	}
	if a := w.get(under(wsA) + "/many"); a.StatusCode != http.StatusBadGateway {
		t.Errorf("thousands of header fields: %d", a.StatusCode)
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	all.Add(visitors)
	var wg sync.WaitGroup
	for range visitors {
		wg.Go(func() {
			if a := w.get(under(wsA) + "/large"); a.StatusCode != http.StatusBadGateway {
				t.Errorf("megabytes of header: %d", a.StatusCode)
			}
		})
	}
	wg.Wait()
	runtime.ReadMemStats(&after)
	more := int64(after.Sys) - int64(before.Sys)
	t.Logf("%d MB more for %d responses", more>>20, visitors)
	if more > most {
		t.Errorf("%d MB more", more>>20)
	}
}
