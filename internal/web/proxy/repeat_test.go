package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// repeatWorld is a workspace on its own origin whose container sends what the test sets.
type repeatWorld struct {
	*hostWorld
	handled atomic.Int64  // requests that the handler served
	reply   atomic.Value  // string
	heads   chan string   // of the requests to the container
	wait    chan struct{} // what the container waits for; nil: nothing
	rest    chan struct{} // what it waits for at a pause
	revoked atomic.Bool   // the session
}

// revocable is Visitors whose sessions can end.
type revocable struct {
	Visitors
	revoked *atomic.Bool
}

func (v revocable) AuthenticateWorkspace(r *http.Request, h workspace.Host) (workspace.Caller, error) {
	if v.revoked.Load() {
		return workspace.Caller{}, workspace.Errorf(workspace.CodeUnauthenticated, "Log in first.")
	}
	return v.Visitors.AuthenticateWorkspace(r, h)
}

func newRepeatWorld(t *testing.T, change ...func(*Config)) *repeatWorld {
	w := &repeatWorld{heads: make(chan string, 100)}
	w.hostWorld = newHostWorld(t, append(change, func(c *Config) { c.Visitors = revocable{c.Visitors, &w.revoked} })...)
	w.reply.Store(simpleReply)
	next := w.server.Config.Handler
	w.server.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.handled.Add(1)
		next.ServeHTTP(rw, r)
	})
	w.runtime.put(wsA, w.container(t, "secret"))
	return w
}

// container serves a container with these bytes for every request. It closes the connection
// after a response that says so, or that ends with cut.
func (w *repeatWorld) container(t testing.TB, secret string) runtime.Upstream {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(harness.Patience))
				for in := bufio.NewReader(c); ; {
					head := ""
					for !strings.HasSuffix(head, "\r\n\r\n") {
						line, err := in.ReadString('\n')
						if err != nil {
							return
						}
						head += line
					}
					w.heads <- head
					if w.wait != nil {
						<-w.wait
					}
					text := w.reply.Load().(string)
					whole, cutOff := strings.CutSuffix(text, cut)
					begin, rest, paused := strings.Cut(whole, pause)
					if _, err := io.WriteString(c, begin); err != nil {
						return
					}
					if paused {
						<-w.rest
						_, _ = io.WriteString(c, rest)
					}
					if cutOff || strings.Contains(text, "Connection: close") {
						return
					}
				}
			}()
		}
	}()
	return runtime.Upstream{ContainerID: secret, Addr: l.Addr().String(), Secret: secret}
}

const (
	simpleReply = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nDate: Thu, 26 Nov 2026 00:00:00 GMT\r\nETag: \"a\"\r\nContent-Length: 5\r\n\r\nhello"
	cut         = "\x00cut"
	pause       = "\x00pause"
)

// client is one connection of ann's browser to the workspace's host.
type client struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
	host string
}

func (w *repeatWorld) client(t *testing.T) *client {
	t.Helper()
	c, err := net.Dial("tcp", w.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	host, _ := strings.CutPrefix(w.at(wsA), "http://")
	return &client{t, c, bufio.NewReaderSize(c, 256<<10), host}
}

func (c *client) send(target string, more ...string) {
	c.t.Helper()
	head := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nCookie: other=1; %s=ann-1%s\r\nX-Forwarded-For: 1.2.3.4\r\nConnection: keep-alive\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n",
		target, c.host, hostCookie, at(workspace.Host{ID: wsA}))
	if _, err := io.WriteString(c.conn, head+strings.Join(more, "")+"\r\n"); err != nil {
		c.t.Fatal(err)
	}
}

// seen is a response as the client sees it.
type seen struct {
	Lines   []string // of the head, without Date
	Status  string
	Hints   int
	Header  http.Header
	Length  int64
	Coding  []string
	Body    string
	Whole   bool
	Trailer http.Header
	Close   bool
}

