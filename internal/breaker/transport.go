package breaker

import (
	"net/http"
	"time"
)

// Transport is next under the breaker. A response counts as an answer as soon
// as its header is there, whatever its status; what comes of its body later is
// its reader's.
func (b *Breaker) Transport(next http.RoundTripper) http.RoundTripper {
	return transport{b: b, next: next}
}

type transport struct {
	b    *Breaker
	next http.RoundTripper
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.b.Allow(r.Context()); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	began := time.Now()
	resp, err := t.next.RoundTrip(r)
	t.b.Note(r.Context(), began, err)
	return resp, err
}

// CloseIdleConnections is for http.Client.
func (t transport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
