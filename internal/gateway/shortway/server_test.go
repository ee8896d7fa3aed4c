package shortway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/gateway/inbound"
	"codehub/internal/testing/harness"
)

// plainServer is a server with Plain in front.
type plainServer struct {
	*Server
	t       testing.TB
	address string
}

// newPlainServer serves h, and with plain also by Plain.
func newPlainServer(t testing.TB, plain bool, h http.HandlerFunc, change ...func(*http.Server)) *plainServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := inbound.Settings{RequestTimeout: time.Hour, IdleTimeout: time.Hour}.Server(h)
	srv.ErrorLog = log.New(io.Discard, "", 0)
	for _, f := range change {
		f(srv)
	}
	s := &plainServer{Server: &Server{HTTP: srv, Serves: func(string, string) bool { return plain }}, t: t, address: l.Addr().String()}
	under := s.Listen(l)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(under); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		srv.Close()
		_ = s.Shutdown(now)
		<-done
	})
	return s
}

func (s *plainServer) dial() (net.Conn, *bufio.Reader) {
	s.t.Helper()
	c, err := net.Dial("tcp", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	return c, bufio.NewReader(c)
}

// byPlain reports whether Plain serves the request.
func byPlain(w http.ResponseWriter) bool {
	_, ok := w.(*plainWriter)
	return ok
}

// seen is a response as its client sees it.
type seen struct {
	Hints    []string
	Status   string
	Header   http.Header
	Length   int64
	Coding   []string
	Body     string
	Whole    bool
	Trailer  http.Header
	Close    bool
	NextFrom string // the body of the next response on this connection; empty if it was closed
}

func (s *plainServer) see(method, target string) (got seen) {
	s.t.Helper()
	c, in := s.dial()
	_, _ = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: a.b\r\n\r\n", method, target)
	for {
		res, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			got.Status = "none"
			return got
		}
		if res.StatusCode < 200 {
			got.Hints = append(got.Hints, fmt.Sprint(res.StatusCode, res.Header))
			continue
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if res.Header.Get("Date") == "" {
			s.t.Errorf("%s %s: no date", method, target)
		}
		res.Header.Del("Date")
		got.Status, got.Header, got.Length, got.Coding = res.Status, res.Header, res.ContentLength, res.TransferEncoding
		got.Body, got.Whole, got.Trailer, got.Close = string(b), err == nil, res.Trailer, res.Close
		break
	}
	_, _ = io.WriteString(c, "GET /next HTTP/1.1\r\nHost: a.b\r\n\r\n")
	if res, err := http.ReadResponse(in, nil); err == nil {
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		got.NextFrom = string(b)
	}
	return got
}

// Plain writes the same responses as net/http, for each of these handlers.
func TestPlainResponses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long ", 4000)
	write := func(w http.ResponseWriter, s string) { _, _ = io.WriteString(w, s) }
	flush := func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }
	handlers := map[string]http.HandlerFunc{
		"nothing": func(http.ResponseWriter, *http.Request) {},
		"short":   func(w http.ResponseWriter, _ *http.Request) { write(w, "short") },
		"html":    func(w http.ResponseWriter, _ *http.Request) { write(w, "<html>") },
		"encoded": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			write(w, "<html>")
		},
		"long":           func(w http.ResponseWriter, _ *http.Request) { write(w, long) },
		"parts":          func(w http.ResponseWriter, _ *http.Request) { write(w, "a"); write(w, long); write(w, "b") },
		"flushed":        func(w http.ResponseWriter, _ *http.Request) { write(w, "a"); flush(w); write(w, "b"); flush(w) },
		"flushed early":  func(w http.ResponseWriter, _ *http.Request) { flush(w); write(w, "a") },
		"flushed, empty": func(w http.ResponseWriter, _ *http.Request) { flush(w) },
		"length":         func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "5"); write(w, "short") },
		"length of 0":    func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "0") },
		"long length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "20000")
			write(w, long)
		},
		"too little": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "9"); write(w, "short") },
		"too much": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "3")
			if _, err := io.WriteString(w, "short"); !errors.Is(err, http.ErrContentLength) {
				t.Error(err)
			}
			write(w, "abc")
		},
		"closes": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close"); write(w, "bye") },
		"hints": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</x>")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusAccepted)
			w.WriteHeader(http.StatusConflict) // too late
			write(w, "x")
		},
		"trailers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			write(w, "hello")
			w.Header().Set("X-Sum", "5")
			w.Header().Set(http.TrailerPrefix+"X-Late", "1")
		},
		"late trailer": func(w http.ResponseWriter, _ *http.Request) {
			write(w, "hello")
			flush(w)
			w.Header().Set(http.TrailerPrefix+"X-Late", "1")
			w.Header().Set("X-Too-Late", "1")
		},
		"changes after the header": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			w.Header().Set("X-Too-Late", "1")
			write(w, "hello")
		},
		"invalid header": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", "a\r\nInjected: yes")
			w.Header()["In\r\nvalid"] = []string{"x"}
			w.Header()["X-Two"] = []string{"a", "b"}
		},
		"coding": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Transfer-Encoding", "chunked")
			write(w, "hello")
		},
		"invalid trailer": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "If-X")
			write(w, "hello")
			w.Header().Set("If-X", "5")
		},
		"aborts":       func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) },
		"aborts later": func(w http.ResponseWriter, _ *http.Request) { write(w, long); flush(w); panic(http.ErrAbortHandler) },
	}
	for _, status := range []int{201, 204, 206, 301, 304, 404, 418, 500, 599, 999} {
		handlers[fmt.Sprint(status)] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
		handlers[fmt.Sprint(status, " with a body")] = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/x")
			w.WriteHeader(status)
			write(w, "body")
		}
	}
	byPath := map[string]http.HandlerFunc{"/next": func(w http.ResponseWriter, _ *http.Request) { write(w, "next") }}
	path := func(name string) string { return "/" + strings.ReplaceAll(name, " ", "_") }
	for name, h := range handlers {
		byPath[path(name)] = h
	}
	serve := func(w http.ResponseWriter, r *http.Request) { byPath[r.URL.Path](w, r) }
	var plainly atomic.Bool
	ours := newPlainServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		plainly.Store(byPlain(w))
		serve(w, r)
	})
	theirs := newPlainServer(t, false, serve)
	for name := range handlers {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			if diff := cmp.Diff(theirs.see(method, path(name)), ours.see(method, path(name))); diff != "" {
				t.Errorf("%s %s: net/http -, Plain +\n%s", method, name, diff)
			}
		}
		if !plainly.Load() {
			t.Errorf("%s: served by net/http", name)
		}
	}
}

