package docker

import (
	"fmt"
	"net/http"

	"codehub/internal/runtime"
)

// fenced is next for callers that may still act (runtime.WithFence): each is
// asked right before its call goes out. It comes before the breaker, which is
// to learn of the engine alone.
type fenced struct{ next http.RoundTripper }

func (f fenced) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := runtime.Fenced(r.Context()); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, fmt.Errorf("not sent to the engine: %w", err)
	}
	return f.next.RoundTrip(r)
}

// CloseIdleConnections is for http.Client.
func (f fenced) CloseIdleConnections() {
	if c, ok := f.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
