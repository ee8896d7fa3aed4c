package shortway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/testing/harness"
)

// backend is a pool and the number of its connections.
type backend struct {
	*Pool
	dials atomic.Int64
}

// newServer returns a pool whose connections are served by serve, which gets the number
// of the connection, from 1.
func newServer(t *testing.T, serve func(n int, c net.Conn, in *bufio.Reader)) *backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wait.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(harness.Patience))
				serve(n, c, bufio.NewReader(c))
			})
		}
	})
	s := &backend{}
	s.Pool = &Pool{IdleTimeout: time.Minute, MaxIdle: 4, MaxHeader: 4 << 10, Dial: func(ctx context.Context) (net.Conn, error) {
		s.dials.Add(1)
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	}}
	t.Cleanup(func() {
		l.Close()
		s.Close()
		wait.Wait()
	})
	return s
}

// answers answers each request of a connection with the same text.
func answers(text string) func(int, net.Conn, *bufio.Reader) {
	return func(_ int, c net.Conn, in *bufio.Reader) {
		for {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
		}
	}
}

func request(ctx context.Context, t *testing.T, method string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://ide/a%2Fb?c=d", nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func none(int, http.Header) error { return errors.New("an informational response") }

func (s *backend) get(t *testing.T) string {
	t.Helper()
	res, err := s.Send(request(t.Context(), t, http.MethodGet), none)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const hello = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"

func TestConnectionIsUsedAgain(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"length": hello, "chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n",
	} {
		s := newServer(t, answers(text))
		for range 3 {
			if got := s.get(t); got != "hello" {
				t.Errorf("%s: %q", name, got)
			}
		}
		if n := s.dials.Load(); n != 1 {
			t.Errorf("%s: %d connections", name, n)
		}
	}
}

func TestConnectionIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"close":                    strings.Replace(hello, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1),
		"HTTP/1.0":                 strings.Replace(hello, "HTTP/1.1", "HTTP/1.0", 1),
		"more than the response":   hello + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
		"more than a 204 response": "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
	} {
		s := newServer(t, answers(text))
		for range 3 {
			if got := s.get(t); got != "hello" && got != "" {
				t.Errorf("%s: %q", name, got)
			}
		}
		if n := s.dials.Load(); n != 3 {
			t.Errorf("%s: %d connections", name, n)
		}
	}
	s := newServer(t, answers(hello))
	for range 2 { // not read to the end
		res, err := s.Send(request(t.Context(), t, http.MethodGet), none)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	if n := s.dials.Load(); n != 2 {
		t.Errorf("not read to the end: %d connections", n)
	}
}

// A connection that the other side has closed meanwhile costs a new connection, not the
// request. On a new connection a failure is not repeated.
func TestClosedConnection(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(n int, c net.Conn, in *bufio.Reader) {
		if _, err := http.ReadRequest(in); err != nil {
			return
		}
		_, _ = io.WriteString(c, hello)
	})
	for range 3 {
		if got := s.get(t); got != "hello" {
			t.Errorf("%q", got)
		}
	}
	fails := newServer(t, func(_ int, _ net.Conn, in *bufio.Reader) { _, _ = http.ReadRequest(in) })
	if _, err := fails.Send(request(t.Context(), t, http.MethodGet), none); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	begins := newServer(t, func(_ int, c net.Conn, in *bufio.Reader) {
		if _, err := http.ReadRequest(in); err == nil {
			_, _ = io.WriteString(c, hello[:10])
		}
	})
	if _, err := begins.Send(request(t.Context(), t, http.MethodGet), none); err == nil || begins.dials.Load() != 1 {
		t.Errorf("after a part of the header: %v, %d connections", err, begins.dials.Load())
	}
}