// A request means the same to the handler as with net/http.
func TestPlainRequests(t *testing.T) {
	t.Parallel()
	describe := func(w http.ResponseWriter, r *http.Request) {
		_, ours := r.Context().Value(http.ServerContextKey).(*http.Server)
		_, local := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		_, _ = fmt.Fprintln(w, r.Method, r.URL, r.RequestURI, r.Proto, r.Host, r.Header, r.ContentLength, r.Body == http.NoBody, r.TransferEncoding, r.Close, r.Trailer, ours, local, host, err)
	}
	ours, theirs := newPlainServer(t, true, describe), newPlainServer(t, false, describe)
	for _, head := range []string{
		"GET / HTTP/1.1\r\nHost: a.b:80\r\nX-Two: a\r\nx-two: b\r\nCookie: a=b; c=d\r\n\r\n",
		"GET //a/%2F?b=%20#c HTTP/1.1\r\nHost:a\r\nEmpty:\r\nConnection: Keep-Alive\r\n\r\n",
		"HEAD /%zz HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET /a|b\"c HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: \r\n\r\n",
		"GET / HTTP/1.1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"GET / HTTP/1.0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab",
		"GET / HTTP/1.1\r\nHost: a\r\nX y: z\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nX : z\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\n: z\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nX: \xff\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 8000) + "\r\n\r\n",
		"GET http://c/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.1\nHost: a\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n",
		"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
		"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"hello\r\n\r\n",
	} {
		read := func(s *plainServer) string {
			c, in := s.dial()
			_, _ = io.WriteString(c, head)
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				return "closed"
			}
			b, _ := io.ReadAll(res.Body)
			return res.Status + "\n" + string(b)
		}
		if diff := cmp.Diff(read(theirs), read(ours)); diff != "" {
			t.Errorf("%.200q: net/http -, Plain +\n%s", head, diff)
		}
	}
}

// Requests that arrive together are answered in turn, and a connection whose next
// request is not plain is handed over with all its bytes.
func TestPlainHandsOver(t *testing.T) {
	t.Parallel()
	s := newPlainServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprint(w, r.URL.Path, byPlain(w), string(b))
	})
	c, in := s.dial()
	text := "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n" +
		"POST /3 HTTP/1.1\r\nHost: a\r\nContent-Length: 6000\r\n\r\n" + strings.Repeat("x", 6000) + "GET /4 HTTP/1.1\r\nHost: a\r\n\r\n"
	go func() {
		for part := range strings.SplitSeq(text, "") { // as slowly as possible
			_, _ = io.WriteString(c, part)
		}
	}()
	for _, want := range []string{"/1true", "/2true", "/3false" + strings.Repeat("x", 6000), "/4false"} {
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(res.Body); string(b) != want || err != nil {
			t.Fatalf("%.100q %v, want %.100q", b, err, want)
		}
	}
}