func (c *client) see() (got seen) {
	for {
		lines := c.head()
		res, err := http.ReadResponse(c.in, nil)
		if err != nil {
			got.Status = "none"
			return got
		}
		if res.StatusCode < 200 && res.StatusCode != http.StatusSwitchingProtocols {
			got.Hints++
			continue
		}
		b, err := io.ReadAll(res.Body)
		res.Header.Del("Date")
		got.Lines = lines
		got.Status, got.Header, got.Length, got.Coding, got.Body = res.Status, res.Header, res.ContentLength, res.TransferEncoding, string(b)
		got.Whole, got.Trailer, got.Close = err == nil, res.Trailer, res.Close
		return got
	}
}

// head returns the lines of the next head without Date, in order, with names as Go writes
// them. It leaves them to be read.
func (c *client) head() (lines []string) {
	for n := 1; ; n++ {
		b, err := c.in.Peek(n)
		if err != nil {
			return nil
		}
		end := bytes.Index(b, []byte("\r\n\r\n"))
		if end < 0 {
			n = max(n, c.in.Buffered()-1)
			continue
		}
		for line := range strings.SplitSeq(string(b[:end]), "\r\n") {
			if name, value, ok := strings.Cut(line, ":"); ok {
				line = http.CanonicalHeaderKey(name) + ": " + strings.TrimSpace(value)
			}
			if !strings.HasPrefix(line, "Date:") {
				lines = append(lines, line)
			}
		}
		slices.Sort(lines)
		return lines
	}
}

