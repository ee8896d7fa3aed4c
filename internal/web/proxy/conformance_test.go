package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"codehub/internal/testing/harness"
)

// conformance are properties of every good gateway.
var conformance = []struct {
	name string
	// http1 is about HTTP/1.1 itself. without names gateways that are known not to do
	// this, for reasons of their own.
	http1   bool
	without string
	run     func(t *testing.T, g *gateway)
}{
	{"status and headers", false, "", testStatusAndHeaders},
	{"HEAD", false, "", testHead},
	{"ranges and conditions", false, "", testRanges},
	{"large upload with a length", false, "", func(t *testing.T, g *gateway) { testUpload(t, g, true) }},
	{"large upload in chunks", false, "", func(t *testing.T, g *gateway) { testUpload(t, g, false) }},
	{"large download with a length", false, "", func(t *testing.T, g *gateway) { testDownload(t, g, true, 0) }},
	{"large download by a slow client", false, "", func(t *testing.T, g *gateway) { testDownload(t, g, true, time.Millisecond) }},
	{"large download in chunks", false, "", func(t *testing.T, g *gateway) { testDownload(t, g, false, 0) }},
	{"upload is not buffered", false, "", testUploadStreams},
	{"events are not buffered", false, "", testEvents},
	{"both directions at once", false, "nginx", testFullDuplex}, // nginx: reads the response after the request
	{"Expect: 100-continue", false, "", testContinue},
	{"Expect: 100-continue, refused", true, "nginx", testContinueRefused}, // nginx: sends 100 itself
	{"early response", true, "", testEarlyResponse},
	{"trailers of a response", false, "nginx", testResponseTrailer}, // nginx 1.22: drops them
	{"trailers of a request", false, "nginx", testRequestTrailer},
	{"early hints", false, "nginx", testEarlyHints},
	{"response that breaks off", false, "", testBrokenResponse},
	{"response without a length", false, "", testResponseUntilClose},
	{"client that leaves", false, "", testClientLeaves},
	{"client that leaves during an upload", false, "", testClientLeavesUpload},
	{"WebSocket with compression", true, "", testCompressedWebSocket},
	{"keep-alive", true, "", testKeepAlive},
}

// The cases run against codehub over HTTP/1.1 and HTTP/2, and against nginx and the IDE
// itself, which shows that the cases are right.
func TestGatewayConformance(t *testing.T) {
	t.Parallel()
	for _, g := range gateways(t) {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			for _, test := range conformance {
				if test.http1 && g.http2 || g.name == test.without {
					continue
				}
				t.Run(test.name, func(t *testing.T) {
					g.t = t
					test.run(t, g)
				})
			}
		})
	}
}

func testStatusAndHeaders(t *testing.T, g *gateway) {
	var got received
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		got = received{r.Method, r.RequestURI, r.Host, r.Header.Clone()}
		w.Header()["Set-Cookie"] = []string{"a=1", "b=2"}
		w.Header().Set("X-Long", strings.Repeat("x", 3000))
		status, _ := strconv.Atoi(r.URL.Query().Get("status"))
		w.WriteHeader(status)
	}
	for _, status := range []int{200, 201, 204, 206, 301, 304, 400, 404, 418, 500, 503, 599} {
		res := g.get("/?status="+strconv.Itoa(status), "X-App", "1", "Accept-Encoding", "br")
		if res.StatusCode != status || len(res.Header["Set-Cookie"]) != 2 || len(res.Header.Get("X-Long")) != 3000 {
			t.Errorf("%d: %s %v", status, res.Status, res.Header)
		}
		if body := g.text(res); body != "" {
			t.Errorf("%d: %q", status, body)
		}
		if got.Host != g.host || got.Header.Get("X-App") != "1" || got.Header.Get("Accept-Encoding") != "br" || got.Header.Get("Connection") != "" {
			t.Errorf("the IDE received %+v", got)
		}
	}
}

func testHead(t *testing.T, g *gateway) {
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "12345")
		w.Header().Set("X-Method", r.Method)
	}
	for range 2 { // the second on the same connection
		res := g.do(g.request(http.MethodHead, "/", nil))
		if res.StatusCode != 200 || res.ContentLength != 12345 || res.Header.Get("X-Method") != "HEAD" || g.text(res) != "" {
			t.Errorf("%s %v", res.Status, res.Header)
		}
	}
}

