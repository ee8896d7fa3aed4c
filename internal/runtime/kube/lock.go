package kube

import (
	"context"
	"sync"

	"codehub/internal/workspace"
)

// locks serializes this server's calls that work on one home, so that none of them replaces
// the Pod of another. Between servers the names and versions of objects do that.
type locks struct {
	mu   sync.Mutex
	held map[workspace.ID]chan struct{} // closed on release
}

// lock waits for the home's lock and returns a function that releases it.
func (l *locks) lock(ctx context.Context, id workspace.ID) (unlock func(), err error) {
	mine := make(chan struct{})
	for {
		l.mu.Lock()
		other, taken := l.held[id]
		if !taken {
			if l.held == nil {
				l.held = map[workspace.ID]chan struct{}{}
			}
			l.held[id] = mine
		}
		l.mu.Unlock()
		if !taken {
			return func() {
				l.mu.Lock()
				delete(l.held, id)
				l.mu.Unlock()
				close(mine)
			}, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, wrapError(ctx, "wait for another call on the home", ctx.Err())
		}
	}
}
