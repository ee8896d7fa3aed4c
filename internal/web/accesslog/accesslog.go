// Package accesslog carries attributes of a request from its handler to the access
// log and the metrics.
package accesslog

import "context"

// Request is what is known of one request. One goroutine uses it at a time: the
// one that serves the request.
type Request struct {
	ID    string // X-Request-Id
	Route string // a pattern, never a path: there are few; empty if no handler matched
	User  string // the ID of the user; empty before authentication
	// Workspace and Port are what the address names, whether it exists or not; empty and
	// 0 for an address of codehub's own, and for the IDE's port.
	Workspace string
	Port      int
	Quiet     bool // logged at debug level unless it is refused (401, 403) or fails (5xx)
}

type key struct{}

// With returns a context that carries r.
func With(ctx context.Context, r *Request) context.Context { return context.WithValue(ctx, key{}, r) }

func of(ctx context.Context) *Request {
	r, _ := ctx.Value(key{}).(*Request)
	if r == nil {
		return &Request{}
	}
	return r
}

// ID returns the request's ID; empty if ctx carries no request.
func ID(ctx context.Context) string { return of(ctx).ID }

// SetRoute names the request's route.
func SetRoute(ctx context.Context, pattern string) { of(ctx).Route = pattern }

// SetUser names the user who sent the request.
func SetUser(ctx context.Context, userID string) { of(ctx).User = userID }

// SetWorkspace names the workspace that the request's address names, and its port if it
// is not the IDE's.
func SetWorkspace(ctx context.Context, id string, port int) {
	r := of(ctx)
	r.Workspace, r.Port = id, port
}

// Quiet marks a request that is too frequent for the log: probes, assets, event
// streams, and requests that are relayed to workspaces.
func Quiet(ctx context.Context) { of(ctx).Quiet = true }