func testRanges(t *testing.T, g *gateway) {
	content := bytes.Repeat([]byte("0123456789"), 1000)
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		http.ServeContent(w, r, "x.bin", time.Time{}, bytes.NewReader(content))
	}
	res := g.get("/", "Range", "bytes=10-19")
	if res.StatusCode != 206 || res.Header.Get("Content-Range") != "bytes 10-19/10000" || g.text(res) != "0123456789" {
		t.Errorf("%s %v", res.Status, res.Header)
	}
	if res = g.get("/", "Range", "bytes=0-1,100-101"); res.StatusCode != 206 || !strings.HasPrefix(res.Header.Get("Content-Type"), "multipart/byteranges") {
		t.Errorf("%s %v", res.Status, res.Header)
	}
	if res = g.get("/", "Range", "bytes=20000-"); res.StatusCode != 416 {
		t.Error(res.Status)
	}
	if res = g.get("/", "If-None-Match", `"v1"`); res.StatusCode != 304 || g.text(res) != "" {
		t.Error(res.Status)
	}
	if res = g.get("/", "Range", "bytes=10-19", "If-Range", `"v2"`); res.StatusCode != 200 || len(g.text(res)) != len(content) {
		t.Error(res.Status)
	}
}

// large is the size of bodies, more than any buffer on the way.
const large = 16 << 20

// random is a reader of pseudorandom bytes that also computes their digest.
type random struct {
	r    *rand.ChaCha8
	left int
	sum  hash.Hash
}

func newRandom(n int) *random { return &random{rand.NewChaCha8([32]byte{1}), n, sha256.New()} }

func (r *random) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n, _ := r.r.Read(p[:min(len(p), r.left)])
	r.left -= n
	r.sum.Write(p[:n])
	return n, nil
}

func testUpload(t *testing.T, g *gateway, length bool) {
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, err := io.Copy(sum, r.Body)
		if err != nil || (r.ContentLength >= 0) != length {
			w.WriteHeader(http.StatusBadRequest)
		}
		fmt.Fprintf(w, "%d %x", n, sum.Sum(nil))
	}
	body := newRandom(large)
	r := g.request(http.MethodPut, "/", body)
	if length {
		r.ContentLength = large
	}
	res := g.do(r)
	if got, want := g.text(res), fmt.Sprintf("%d %x", large, body.sum.Sum(nil)); res.StatusCode != 200 || got != want {
		t.Errorf("%s %s, want %s", res.Status, got, want)
	}
}

// pausing is a reader that pauses before each read.
type pausing struct {
	io.Reader
	pause time.Duration
}

func (p pausing) Read(b []byte) (int, error) {
	time.Sleep(p.pause)
	return p.Reader.Read(b)
}

func testDownload(t *testing.T, g *gateway, length bool, pause time.Duration) {
	var body *random
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		body = newRandom(large)
		if length {
			w.Header().Set("Content-Length", strconv.Itoa(large))
		}
		_, _ = io.Copy(w, body)
	}
	res := g.get("/")
	sum := sha256.New()
	n, err := io.Copy(sum, pausing{res.Body, pause})
	if n != large || err != nil || !bytes.Equal(sum.Sum(nil), body.sum.Sum(nil)) || length != (res.ContentLength == large) {
		t.Errorf("%d bytes, length %d: %v", n, res.ContentLength, err)
	}
}

// The IDE receives each part before the next is sent, also after longer than any other
// request may take.
func testUploadStreams(t *testing.T, g *gateway) {
	parts := make(chan string)
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		in := bufio.NewReader(r.Body)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			parts <- line
		}
	}
	body, out := io.Pipe()
	done := make(chan *http.Response, 1)
	go func() {
		res, err := g.client.Transport.RoundTrip(g.request(http.MethodPost, "/", body))
		if err != nil {
			t.Error(err)
			res = nil
		}
		done <- res
	}()
	for n := range 2 {
		time.Sleep(time.Duration(n) * shortRequests * 4 / 3)
		line := fmt.Sprintf("part %d\n", n)
		if _, err := io.WriteString(out, line); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-parts:
			if got != line {
				t.Errorf("%q", got)
			}
		case <-time.After(patience):
			t.Fatal("the part did not arrive")
		}
	}
	out.Close()
	if res := <-done; res == nil || res.StatusCode != 200 {
		t.Errorf("%v", res)
	} else {
		res.Body.Close()
	}
}

