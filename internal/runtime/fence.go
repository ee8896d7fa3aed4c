package runtime

import "context"

type fenceKey struct{}

// WithFence returns a context whose holder may change Docker only while check
// returns nil. The leader's term uses it: a process that was stopped may continue
// for a moment before its context ends.
func WithFence(ctx context.Context, check func() error) context.Context {
	return context.WithValue(ctx, fenceKey{}, check)
}

// Fenced returns why ctx's holder may not act any more, or nil. A runtime checks it
// immediately before every call to Docker.
func Fenced(ctx context.Context) error {
	if check, ok := ctx.Value(fenceKey{}).(func() error); ok {
		return check()
	}
	return nil
}
