package proxy

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"codehub/internal/gateway/shortway"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// idleTimeout is shorter than the 5 s after which Node closes an idle connection,
// so that no request is sent on a connection that is being closed.
const idleTimeout = 4 * time.Second

// plainIdleTimeout is for connections whose requests are repeated if the IDE has closed
// the connection.
const plainIdleTimeout = time.Minute

// maxIdle limits the connections to a container without a request. More requests at a
// time than this have to connect each time.
const maxIdle = 256

// maxResponseHeader limits the header of a workspace's response. net/http needs about
// ten times as much memory for it.
const maxResponseHeader = 128 << 10

// maxResponseFields limits how many names the header has, because each needs memory of
// its own.
const maxResponseFields = 2000

// upstream is one container's IDE. It has its own connection pools, so that no
// connection is reused for another container with the same address.
type upstream struct {
	runtime.Upstream
	id        workspace.ID
	plain     *shortway.Pool  // for what it can send to the IDE
	transport *http.Transport // for everything else, and for ports
	loopback  bool            // for tests: ports are reached on a loopback address
	inside    insidePorts

	// Guarded by the lock of connections for the workspace:
	closed    bool      // no new connections
	idleSince time.Time // zero: in use, or not known
}

func newUpstream(id workspace.ID, u runtime.Upstream) *upstream {
	to := &upstream{Upstream: u, id: workspace.ID(strings.Clone(string(id)))}
	to.transport = &http.Transport{
		// No Proxy: the environment must not redirect container addresses. No
		// ResponseHeaderTimeout: a response may take any time.
		DialContext:           to.dial,
		DisableCompression:    true,
		MaxIdleConns:          maxIdle,
		MaxIdleConnsPerHost:   maxIdle,
		IdleConnTimeout:       idleTimeout,
		ExpectContinueTimeout: time.Second,

		MaxResponseHeaderBytes: maxResponseHeader,
	}
	to.plain = &shortway.Pool{
		Dial:        func(ctx context.Context) (net.Conn, error) { return to.dial(ctx, "tcp", u.Addr) },
		IdleTimeout: plainIdleTimeout, MaxIdle: maxIdle, MaxHeader: maxResponseHeader,
	}
	return to
}

// closePools closes the connections without a request. It is not used any more.
func (u *upstream) closePools() {
	u.plain.Close()
	u.transport.CloseIdleConnections()
}
