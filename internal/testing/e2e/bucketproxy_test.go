package e2e

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"sync"
	"testing"

	"codehub/internal/testing/harness"
)

// bucketProxy is a proxy between a server and its S3 bucket that holds single requests.
type bucketProxy struct {
	*httptest.Server
	relay *httputil.ReverseProxy

	mu      sync.Mutex
	holds   func(workspace string, r *http.Request) bool // nil: none
	release chan struct{}                                // closed to let the held requests pass
	held    map[string]bool                              // workspaces that have a held request
}

func newBucketProxy(tb testing.TB, b *bucket) *bucketProxy {
	target, err := url.Parse(b.s3.Endpoint)
	if err != nil {
		tb.Fatal(err)
	}
	p := &bucketProxy{relay: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // the signature includes the host
		},
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}}
	p.hold(nil)
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	tb.Cleanup(func() { p.hold(nil); p.Close() })
	return p
}

// Keys are installation/workspace/operation/name, under a prefix.
var keyWorkspace = regexp.MustCompile(`/homes/team/[0-9a-f-]{36}/([0-9a-f-]{36})/`)

func (p *bucketProxy) serve(w http.ResponseWriter, r *http.Request) {
	workspace := ""
	if m := keyWorkspace.FindStringSubmatch(r.URL.Path); m != nil {
		workspace = m[1]
	}
	p.mu.Lock()
	pass := p.release
	held := p.holds != nil && p.holds(workspace, r)
	if held {
		p.held[workspace] = true
	}
	p.mu.Unlock()
	if held {
		<-pass
	}
	p.relay.ServeHTTP(w, r)
}

// hold lets the held requests pass, and holds those that f chooses from now on; nil: none.
func (p *bucketProxy) hold(f func(workspace string, r *http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.release != nil {
		close(p.release)
	}
	p.holds, p.release, p.held = f, make(chan struct{}), map[string]bool{}
}

// awaitHeld waits until a request of the workspace is held.
func (p *bucketProxy) awaitHeld(tb testing.TB, workspace string) {
	tb.Helper()
	harness.Eventually(tb, "a request to the bucket is held", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.held[workspace]
	})
}
