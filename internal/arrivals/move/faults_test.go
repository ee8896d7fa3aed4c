package move_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
)

// faults is a transport to the source that fails reads and breaks off downloads.
type faults struct {
	mu     sync.Mutex
	after  int // bytes after which a download breaks off; 0: never
	ranges int // downloads that began in the middle
	// failed has the paths whose first read has failed; nil: no read fails.
	failed map[string]bool
	absent string // paths with this part are those of a later version than the source's; empty: none
	silent string // requests to paths with this end have no answer; empty: none
}

// fails returns a failure of a request, or nil.
func (f *faults) fails(r *http.Request) *http.Response {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed == nil || r.Method != http.MethodGet || f.failed[r.URL.Path] {
		return nil
	}
	f.failed[r.URL.Path] = true
	return &http.Response{StatusCode: http.StatusServiceUnavailable, Status: "503 Service Unavailable", Body: http.NoBody, Request: r}
}

func (f *faults) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.silent != "" && strings.HasSuffix(r.URL.Path, f.silent) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if f.absent != "" && strings.Contains(r.URL.Path, f.absent) {
		body := io.NopCloser(strings.NewReader(`{"error":"not_found","message":"There is no such endpoint."}`))
		return &http.Response{StatusCode: http.StatusNotFound, Status: "404 Not Found", Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r}, nil
	}
	if resp := f.fails(r); resp != nil {
		return resp, nil
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/archive") {
		return resp, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if resp.StatusCode == http.StatusPartialContent {
		f.ranges++
	}
	if f.after > 0 {
		resp.Body = &broken{resp.Body, f.after}
	}
	return resp, nil
}

type broken struct {
	io.ReadCloser
	left int
}

func (b *broken) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, errors.New("the connection is lost")
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