// replies are responses of a container, for TestRepeatedResponse and its fuzz test.
var replies = map[string]string{
	"simple":               simpleReply,
	"no date":              strings.Replace(simpleReply, "Date: Thu, 26 Nov 2026 00:00:00 GMT\r\n", "", 1),
	"no type":              strings.Replace(simpleReply, "Content-Type: text/plain\r\n", "", 1),
	"empty":                strings.Replace(simpleReply, "Length: 5\r\n\r\nhello", "Length: 0\r\n\r\n", 1),
	"64 KiB":               "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 65536\r\n\r\n" + strings.Repeat("x", 65536),
	"more than 64 KiB":     "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 65537\r\n\r\n" + strings.Repeat("x", 65537),
	"keep-alive":           strings.Replace(simpleReply, "ETag", "Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nETag", 1),
	"other fields":         strings.Replace(simpleReply, "ETag", "Connection: keep-alive, ETag\r\nETag", 1),
	"close":                strings.Replace(simpleReply, "ETag", "Connection: close\r\nETag", 1),
	"cookie":               strings.Replace(simpleReply, "ETag", "set-cookie: a=b; Domain=localhost; Path=/\r\nset-cookie: "+hostCookie+"=x\r\nETag", 1),
	"location":             strings.Replace(simpleReply, "ETag", "Location: http://127.0.0.1:1/x\r\nETag", 1),
	"redirect":             "HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
	"whole origin":         strings.Replace(simpleReply, "ETag", "clear-site-data: \"*\"\r\nStrict-Transport-Security: max-age=1\r\nETag", 1),
	"service worker":       strings.Replace(simpleReply, "ETag", "Service-Worker-Allowed: /\r\nETag", 1),
	"script":               strings.Replace(simpleReply, "text/plain", "Text/JavaScript", 1),
	"not modified":         "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n",
	"no content":           "HTTP/1.1 204 No Content\r\n\r\n",
	"chunks":               "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
	"trailers":             "HTTP/1.1 200 OK\r\nTrailer: X-A\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-A: 1\r\nSet-Cookie: a=b\r\n\r\n",
	"until the end":        "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n\r\nhello" + cut,
	"both framings":        strings.Replace(simpleReply, "ETag", "Transfer-Encoding: chunked\r\nETag", 1) + cut,
	"two lengths":          strings.Replace(simpleReply, "ETag", "Content-Length: 4\r\nETag", 1) + cut,
	"same length twice":    strings.Replace(simpleReply, "ETag", "Content-Length: 5\r\nETag", 1),
	"signed length":        strings.Replace(simpleReply, "Length: 5", "Length: +5", 1) + cut,
	"large length":         strings.Replace(simpleReply, "Length: 5", "Length: 99999999999999999999", 1) + cut,
	"short body":           strings.Replace(simpleReply, "hello", "hel", 1) + cut,
	"long body":            simpleReply + "more",
	"two responses":        simpleReply + simpleReply,
	"hints":                "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n" + simpleReply,
	"continue":             "HTTP/1.1 100 Continue\r\n\r\n" + simpleReply,
	"switch":               "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n" + cut,
	"older":                strings.Replace(simpleReply, "HTTP/1.1", "HTTP/1.0", 1) + cut,
	"other reason":         strings.Replace(simpleReply, "200 OK", "200 Fine", 1),
	"error":                strings.Replace(simpleReply, "200 OK", "500 Oh", 1),
	"status 600":           strings.Replace(simpleReply, "200 OK", "600 Oh", 1),
	"status 20":            strings.Replace(simpleReply, "200 OK", "20 OK", 1) + cut,
	"lower case":           strings.ToLower(strings.SplitAfterN(simpleReply, "\r\n", 2)[1]),
	"lower case fields":    "HTTP/1.1 200 OK\r\n" + strings.ToLower(strings.SplitAfterN(simpleReply, "\r\n", 2)[1]),
	"odd names":            strings.Replace(simpleReply, "ETag", "X_a: 1\r\nx-UPPER-b: 2\r\nETag", 1),
	"pragma":               strings.Replace(simpleReply, "ETag", "Pragma: no-cache\r\nETag", 1),
	"twice":                strings.Replace(simpleReply, "ETag", "X-A: 1\r\nx-a: 2\r\nETag", 1),
	"folded":               strings.Replace(simpleReply, "ETag", "X-A: 1\r\n 2\r\nETag", 1),
	"a space in a name":    strings.Replace(simpleReply, "ETag", "X-A : 1\r\nETag", 1) + cut,
	"bare LF":              strings.ReplaceAll(simpleReply, "\r\n", "\n"),
	"bare CR":              strings.Replace(simpleReply, "ETag", "X-A: 1\rX-B: 2\r\nETag", 1) + cut,
	"NUL":                  strings.Replace(simpleReply, "ETag", "X-A: a\x01b\r\nETag", 1) + cut,
	"other letters":        strings.Replace(simpleReply, "ETag", "X-A: é\r\nETag", 1),
	"spaces around":        strings.Replace(simpleReply, "ETag", "X-A: \t 1 \t\r\nETag", 1),
	"no value":             strings.Replace(simpleReply, "ETag", "X-A:\r\nETag", 1),
	"no colon":             strings.Replace(simpleReply, "ETag", "X-A\r\nETag", 1) + cut,
	"request id":           strings.Replace(simpleReply, "ETag", "X-Request-Id: theirs\r\nETag", 1),
	"large header":         strings.Replace(simpleReply, "ETag", "X-A: "+strings.Repeat("a", 5000)+"\r\nETag", 1),
	"too large header":     strings.Replace(simpleReply, "ETag", "X-A: "+strings.Repeat("a", maxResponseHeader)+"\r\nETag", 1) + cut,
	"nothing":              cut,
	"half a header":        simpleReply[:40] + cut,
	"no HTTP":              "SSH-2.0-x\r\n\r\n" + cut,
	"content of an image":  "HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Encoding: gzip\r\nVary: Accept\r\nContent-Length: 3\r\n\r\n\x00\xff\n",
	"proxy authentication": strings.Replace(simpleReply, "ETag", "Proxy-Authenticate: Basic\r\nETag", 1),
}

