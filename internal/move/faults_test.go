package move_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
)

// faults is a transport to the source that breaks off downloads.
type faults struct {
	mu     sync.Mutex
	after  int // bytes after which a download breaks off; 0: never
	ranges int // downloads that began in the middle
}

func (f *faults) RoundTrip(r *http.Request) (*http.Response, error) {
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
