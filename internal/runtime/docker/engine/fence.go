package engine

import (
	"fmt"
	"net/http"

	"codehub/internal/runtime"
)

// fenced checks runtime.Fenced before every call. It comes before the breaker,
// which must only see Docker's own failures.
type fenced struct{ next http.RoundTripper }

func (f fenced) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := runtime.Fenced(r.Context()); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, fmt.Errorf("not sent to Docker: %w", err)
	}
	return f.next.RoundTrip(r)
}
