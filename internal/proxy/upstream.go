package proxy

import (
	"net"
	"net/http"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// idleTimeout is shorter than the 5 s after which Node closes an idle
// connection: a request that met that in the middle could not be made again.
const idleTimeout = 4 * time.Second

// upstream is one container's IDE. Its pool of connections is its own, so
// that nothing that was opened to one container is ever used for another that
// got the same address.
type upstream struct {
	runtime.Upstream
	id        workspace.ID
	transport *http.Transport

	// Guarded by connections.mu:
	closed bool      // nothing more is led there
	idle   time.Time // since when nothing goes there; zero: it is in use, or not known
}

func newUpstream(id workspace.ID, u runtime.Upstream) *upstream {
	dialer := &net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}
	return &upstream{Upstream: u, id: id, transport: &http.Transport{
		// No Proxy: the address is meant as it is, whatever the environment
		// says. No ResponseHeaderTimeout: an answer may take as long as it likes.
		DialContext:           dialer.DialContext,
		DisableCompression:    true,
		MaxIdleConns:          64,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       idleTimeout,
		ExpectContinueTimeout: time.Second,
	}}
}
