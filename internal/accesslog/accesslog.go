// Package accesslog carries what the access log and the metrics say of a request
// from the handler that knows it to the one that writes it.
package accesslog

import "context"

// Request is what is known of one request. One goroutine uses it at a time: the
// one that serves the request.
type Request struct {
	ID    string // X-Request-Id
	Route string // a pattern, never a path: there are few; empty if no handler matched
	User  string // the ID of the user; empty before authentication
	Quiet bool   // unless it fails on the server's side, it is logged at debug level only
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

// Quiet is for frequent requests that say nothing of what people do: probes,
// assets, and what is relayed to workspaces.
func Quiet(ctx context.Context) { of(ctx).Quiet = true }
