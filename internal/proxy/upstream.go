package proxy

import (
	"net"
	"net/http"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// idleTimeout is shorter than the 5 s after which Node closes an idle connection,
// so that no request is sent on a connection that is being closed.
const idleTimeout = 4 * time.Second

// upstream is one container's IDE. It has its own connection pool, so that no
// connection is reused for another container with the same address.
type upstream struct {
	runtime.Upstream
	id        workspace.ID
	transport *http.Transport

	// Guarded by connections.mu:
	closed    bool      // no new connections
	idleSince time.Time // zero: in use, or not known
}

func newUpstream(id workspace.ID, u runtime.Upstream) *upstream {
	dialer := &net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}
	return &upstream{Upstream: u, id: id, transport: &http.Transport{
		// No Proxy: the environment must not redirect container addresses. No
		// ResponseHeaderTimeout: a response may take any time.
		DialContext:           dialer.DialContext,
		DisableCompression:    true,
		MaxIdleConns:          64,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       idleTimeout,
		ExpectContinueTimeout: time.Second,
	}}
}