func testEvents(t *testing.T, g *gateway) {
	next := make(chan string)
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			_ = http.NewResponseController(w).Flush()
			select {
			case s := <-next:
				fmt.Fprintf(w, "data: %s\n\n", s)
			case <-r.Context().Done():
				return
			}
		}
	}
	res := g.get("/", "Accept", "text/event-stream")
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s %v", res.Status, res.Header)
	}
	in := bufio.NewReader(res.Body)
	for n := range 2 {
		time.Sleep(time.Duration(n) * shortRequests * 4 / 3)
		next <- strconv.Itoa(n)
		if line, err := in.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", n) {
			t.Fatalf("%q %v", line, err)
		}
		_, _ = in.ReadString('\n')
	}
}

func testFullDuplex(t *testing.T, g *gateway) {
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		w.Header().Set("Content-Length", "18") // known, and streamed nevertheless
		w.WriteHeader(http.StatusOK)
		_ = rc.Flush()
		in := bufio.NewReader(r.Body)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = io.WriteString(w, strings.ToUpper(line))
			_ = rc.Flush()
		}
	}
	body, out := io.Pipe()
	defer out.Close()
	res := g.do(g.request(http.MethodPost, "/", body))
	in := bufio.NewReader(res.Body)
	for range 3 {
		if _, err := io.WriteString(out, "hello\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := in.ReadString('\n'); err != nil || line != "HELLO\n" {
			t.Fatalf("%q %v", line, err)
		}
	}
}

func testContinue(t *testing.T, g *gateway) {
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
	}
	asked := false
	r := g.request(http.MethodPost, "/", strings.NewReader("hello"), "Expect", "100-continue")
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got100Continue: func() { asked = true }}))
	res := g.do(r)
	if res.StatusCode != 200 || g.text(res) != "hello" || !asked {
		t.Errorf("%s, asked to continue: %v", res.Status, asked)
	}
}

func testContinueRefused(t *testing.T, g *gateway) {
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusRequestEntityTooLarge) }
	sent := false
	body := readFunc(func(p []byte) (int, error) { sent = true; return 0, io.EOF })
	r := g.request(http.MethodPost, "/", body, "Expect", "100-continue")
	r.ContentLength = 1 << 40
	if res := g.do(r); res.StatusCode != http.StatusRequestEntityTooLarge || sent {
		t.Errorf("%s, body sent: %v", res.Status, sent)
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// The IDE responds before it has read the body, of which the client has sent a part.
func testEarlyResponse(t *testing.T, g *gateway) {
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, "no")
		_ = http.NewResponseController(w).Flush()
	}
	conn, in := g.dial("POST /", "Content-Length", "100000000")
	if _, err := conn.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if g.name == "none" {
		_ = conn.CloseWrite() // net/http reads the body first
	}
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); res.StatusCode != http.StatusConflict || string(b) != "no" {
		t.Errorf("%s %q %v", res.Status, b, err)
	}
}

func testResponseTrailer(t *testing.T, g *gateway) {
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "hello")
		w.Header().Set("X-Sum", "5")
		w.Header().Set(http.TrailerPrefix+"X-Late", "1")
	}
	res := g.get("/", "TE", "trailers")
	if got := g.text(res); got != "hello" || res.Trailer.Get("X-Sum") != "5" || res.Trailer.Get("X-Late") != "1" {
		t.Errorf("%q %v", got, res.Trailer)
	}
}

func testRequestTrailer(t *testing.T, g *gateway) {
	got := make(chan http.Header, 1)
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got <- r.Trailer
	}
	r := g.request(http.MethodPost, "/", io.MultiReader(strings.NewReader("hello")))
	r.Trailer = http.Header{"X-Sum": {"5"}}
	g.do(r)
	if trailer := <-got; trailer.Get("X-Sum") != "5" {
		t.Errorf("%v", trailer)
	}
}

func testEarlyHints(t *testing.T, g *gateway) {
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</x>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
	}
	hints := 0
	r := g.request(http.MethodGet, "/", nil)
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		if code == http.StatusEarlyHints && h.Get("Link") != "" {
			hints++
		}
		return nil
	}}))
	if res := g.do(r); res.StatusCode != 200 || hints != 1 {
		t.Errorf("%s, %d hints", res.Status, hints)
	}
}

