package breaker

import (
	"net/http"
	"time"
)

// Transport wraps next in the breaker. A call has succeeded once the response's
// header has arrived, whatever its status; errors of the body do not count.
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