// For every response of the container, a repeated request gets the same as a request that the
// handler serves.
func TestRepeatedResponse(t *testing.T) {
	t.Parallel()
	w := newRepeatWorld(t)
	for name, reply := range replies {
		w.compare(t, name, reply)
	}
	for i, name := range directives {
		name = []string{name, strings.ToLower(name), strings.ToUpper(name)}[i%3]
		w.compare(t, name, strings.Replace(simpleReply, "ETag", name+": hostile\r\nETag", 1))
	}
}

// Without the short way, net/http serves each request, and its response is the same as with it.
func TestWithoutShortWay(t *testing.T) {
	t.Parallel()
	with, without := newRepeatWorld(t), newRepeatWorld(t, noShortWay)
	next := without.server.Config.Handler
	without.server.Config.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if by := fmt.Sprintf("%T", rw); by != "*http.response" {
			t.Errorf("%s: served by %s", r.URL, by)
		}
		next.ServeHTTP(rw, r)
	})
	for name, reply := range replies {
		var got [2]seen
		for i, w := range []*repeatWorld{with, without} {
			w.reply.Store(simpleReply)
			c := w.client(t)
			c.send("/first")
			c.see()
			w.reply.Store(reply)
			c.send("/path?query=1")
			got[i] = c.see()
			for len(w.heads) > 0 {
				<-w.heads
			}
			// A message of the proxy has the port. The framing differs, and with it whether a
			// type that is missing is added.
			_, port, _ := strings.Cut(c.host, ":")
			got[i].Body = strings.ReplaceAll(got[i].Body, port, "PORT")
			got[i].Hints, got[i].Lines, got[i].Length, got[i].Coding = 0, nil, 0, nil
			got[i].Header.Del("Content-Length")
			got[i].Header.Del("Content-Type")
			if !got[i].Whole {
				got[i] = seen{}
			}
		}
		if diff := cmp.Diff(got[0], got[1]); diff != "" {
			t.Errorf("%s: with (-), without (+):\n%s", name, diff)
		}
	}
	if n := without.handled.Load(); n != int64(2*len(replies)) {
		t.Errorf("the handler served %d of %d requests", n, 2*len(replies))
	}
}

// compare sends two requests on one connection, of which the handler serves the first, and
// compares the responses.
func (w *repeatWorld) compare(t *testing.T, name, reply string) {
	t.Helper()
	w.reply.Store(simpleReply)
	c := w.client(t)
	c.send("/first")
	if got := c.see(); got.Body != "hello" {
		t.Fatalf("%s: first %+v", name, got)
	}
	w.reply.Store(reply)
	before := w.handled.Load()
	c.send("/path?query=1")
	repeated := c.see()
	// A connection that ends without a response was closed meanwhile, and the handler tries
	// another one.
	if n := w.handled.Load() - before; n != 0 && reply != cut {
		t.Errorf("%s: the handler served it", name)
	}
	other := w.client(t)
	other.send("/path?query=1")
	served := other.see()
	if diff := cmp.Diff(served, repeated); diff != "" {
		t.Errorf("%s: by the handler (-), repeated (+):\n%s", name, diff)
	}
	// What follows on the connection is as after the handler's response.
	w.reply.Store(simpleReply)
	if repeated.Status != "none" && !repeated.Close && repeated.Whole {
		c.send("/next")
		if got := c.see(); got.Body != "hello" || got.Status != "200 OK" {
			t.Errorf("%s: next %+v", name, got)
		}
	}
	for len(w.heads) > 0 {
		<-w.heads
	}
}

func FuzzRepeatedResponse(f *testing.F) {
	for _, reply := range replies { // which TestRepeatedResponse compares
		if len(reply) < 10_000 && (reply == simpleReply || harness.Verifying()) {
			f.Add(reply)
		}
	}
	f.Fuzz(func(t *testing.T, reply string) {
		w := newRepeatWorld(t)
		w.compare(t, "fuzzed", strings.TrimSuffix(reply, cut)+cut)
	})
}