// A request that takes longer than its client is watched after leaves nothing of that
// behind: the connection serves the next ones.
func TestPlainSlowRequests(t *testing.T) {
	t.Parallel()
	s := newPlainServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			time.Sleep(watchAfter * 3 / 2) // what is tested is that time passes
		}
		if r.Context().Err() != nil {
			t.Error("the client did not leave")
		}
		_, _ = io.WriteString(w, r.URL.Path)
	})
	c, in := s.dial()
	for n, path := range []string{"/slow", "/", "/slow", "/slow", "/"} {
		_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(n, err)
		}
		if b, err := io.ReadAll(res.Body); string(b) != path || err != nil {
			t.Fatal(n, string(b), err)
		}
	}
}

// Clients that send nothing, or a part of a request, are disconnected.
func TestPlainTimeouts(t *testing.T) {
	t.Parallel()
	short := func(srv *http.Server) {
		srv.IdleTimeout, srv.ReadHeaderTimeout, srv.WriteTimeout = 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
	}
	s := newPlainServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		for r.URL.Path == "/endless" {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				panic(http.ErrAbortHandler)
			}
		}
	}, short)
	for _, text := range []string{"", "GET / HT", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHo"} {
		c, in := s.dial()
		_, _ = io.WriteString(c, text)
		if _, err := io.ReadAll(in); err != nil && !errors.Is(err, syscall.ECONNRESET) { // the text came after the deadline
			t.Errorf("%q: %v", text, err)
		}
	}
	// A client that does not read.
	c, _ := s.dial()
	_, _ = io.WriteString(c, "GET /endless HTTP/1.1\r\nHost: a\r\n\r\n")
	harness.Eventually(t, "it is disconnected", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.open) == 0
	})
}

// A shutdown ends idle connections and waits for the others; at its deadline it ends
// those as well.
func TestPlainShutdown(t *testing.T) {
	t.Parallel()
	begun, release := make(chan struct{}), make(chan struct{})
	s := newPlainServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			begun <- struct{}{}
			<-release
		}
		_, _ = io.WriteString(w, "ok")
	})
	_, idle := s.dial()
	busy, answer := s.dial()
	_, _ = io.WriteString(busy, "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
	<-begun
	done := make(chan error)
	go func() { done <- s.Shutdown(t.Context()) }()
	if _, err := idle.ReadByte(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	select {
	case err := <-done:
		t.Error("did not wait", err)
	default:
	}
	release <- struct{}{}
	res, err := http.ReadResponse(answer, nil)
	if err != nil || !res.Close {
		t.Fatal(res, err)
	}
	if b, err := io.ReadAll(res.Body); string(b) != "ok" || err != nil {
		t.Error(string(b), err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestPlainShutdownAtDeadline(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	s := newPlainServer(t, true, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
	})
	c, in := s.dial()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	<-begun
	now, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Shutdown(now); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// onlyConn is a listener with one connection.
type onlyConn struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l onlyConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (onlyConn) Addr() net.Addr { return &net.TCPAddr{} }
func (onlyConn) Close() error   { return nil }

// FuzzPlainHead checks that what is accepted is a request without a body to net/http, and
// passes the check of all other requests.
func FuzzPlainHead(f *testing.F) {
	f.Add("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	f.Add("HEAD /a?b HTTP/1.1\r\nA: b\r\nhost:x:1 \r\nConnection: keep-alive\r\n\r\n")
	f.Add("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
	f.Fuzz(func(t *testing.T, head string) {
		host, target, ok := plainHead([]byte(head))
		if !ok {
			return
		}
		l := onlyConn{make(chan net.Conn, 1), make(chan struct{})}
		defer close(l.closed)
		l.conns <- newAnswer([]byte(head))
		c, err := inbound.Strict(l, nil).Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(nil) // it sends then
		if passed, err := io.ReadAll(c); string(passed) != head || err != nil {
			t.Fatalf("the check of all other requests lets %q pass: %v", passed, err)
		}
		in := bufio.NewReader(strings.NewReader(head))
		r, err := http.ReadRequest(in)
		if err != nil {
			return // it is refused
		}
		if in.Buffered() != 0 || r.Body != http.NoBody || r.ContentLength != 0 || r.TransferEncoding != nil || r.Close || r.Trailer != nil ||
			r.Host != string(host) || r.RequestURI != string(target) || r.ProtoMinor != 1 || r.Header.Get("Upgrade") != "" || r.Header.Get("Expect") != "" {
			t.Fatalf("%+v", r)
		}
	})
}
