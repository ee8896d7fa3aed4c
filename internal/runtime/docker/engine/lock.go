package engine

import (
	"context"
	"sync"

	"codehub/internal/workspace"
)

// locks serializes changes to one workspace within this process. Between processes
// the claims do that.
type locks struct {
	mu   sync.Mutex
	held map[workspace.ID]chan struct{} // closed on release
}

// Lock waits for the workspace's lock and returns a function that releases it.
func (l *locks) Lock(ctx context.Context, id workspace.ID) (func(), error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, WrapError(ctx, "wait for another call on the workspace", err)
		}
		l.mu.Lock()
		held, ok := l.held[id]
		if !ok {
			if l.held == nil {
				l.held = map[workspace.ID]chan struct{}{}
			}
			mine := make(chan struct{})
			l.held[id] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, id)
				l.mu.Unlock()
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
		}
	}
}
