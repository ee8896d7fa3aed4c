// Package inbound accepts the connections of clients: it limits how many are open at a
// time and how long a request may hold one, and refuses ambiguously framed requests.
package inbound

import (
	"io"
	"net/http"
	"time"
)

// Settings are the limits of connections, as codehub serve declares them.
type Settings struct {
	RequestTimeout           time.Duration `name:"request-timeout" env:"CODEHUB_REQUEST_TIMEOUT" min:"1s" max:"10m" default:"35s" help:"Longest time for a request that is not relayed to a workspace."`
	IdleTimeout              time.Duration `name:"idle-timeout" env:"CODEHUB_IDLE_TIMEOUT" min:"1s" max:"1h" default:"50s" help:"How long a connection without a request stays open."`
	MaxConnections           int           `name:"max-connections" env:"CODEHUB_MAX_CONNECTIONS" min:"16" max:"1000000" default:"10000" help:"Open connections of all clients."`
	MaxConnectionsPerAddress int           `name:"max-connections-per-address" env:"CODEHUB_MAX_CONNECTIONS_PER_ADDRESS" min:"1" max:"1000000" default:"1000" help:"Open connections of one client address."`
}

// ReadTimeout is the longest time for reading a request. It is shorter than
// RequestTimeout, so that a request that was not received in time is still answered.
func (s Settings) ReadTimeout() time.Duration { return s.RequestTimeout / 7 * 6 }

const (
	maxHeaderBytes = 64 << 10
	// maxStreams limits the concurrent requests of one HTTP/2 connection.
	maxStreams = 128
	// pingAfter is the silence after which an HTTP/2 client is pinged. A client that
	// does not respond within pingWithin is disconnected.
	pingAfter, pingWithin = 30 * time.Second, 15 * time.Second
)

// Server returns an HTTP server whose requests are read, answered and written within
// RequestTimeout. A handler whose requests may take longer calls Lift.
func (s Settings) Server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h,
		// The handler adds to the response to an upgrade what Strict relies on.
		DisableGeneralOptionsHandler: true,

		ReadHeaderTimeout: min(10*time.Second, s.ReadTimeout()),
		ReadTimeout:       s.ReadTimeout(),
		WriteTimeout:      s.RequestTimeout,
		IdleTimeout:       s.IdleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams,
			SendPingTimeout:      pingAfter,
			PingTimeout:          pingWithin,
			WriteByteTimeout:     s.RequestTimeout,
		},
	}
}

// maxUnread is how much of an unexpected body Stream reads, as net/http does.
const maxUnread = 256 << 10

// Stream is Lift for a response that has no natural end. It reads the request's body
// first, within the server's deadline; if the body does not arrive, the deadlines stay.
func Stream(w http.ResponseWriter, r *http.Request) (restore func()) {
	if r.Body != nil && r.ContentLength != 0 {
		if n, err := io.Copy(io.Discard, io.LimitReader(r.Body, maxUnread)); err != nil || n == maxUnread {
			return func() {}
		}
	}
	return Lift(w, r)
}

// Lift removes the server's deadlines from a request, for a response that has no
// natural end or a body of any size. The caller bounds its progress itself, and calls
// restore before the handler returns: that sets the deadlines again, counted from
// then, because the server still reads the rest of the body and writes the rest of the
// response.
func Lift(w http.ResponseWriter, r *http.Request) (restore func()) {
	srv, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if !ok {
		return func() {}
	}
	rc := http.NewResponseController(w)
	// Both fail only if the writer is not a network connection.
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Time{})
	return func() {
		now := time.Now()
		if srv.ReadTimeout > 0 {
			_ = rc.SetReadDeadline(now.Add(srv.ReadTimeout))
		}
		if srv.WriteTimeout > 0 {
			_ = rc.SetWriteDeadline(now.Add(srv.WriteTimeout))
		}
	}
}