func testBrokenResponse(t *testing.T, g *gateway) {
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		path, begun := r.URL.Path, 5
		if strings.HasSuffix(path, "/large") {
			path, begun = strings.TrimSuffix(path, "/large"), large/2
		}
		if path == "/length" {
			w.Header().Set("Content-Length", strconv.Itoa(large))
		}
		_, _ = io.CopyN(w, newRandom(begun), int64(begun))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	for _, path := range []string{"/length", "/chunks", "/length/large", "/chunks/large"} {
		res := g.get(path)
		if b, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("%s: %d bytes look complete", path, len(b))
		}
	}
}

func testResponseUntilClose(t *testing.T, g *gateway) {
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end")
	}
	if res := g.get("/"); res.StatusCode != 200 || g.text(res) != "until the end" {
		t.Error(res.Status)
	}
}

func testClientLeaves(t *testing.T, g *gateway) {
	left := make(chan struct{})
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, "x")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond)
		}
		close(left)
	}
	ctx, cancel := context.WithCancel(t.Context())
	g.do(g.request(http.MethodGet, "/", nil).WithContext(ctx))
	cancel()
	await(t, left, "the IDE learns that the client has left")
}

func testClientLeavesUpload(t *testing.T, g *gateway) {
	begun, left := make(chan struct{}), make(chan struct{})
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		_, _ = r.Body.Read(make([]byte, 1))
		close(begun)
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			close(left)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	body, out := io.Pipe()
	defer out.Close()
	go func() {
		if res, err := g.client.Transport.RoundTrip(g.request(http.MethodPost, "/", body).WithContext(ctx)); err == nil {
			res.Body.Close()
		}
	}()
	if _, err := io.WriteString(out, "hello"); err != nil {
		t.Fatal(err)
	}
	await(t, begun, "the upload has begun")
	cancel()
	await(t, left, "the IDE learns that the upload is incomplete")
}

func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("not true: %s", what)
	}
}

func testCompressedWebSocket(t *testing.T, g *gateway) {
	g.ide.handle = nil
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, res, err := websocket.Dial(ctx, g.base.String()+"/ws", &websocket.DialOptions{
		HTTPHeader:      http.Header{"Cookie": {g.cookies()}, "Origin": {"http://" + g.host}},
		Host:            g.host,
		CompressionMode: websocket.CompressionContextTakeover,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if !strings.Contains(res.Header.Get("Sec-Websocket-Extensions"), "permessage-deflate") {
		t.Errorf("extensions %q", res.Header["Sec-Websocket-Extensions"])
	}
	conn.SetReadLimit(-1)
	for _, message := range []string{"", "hello", strings.Repeat("compressible ", 100_000)} {
		if err := conn.Write(ctx, websocket.MessageText, []byte(message)); err != nil {
			t.Fatal(err)
		}
		if _, b, err := conn.Read(ctx); err != nil || string(b) != message {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
	}
	if err := conn.Close(websocket.StatusNormalClosure, "bye"); err != nil {
		t.Error(err)
	}
	harness.EventuallyWithin(t, patience, "the IDE's end is closed", func() bool { return g.ide.sockets.Load() == 0 })
}

// Requests of every kind follow each other on one connection.
func testKeepAlive(t *testing.T, g *gateway) {
	g.ide.handle = func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, "%s %d", r.Method, len(b))
	}
	conn, in := g.dial("GET /")
	requests := []string{"GET 0"}
	head := fmt.Sprintf(" %s/ HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\n", g.base.Path, g.host, g.cookies())
	for range 3 {
		_, err := io.WriteString(conn, "POST"+head+"Content-Length: 5\r\n\r\na\nb\r\n"+
			"PUT"+head+"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\na\nb\r\n0\r\nX: y\r\n\r\n"+"DELETE"+head+"\r\n")
		if err != nil {
			t.Fatal(err)
		}
		requests = append(requests, "POST 5", "PUT 3", "DELETE 0")
	}
	var got []string
	for range requests {
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("%v, after %q", err, got)
		}
		b, err := io.ReadAll(res.Body)
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		got = append(got, string(b))
	}
	if !slices.Equal(got, requests) {
		t.Errorf("%q, want %q", got, requests)
	}
}