// The container gets the same header fields as from the handler, with the new target.
func TestRepeatedRequest(t *testing.T) {
	t.Parallel()
	w := newRepeatWorld(t)
	c := w.client(t)
	fields := func(target string) string {
		t.Helper()
		c.send(target)
		if got := c.see(); got.Body != "hello" {
			t.Fatalf("%s: %+v", target, got)
		}
		line, rest, _ := strings.Cut(<-w.heads, "\r\n")
		if line != "GET "+target+" HTTP/1.1" {
			t.Errorf("%s: the container got %q", target, line)
		}
		lines := strings.Split(rest, "\r\n")
		set := map[string]bool{}
		for _, l := range lines {
			set[l] = true
		}
		return fmt.Sprint(set)
	}
	first := fields("/a")
	for _, want := range []string{"Cookie: code-server-session=secret; other=1", "X-Forwarded-For: 127.0.0.1", "Host: " + c.host} {
		if !strings.Contains(first, want) {
			t.Errorf("no %q in %s", want, first)
		}
	}
	for _, target := range []string{"/b", "/_static/out/x.js?a=b&c=%20;'\"", "/a/b-c_d.e/", "/x?"} {
		before := w.handled.Load()
		if got := fields(target); got != first {
			t.Errorf("%s: %s, want %s", target, got, first)
		}
		if w.handled.Load() != before {
			t.Errorf("%s: the handler served it", target)
		}
	}
	for _, target := range []string{"/", "/?folder=/home", "/_codehub/ide.js", "/_codehub", "/a//b", "/a/../b", "/a/./b", "/%61", "/a;b", "/.a", "//a", "/a b", "/a#b", "/ä",
		"/proxy/61080/x", "/PROXY/8080/x", "/absproxy/061080/x", "/proxy/8080"} {
		before := w.handled.Load()
		c.send(target)
		// A target that is no part of a plain request is refused by net/http.
		if c.see(); w.handled.Load() == before && !strings.ContainsAny(target, " ä") {
			t.Errorf("%s: the handler did not serve it", target)
		}
		c = w.client(t) // it may be closed
		c.send("/a")
		c.see()
		for len(w.heads) > 0 {
			<-w.heads
		}
	}
}

// What the container sends arrives before the rest is sent.
func TestRepeatedResponseStreams(t *testing.T) {
	t.Parallel()
	w := newRepeatWorld(t)
	c := w.client(t)
	c.send("/a")
	c.see()
	w.reply.Store("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n" + pause + "4\r\nlast\r\n0\r\n\r\n")
	w.rest = make(chan struct{})
	before := w.handled.Load()
	c.send("/b")
	res, err := http.ReadResponse(c.in, nil)
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 5)
	if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != "first" {
		t.Fatalf("%q, %v", first, err)
	}
	close(w.rest)
	if last, err := io.ReadAll(res.Body); err != nil || string(last) != "last" || w.handled.Load() != before {
		t.Errorf("%q, %v, %d requests by the handler", last, err, w.handled.Load()-before)
	}
}

// What the IDE's page gets in addition does not go to the targets after it.
func TestPageIsNotRepeated(t *testing.T) {
	t.Parallel()
	w := newRepeatWorld(t)
	c := w.client(t)
	before := w.handled.Load()
	for range 2 {
		c.send("/")
		c.see()
	}
	c.send("/a")
	c.see()
	if n := w.handled.Load() - before; n != 3 {
		t.Errorf("the handler served %d of 3 requests", n)
	}
}