func TestResponseHeaders(t *testing.T) {
	t.Parallel()
	hints := "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
	s := newServer(t, answers(hints+hello))
	codes := []int{}
	res, err := s.Send(request(t.Context(), t, http.MethodGet), func(code int, h http.Header) error {
		codes = append(codes, code)
		if h.Get("Link") != "</x>" {
			t.Error(h)
		}
		return nil
	})
	if err != nil || res.StatusCode != 200 || len(codes) != 1 || codes[0] != 103 {
		t.Fatalf("%v %v", codes, err)
	}
	res.Body.Close()
	if _, err := s.Send(request(t.Context(), t, http.MethodGet), none); err == nil || !strings.Contains(err.Error(), "an informational response") {
		t.Error(err)
	}
	for name, test := range map[string]struct {
		text string
		want error
	}{
		"too large":                {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 5<<10) + "\r\n\r\n", errHeaderTooLarge},
		"endless hints":            {strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 1000) + hello, errHeaderTooLarge},
		"another protocol":         {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", errSwitched},
		"nothing that is HTTP":     {"hello there, this is not HTTP\r\n\r\n", nil},
		"length and coding differ": {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", nil},
	} {
		s := newServer(t, answers(test.text))
		res, err := s.Send(request(t.Context(), t, http.MethodGet), none)
		if err == nil {
			res.Body.Close()
		}
		if err == nil || test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The limit is for the header alone.
	large := newServer(t, answers("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("x", 100000)))
	if got := large.get(t); len(got) != 100000 {
		t.Errorf("%d bytes", len(got))
	}
	head := newServer(t, answers("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"))
	for range 2 {
		res, err := head.Send(request(t.Context(), t, http.MethodHead), none)
		if err != nil || res.ContentLength != 100000 {
			t.Fatal(res, err)
		}
		res.Body.Close()
	}
	if n := head.dials.Load(); n != 1 {
		t.Errorf("HEAD: %d connections", n)
	}
}

// The end of the request's context ends it, wherever it is.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	reason := errors.New("the session has ended")
	for _, text := range []string{"", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"} {
		gone := make(chan struct{})
		began := make(chan struct{})
		s := newServer(t, func(_ int, c net.Conn, in *bufio.Reader) {
			_, _ = http.ReadRequest(in)
			_, _ = io.WriteString(c, text)
			close(began)
			_, _ = in.ReadByte() // until it is closed
			close(gone)
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { <-began; cancel(reason) }()
		res, err := s.Send(request(ctx, t, http.MethodGet), none)
		if err == nil {
			_, err = io.ReadAll(res.Body)
			res.Body.Close()
		}
		if !errors.Is(err, reason) {
			t.Errorf("after %q: %v", text, err)
		}
		<-gone
	}
}

func TestRequestHead(t *testing.T) {
	t.Parallel()
	r := request(t.Context(), t, http.MethodGet)
	r.Header = http.Header{"Cookie": {"a=1", "b=2"}}
	b, err := appendHead(nil, r, false)
	if want := "GET /a%2Fb?c=d HTTP/1.1\r\nHost: ide\r\nCookie: a=1\r\nCookie: b=2\r\n\r\n"; err != nil || string(b) != want {
		t.Errorf("%q %v", b, err)
	}
	for _, change := range []func(*http.Request){
		func(r *http.Request) { r.Header.Set("X", "a\r\nb: c") },
		func(r *http.Request) { r.Header["X\r\nY"] = []string{"a"} },
		func(r *http.Request) { r.Header["X: y"] = []string{"a"} },
		func(r *http.Request) { r.Host = "a\r\nb" },
		func(r *http.Request) { r.Host = "a b" },
		func(r *http.Request) { r.Header.Set("Host", "b") },
		func(r *http.Request) { r.Header.Set("Content-Length", "5") },
		func(r *http.Request) { r.Header.Set("Transfer-Encoding", "chunked") },
		func(r *http.Request) { r.URL.RawQuery = "a\nb" },
		func(r *http.Request) { r.Method = "GET /" },
	} {
		r := request(t.Context(), t, http.MethodGet)
		change(r)
		if b, err := appendHead(nil, r, false); !errors.Is(err, errInvalidRequest) {
			t.Errorf("%q %v", b, err)
		}
	}
}

// Idle connections are closed after IdleTimeout, and at most MaxIdle are kept.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	var open atomic.Int64
	s := newServer(t, func(_ int, c net.Conn, in *bufio.Reader) {
		open.Add(1)
		defer open.Add(-1)
		answers(hello)(0, c, in)
	})
	s.IdleTimeout = 20 * time.Millisecond
	var bodies []*http.Response
	for range 6 {
		res, err := s.Send(request(t.Context(), t, http.MethodGet), none)
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, res)
	}
	for _, res := range bodies {
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	s.mu.Lock()
	if n := len(s.idle); n > s.MaxIdle {
		t.Errorf("%d connections are kept", n)
	}
	s.mu.Unlock()
	harness.Eventually(t, "they are closed", func() bool { return open.Load() == 0 })
}

// A connection is not used after the time that the other side announces.
func TestAnnouncedTimeout(t *testing.T) {
	t.Parallel()
	p := &Pool{IdleTimeout: time.Minute}
	for line, want := range map[string]time.Duration{
		"": time.Minute, "timeout=5": 4 * time.Second, "max=100, timeout=5": 4 * time.Second, "timeout=600": time.Minute,
		"timeout=x": time.Minute, "timeout=99999999": time.Minute, "timeout=1": 0, "timeout=0": -time.Second,
	} {
		if got := p.keep(http.Header{"Keep-Alive": {line}}); got != want {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
	s := newServer(t, answers(strings.Replace(hello, "\r\n\r\n", "\r\nKeep-Alive: timeout=1\r\n\r\n", 1)))
	for range 3 {
		s.get(t)
	}
	if n := s.dials.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
}

// A closed pool keeps no connection of a request that was under way.
func TestClosedPool(t *testing.T) {
	t.Parallel()
	s := newServer(t, answers(hello))
	s.get(t)
	res, err := s.Send(request(t.Context(), t, http.MethodGet), none)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if b, err := io.ReadAll(res.Body); string(b) != "hello" || err != nil {
		t.Error(string(b), err)
	}
	res.Body.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle) != 0 {
		t.Errorf("%d connections are kept", len(s.idle))
	}
}

// What comes on an idle connection is not the response to the next request.
func TestUnsolicitedResponse(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]string{"response": "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", "half of one": "HT"} {
		next := make(chan struct{})
		s := newServer(t, func(_ int, c net.Conn, in *bufio.Reader) {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			_, _ = io.WriteString(c, hello)
			<-next
			_, _ = io.WriteString(c, late)
			next <- struct{}{}
			_, _ = in.ReadByte()
		})
		for range 2 {
			if got := s.get(t); got != "hello" {
				t.Errorf("%s: %q", name, got)
			}
			next <- struct{}{}
			<-next
			s.mu.Lock()
			c := s.idle[0]
			s.mu.Unlock()
			harness.Eventually(t, "it has arrived", func() bool { return !c.quiet() })
		}
		if n := s.dials.Load(); n != 2 {
			t.Errorf("%s: %d connections", name, n)
		}
	}
}

// A request whose context has ended is not sent.
func TestEndedContext(t *testing.T) {
	t.Parallel()
	s := newServer(t, answers(hello))
	s.get(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Send(request(ctx, t, http.MethodGet), none); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle) != 1 {
		t.Error("the connection was used")
	}
}

// A part of a body that ends with the beginning of the next chunk is not held back.
func TestWaits(t *testing.T) {
	t.Parallel()
	const head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, rest := range []string{"", "\r", "\r\n", "\r\n5", "\r\n5\r"} {
		next := make(chan struct{})
		s := newServer(t, func(_ int, c net.Conn, in *bufio.Reader) {
			_, _ = http.ReadRequest(in)
			_, _ = io.WriteString(c, head+"5\r\nhello"+rest)
			<-next
			_, _ = io.WriteString(c, strings.TrimPrefix("\r\n5\r\nthere\r\n0\r\n\r\n", rest))
		})
		res, err := s.Send(request(t.Context(), t, http.MethodGet), none)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		n, err := res.Body.Read(b)
		if string(b[:n]) != "hello" || err != nil {
			t.Errorf("%q: %q %v", rest, b[:n], err)
		}
		if !res.Body.(*body).Waits() {
			t.Errorf("after %q: it does not wait", rest)
		}
		close(next)
		if rest, err := io.ReadAll(res.Body); string(rest) != "there" || err != nil {
			t.Errorf("%q %v", rest, err)
		}
		res.Body.Close()
	}
}
