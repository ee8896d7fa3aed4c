package runtime

import "context"

type fenceKey struct{}

// WithFence returns a context whose holder may act on a backend only as long
// as check returns nil. The leader's term is one: its context ends too, but a
// process that was stopped may go on for an instant before it learns of that.
func WithFence(ctx context.Context, check func() error) context.Context {
	return context.WithValue(ctx, fenceKey{}, check)
}

// Fenced returns why ctx's holder may not act any more, or nil. A runtime asks
// right before it sends a call to its backend.
func Fenced(ctx context.Context) error {
	if check, ok := ctx.Value(fenceKey{}).(func() error); ok {
		return check()
	}
	return nil
}
