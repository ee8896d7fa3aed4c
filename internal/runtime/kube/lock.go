package kube

import (
	"context"
	"sync"
	"time"
)

// locks serializes this server's calls by a key. Calls that work on one home have its workspace
// as the key, so that none of them replaces the Pod of another. Between servers the names and
// versions of objects do that.
type locks[K comparable] struct {
	mu   sync.Mutex
	held map[K]chan struct{} // closed on release
}

// lock waits for the key's lock and returns a function that releases it.
func (l *locks[K]) lock(ctx context.Context, id K) (unlock func(), err error) {
	return l.lockTelling(ctx, id, func() {})
}

// tellEvery is how often a call that waits for a lock says so.
const tellEvery = 5 * time.Second

// lockTelling is lock, which calls waits at the beginning of a wait and every tellEvery during it.
func (l *locks[K]) lockTelling(ctx context.Context, id K, waits func()) (unlock func(), err error) {
	mine := make(chan struct{})
	var tell *time.Ticker
	for {
		l.mu.Lock()
		other, taken := l.held[id]
		if !taken {
			if l.held == nil {
				l.held = map[K]chan struct{}{}
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
		if tell == nil {
			waits()
			tell = time.NewTicker(tellEvery)
			defer tell.Stop()
		}
		select {
		case <-tell.C:
			waits()
		case <-other:
		case <-ctx.Done():
			return nil, wrapError(ctx, "wait for another call", ctx.Err())
		}
	}
}
