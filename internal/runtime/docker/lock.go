package docker

import (
	"context"
	"sync"

	"codehub/internal/workspace"
)

// locks keeps what changes one workspace from running beside another such call
// of this process. Between processes the claims do.
type locks struct {
	mu   sync.Mutex
	held map[workspace.ID]chan struct{} // closed when it is given back
}

// lock waits for the workspace's lock and returns what gives it back.
func (l *locks) lock(ctx context.Context, id workspace.ID) (func(), error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, failed(ctx, "wait for another call on the workspace", err)
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
