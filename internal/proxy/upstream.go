package proxy

import (
	"net/http"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// idleTimeout is shorter than the 5 s after which Node closes an idle connection,
// so that no request is sent on a connection that is being closed.
const idleTimeout = 4 * time.Second

// maxResponseHeader limits the header of a workspace's response. net/http needs about
// ten times as much memory for it.
const maxResponseHeader = 128 << 10

// maxResponseFields limits how many names the header has, because each needs memory of
// its own.
const maxResponseFields = 2000

// upstream is one container's IDE. It has its own connection pool, so that no
// connection is reused for another container with the same address.
type upstream struct {
	runtime.Upstream
	id        workspace.ID
	transport *http.Transport
	loopback  bool // for tests: ports are reached on a loopback address

	// Guarded by connections.mu:
	closed    bool      // no new connections
	idleSince time.Time // zero: in use, or not known
}

func newUpstream(id workspace.ID, u runtime.Upstream) *upstream {
	to := &upstream{Upstream: u, id: id}
	to.transport = &http.Transport{
		// No Proxy: the environment must not redirect container addresses. No
		// ResponseHeaderTimeout: a response may take any time.
		DialContext:           to.dial,
		DisableCompression:    true,
		MaxIdleConns:          64,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       idleTimeout,
		ExpectContinueTimeout: time.Second,

		MaxResponseHeaderBytes: maxResponseHeader,
	}
	return to
}
