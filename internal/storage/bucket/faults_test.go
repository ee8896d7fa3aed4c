package bucket

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
)

// faults is a proxy in front of an S3 server. It keeps the Host header, so that signatures stay
// valid.
type faults struct {
	*httptest.Server
	next *httputil.ReverseProxy

	mu     sync.Mutex
	before func(w http.ResponseWriter, r *http.Request) bool // true: it has responded
	seen   []*http.Request
}

func newFaults(tb testing.TB, endpoint string, secure bool) *faults {
	target, err := url.Parse(endpoint)
	check(tb, err)
	f := &faults{next: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { panic(http.ErrAbortHandler) },
	}}
	f.Server = httptest.NewUnstartedServer(f)
	if secure {
		f.EnableHTTP2 = true
		f.StartTLS()
	} else {
		f.Start()
	}
	tb.Cleanup(func() { f.CloseClientConnections(); f.Close() })
	return f
}

func (f *faults) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.seen = append(f.seen, r.Clone(r.Context()))
	before := f.before
	f.mu.Unlock()
	if before != nil && before(w, r) {
		return
	}
	f.next.ServeHTTP(w, r)
}

// on sets the faults of later requests.
func (f *faults) on(before func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
	f.seen = nil
}

// requests returns the requests since on.
func (f *faults) requests() []*http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

// answer responds with an error of S3.
func answer(w http.ResponseWriter, r *http.Request, status int, code string) bool {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "<Error><Code>"+code+"</Code><Message>so the test wants it</Message></Error>")
	return true
}

// isPart reports whether a request uploads a part.
func isPart(r *http.Request) bool {
	return r.Method == http.MethodPut && r.URL.Query().Has("partNumber")
}