// What can change between two requests is asked each time.
func TestRepeatedRequestIsChecked(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(w *repeatWorld)
		status string
		config func(*Config)
	}{
		"stopped": {func(w *repeatWorld) {
			ws := w.store.row(wsA)
			ws.Phase, ws.DesiredState = "STANDBY", "STANDBY"
			w.store.put(ws)
			w.proxy.Invalidate(wsA)
		}, "503 Service Unavailable", nil},
		"another owner": {func(w *repeatWorld) {
			ws := w.store.row(wsA)
			ws.OwnerID = bob
			w.store.put(ws)
			w.proxy.Invalidate(wsA)
		}, "403 Forbidden", nil},
		"another container": {func(w *repeatWorld) {
			w.runtime.put(wsA, w.container(w.t, "another"))
			w.proxy.Invalidate(wsA)
		}, "200 OK", nil},
		"logged out":    {func(w *repeatWorld) { w.revoked.Store(true) }, "401 Unauthorized", nil},
		"shutting down": {func(w *repeatWorld) { w.proxy.open.refusing.Store(true) }, "503 Service Unavailable", nil},
		"too many of the user": {func(w *repeatWorld) {
			w.proxy.open.shard(ann).enter(ann, 0)
		}, "429 Too Many Requests", func(c *Config) { c.Settings.RequestsPerUser = 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRepeatWorld(t, func(c *Config) {
				if test.config != nil {
					test.config(c)
				}
			})
			c := w.client(t)
			for range 2 {
				c.send("/a")
				if got := c.see(); got.Status != "200 OK" {
					t.Fatalf("before: %+v", got)
				}
				<-w.heads
			}
			// A request that the proxy still counts would end with the change.
			harness.EventuallyWithin(t, patience, "nothing is open", func() bool { return w.proxy.OpenConnections() == 0 })
			test.change(w)
			c.send("/a")
			if got := c.see(); got.Status != test.status {
				t.Errorf("%+v, want %s", got, test.status)
			}
			if len(w.heads) > 0 && !strings.Contains(<-w.heads, "code-server-session=another") {
				t.Error("the container before it got the request")
			}
		})
	}
}

// A repeated request that waits ends with its route, its session and its client, and its
// connection to the container is not used again.
func TestRepeatedRequestEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *repeatWorld, c *client){
		"route":   func(w *repeatWorld, _ *client) { w.proxy.CloseRoute(wsA) },
		"session": func(w *repeatWorld, _ *client) { w.sessions.end("ann-1") },
		"client":  func(_ *repeatWorld, c *client) { c.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRepeatWorld(t)
			c := w.client(t)
			c.send("/a")
			c.see()
			<-w.heads
			w.wait = make(chan struct{})
			defer close(w.wait)
			c.send("/b")
			<-w.heads
			end(w, c)
			if name != "client" {
				if got := c.see(); got.Status != "none" {
					t.Errorf("%+v", got)
				}
			}
			harness.EventuallyWithin(t, patience, "the request has ended", func() bool { return w.proxy.OpenConnections() == 0 })
		})
	}
}

// Repeated requests query neither the database nor the runtime, and register nothing.
func TestRepeatedRequestsMakeNoQueries(t *testing.T) {
	t.Parallel()
	w := newRepeatWorld(t, func(c *Config) { c.CheckInterval = time.Hour })
	c := w.client(t)
	ask := func() {
		c.send("/a")
		if got := c.see(); got.Status != "200 OK" {
			t.Fatalf("%+v", got)
		}
		<-w.heads
	}
	ask()
	reads, _ := w.store.counts()
	asks, watched, handled := w.runtime.count(), w.sessions.count("ann-1"), w.handled.Load()
	for range 50 {
		ask()
	}
	if n, _ := w.store.counts(); n != reads || w.runtime.count() != asks || w.sessions.count("ann-1") != watched || w.handled.Load() != handled {
		t.Errorf("50 requests: %d reads of the database, %d of the runtime, %d registrations of the session, %d by the handler",
			n-reads, w.runtime.count()-asks, w.sessions.count("ann-1")-watched, w.handled.Load()-handled)
	}
}
