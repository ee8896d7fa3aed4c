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

// bucketProxy stands between the server and its S3 bucket and has single
// requests go wrong.
type bucketProxy struct {
	testing.TB
	URL     string
	address string
	relay   *httputil.ReverseProxy

	mu     sync.Mutex
	server *http.Server
	counts map[string]int // requests by workspace
	fault  func(workspace string, n int, r *http.Request) fault
	open   map[string]func() // what hangs, by workspace → lets it go on
	seen   []string
}

// fault is what happens to a request. Those that cut do so in the middle.
type fault string

const (
	pass       fault = ""
	refuse     fault = "refused"     // the connection is reset before anything was read
	slow       fault = "slow"        // it takes two seconds more
	cutRequest fault = "cut request" // the bucket gets the first half
	cutAnswer  fault = "cut answer"  // it is done, and half of the answer comes back
	status500  fault = "500"
	status503  fault = "503"
	busy       fault = "503 for a while"
	hang       fault = "hang" // until letGo
)

// faults are those that pass by themselves.
var faults = []fault{refuse, slow, cutRequest, cutAnswer, status500, status503, busy}

func newBucketProxy(tb testing.TB, b *bucket) *bucketProxy {
	target, err := url.Parse(b.s3.Endpoint)
	if err != nil {
		tb.Fatal(err)
	}
	p := &bucketProxy{TB: tb, counts: map[string]int{}, open: map[string]func(){}}
	p.relay = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // it is part of what was signed
		},
		Transport:     &http.Transport{MaxIdleConnsPerHost: 32},
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	address, err := proc.FreeAddress() // it has to be free when the bucket is back
	if err != nil {
		tb.Fatal(err)
	}
	p.listen(address)
	tb.Cleanup(p.away)
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

// away takes the bucket from the network: connections break, new ones are refused.
func (p *bucketProxy) away() {
	p.letGo()
	_ = p.server.Close()
}

// back brings it back.
func (p *bucketProxy) back() { p.Helper(); p.listen(p.address) }

// set says what goes wrong from now on, and counts from one again.
func (p *bucketProxy) set(f func(workspace string, n int, r *http.Request) fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.counts, p.seen = f, map[string]int{}, nil
}

// requests is how many there were about a workspace since set.
func (p *bucketProxy) requests(workspace string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[workspace]
}

// said lists the requests about a workspace since set.
func (p *bucketProxy) said(workspace string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, s := range p.seen {
		if strings.Contains(s, workspace) {
			out = append(out, s)
		}
	}
	return strings.Join(out, "\n")
}

// letGo has what hangs go on.
func (p *bucketProxy) letGo() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, f := range p.open {
		f()
		delete(p.open, id)
	}
}

// hangs waits until a request about the workspace hangs.
func (p *bucketProxy) hangs(workspace string) {
	p.Helper()
	deadline := time.Now().Add(patience)
	for {
		p.mu.Lock()
		_, ok := p.open[workspace]
		p.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			p.Fatalf("no request about %s hangs:\n%s", workspace, p.said(workspace))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Keys are installation/workspace/operation/name, under a prefix.
var keyWorkspace = regexp.MustCompile(`/homes/team/[0-9a-f-]{36}/([0-9a-f-]{36})/`)

func (p *bucketProxy) serve(w http.ResponseWriter, r *http.Request) {
	of := ""
	if m := keyWorkspace.FindStringSubmatch(r.URL.Path); m != nil {
		of = m[1]
	}
	p.mu.Lock()
	p.counts[of]++
	n := p.counts[of]
	f := pass
	if p.fault != nil {
		f = p.fault(of, n, r)
	}
	p.seen = append(p.seen, fmt.Sprintf("%3d %-12s %s %s?%.60s", n, f, r.Method, r.URL.Path, r.URL.RawQuery))
	var wait chan struct{}
	if f == hang {
		wait = make(chan struct{})
		p.open[of] = sync.OnceFunc(func() { close(wait) })
	}
	p.mu.Unlock()
	p.act(f, wait, w, r)
}

func (p *bucketProxy) act(f fault, wait chan struct{}, w http.ResponseWriter, r *http.Request) {
	if f == cutRequest && r.ContentLength <= 0 {
		f = refuse // it has no middle
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
		// Half of an answer, or nothing of a request, and then silence.
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
		fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>a test's doing</Message></Error>", name)
	default:
		p.relay.ServeHTTP(w, r)
	}
}

// halfReader ends with an error where the connection broke.
type halfReader struct {
	r    io.Reader
	left int64
}

func (h *halfReader) Read(b []byte) (int, error) {
	if h.left <= 0 {
		return 0, errors.New("cut by the test")
	}
	n, err := h.r.Read(b[:min(int64(len(b)), h.left)])
	h.left -= int64(n)
	return n, err
}

// halfWriter lets half of an answer through, and then does something.
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
