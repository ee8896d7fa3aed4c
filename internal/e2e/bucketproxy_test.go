package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/e2e/proc"
)

// bucketProxy is a proxy between the server and its S3 bucket that injects
// faults into single requests.
type bucketProxy struct {
	testing.TB
	URL     string
	address string
	relay   *httputil.ReverseProxy

	mu      sync.Mutex
	server  *http.Server
	counts  map[string]int // requests by workspace
	fault   func(workspace string, n int, r *http.Request) fault
	hanging map[string]func() // workspace → function that releases its hanging request
	log     []string
}

// fault is the fault of one request. Those that cut close the connection in the
// middle.
type fault string

const (
	pass       fault = ""
	refuse     fault = "refused"     // the connection is reset before the request is read
	slow       fault = "slow"        // two seconds of delay
	cutRequest fault = "cut request" // the bucket receives the first half
	cutAnswer  fault = "cut answer"  // the bucket executes it, and half of the response is returned
	status500  fault = "500"
	status503  fault = "503"
	busy       fault = "503 for a while"
	hang       fault = "hang" // until release
)

// faults are the temporary faults.
var faults = []fault{refuse, slow, cutRequest, cutAnswer, status500, status503, busy}

func newBucketProxy(tb testing.TB, b *bucket) *bucketProxy {
	target, err := url.Parse(b.s3.Endpoint)
	if err != nil {
		tb.Fatal(err)
	}
	p := &bucketProxy{TB: tb, counts: map[string]int{}, hanging: map[string]func(){}}
	p.relay = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // the signature includes the host
		},
		Transport:     &http.Transport{MaxIdleConnsPerHost: 32},
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	address, err := proc.FreeAddress() // the port must stay free while the bucket is unavailable
	if err != nil {
		tb.Fatal(err)
	}
	p.listen(address)
	tb.Cleanup(p.takeDown)
	return p
}

func (p *bucketProxy) listen(address string) {
	p.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		p.Fatal(err)
	}
	p.address = l.Addr().String()
	p.URL = "http://" + p.address
	p.server = &http.Server{Handler: http.HandlerFunc(p.serve)}
	go func(s *http.Server) { _ = s.Serve(l) }(p.server)
}

// takeDown makes the bucket unavailable: it closes connections and refuses new
// ones.
func (p *bucketProxy) takeDown() {
	p.release()
	_ = p.server.Close()
}

// bringUp makes the bucket available again.
func (p *bucketProxy) bringUp() { p.Helper(); p.listen(p.address) }

// setFault sets the function that chooses the fault of a workspace's nth
// request. It resets the counts.
func (p *bucketProxy) setFault(f func(workspace string, n int, r *http.Request) fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.counts, p.log = f, map[string]int{}, nil
}

// requests returns the number of requests of a workspace since setFault.
func (p *bucketProxy) requests(workspace string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[workspace]
}

// requestLog lists the requests of a workspace since setFault.
func (p *bucketProxy) requestLog(workspace string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, s := range p.log {
		if strings.Contains(s, workspace) {
			out = append(out, s)
		}
	}
	return strings.Join(out, "\n")
}

// release continues the hanging requests.
func (p *bucketProxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, f := range p.hanging {
		f()
		delete(p.hanging, id)
	}
}

// awaitHanging waits until a request of the workspace hangs.
func (p *bucketProxy) awaitHanging(workspace string) {
	p.Helper()
	deadline := time.Now().Add(patience)
	for {
		p.mu.Lock()
		_, ok := p.hanging[workspace]
		p.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			p.Fatalf("no request of %s hangs:\n%s", workspace, p.requestLog(workspace))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Keys are installation/workspace/operation/name, under a prefix.
var keyWorkspace = regexp.MustCompile(`/homes/team/[0-9a-f-]{36}/([0-9a-f-]{36})/`)

func (p *bucketProxy) serve(w http.ResponseWriter, r *http.Request) {
	workspace := ""
	if m := keyWorkspace.FindStringSubmatch(r.URL.Path); m != nil {
		workspace = m[1]
	}
	p.mu.Lock()
	p.counts[workspace]++
	n := p.counts[workspace]
	f := pass
	if p.fault != nil {
		f = p.fault(workspace, n, r)
	}
	p.log = append(p.log, fmt.Sprintf("%3d %-12s %s %s?%.60s", n, f, r.Method, r.URL.Path, r.URL.RawQuery))
	var wait chan struct{}
	if f == hang {
		wait = make(chan struct{})
		p.hanging[workspace] = sync.OnceFunc(func() { close(wait) })
	}
	p.mu.Unlock()
	p.act(f, wait, w, r)
}

func (p *bucketProxy) act(f fault, wait chan struct{}, w http.ResponseWriter, r *http.Request) {
	if f == cutRequest && r.ContentLength <= 0 {
		f = refuse // a request without a body cannot be cut in the middle
	}
	switch f {
	case refuse:
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	case slow:
		time.Sleep(2 * time.Second)
		p.relay.ServeHTTP(w, r)
	case hang:
		// A download hangs in the middle of the response, other requests
		// before the bucket gets them.
		if r.Method == http.MethodGet {
			p.relay.ServeHTTP(&halfWriter{ResponseWriter: w, then: func() { <-wait }}, r)
			return
		}
		<-wait
		p.relay.ServeHTTP(w, r)
	case cutRequest:
		r.Body = io.NopCloser(&halfReader{r.Body, r.ContentLength / 2})
		p.relay.ServeHTTP(w, r)
		panic(http.ErrAbortHandler)
	case cutAnswer:
		p.relay.ServeHTTP(&halfWriter{ResponseWriter: w, then: func() { panic(http.ErrAbortHandler) }}, r)
		panic(http.ErrAbortHandler)
	case status500, status503, busy:
		code, name := http.StatusInternalServerError, "InternalError"
		if f != status500 {
			code, name = http.StatusServiceUnavailable, "SlowDown"
		}
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(code)
		fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>injected by a test</Message></Error>", name)
	default:
		p.relay.ServeHTTP(w, r)
	}
}

// halfReader returns an error after the first bytes of a body.
type halfReader struct {
	r    io.Reader
	left int64
}

func (h *halfReader) Read(b []byte) (int, error) {
	if h.left <= 0 {
		return 0, errors.New("cut by a test")
	}
	n, err := h.r.Read(b[:min(int64(len(b)), h.left)])
	h.left -= int64(n)
	return n, err
}

// halfWriter forwards half of a response and then calls then.
type halfWriter struct {
	http.ResponseWriter
	then  func()
	begun bool
	left  int64
}

func (h *halfWriter) WriteHeader(code int) {
	if !h.begun && code >= 200 {
		h.begun = true
		_, _ = fmt.Sscan(h.Header().Get("Content-Length"), &h.left)
		h.left /= 2
	}
	h.ResponseWriter.WriteHeader(code)
}

func (h *halfWriter) Write(b []byte) (int, error) {
	if h.then == nil {
		return h.ResponseWriter.Write(b)
	}
	n, err := h.ResponseWriter.Write(b[:min(int64(len(b)), h.left)])
	h.left -= int64(n)
	if err != nil || n == len(b) {
		return n, err
	}
	_ = http.NewResponseController(h.ResponseWriter).Flush()
	then := h.then
	h.then = nil
	then()
	rest, err := h.ResponseWriter.Write(b[n:])
	return n + rest, err
}

func (h *halfWriter) Flush() { _ = http.NewResponseController(h.ResponseWriter).Flush() }
