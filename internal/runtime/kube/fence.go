package kube

import (
	"fmt"
	"net/http"

	"codehub/internal/runtime"
)

// fence checks runtime.Fenced before every request that may change something.
type fence struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (f fence) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet {
		return f.next.RoundTrip(req)
	}
	if err := runtime.Fenced(req.Context()); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, fmt.Errorf("not sent to Kubernetes: %w", err)
	}
	return f.next.RoundTrip(req)
}
