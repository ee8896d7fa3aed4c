package engine

import (
	"context"
	"sync"
)

// Reads shares reads of Docker's state among callers that ask for the same at the same
// time, such as starts of many workspaces. Each caller gets the result of a read that
// began after it asked, so sharing is not visible to it. The zero value is ready to use.
type Reads[K comparable, T any] struct {
	mu   sync.Mutex
	keys map[K]*readQueue[T]
}

// readQueue has the read that runs for a key, and the callers of the one after it.
type readQueue[T any] struct {
	running, next *sharedRead[T]
}

type sharedRead[T any] struct {
	read    func(context.Context) (T, error)
	ctx     context.Context
	cancel  context.CancelFunc
	waiting int // callers that still want the result
	done    chan struct{}
	value   T
	err     error
}

// Do calls read, or gets the result of another caller's call for the same key. The value
// is shared: callers must not change it. A call ends early when all its callers have gone.
func (r *Reads[K, T]) Do(ctx context.Context, key K, read func(context.Context) (T, error)) (T, error) {
	r.mu.Lock()
	if r.keys == nil {
		r.keys = map[K]*readQueue[T]{}
	}
	q := r.keys[key]
	if q == nil {
		q = &readQueue[T]{}
		r.keys[key] = q
	}
	if q.next == nil {
		q.next = &sharedRead[T]{read: read, done: make(chan struct{})}
		q.next.ctx, q.next.cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	mine := q.next
	mine.waiting++
	if q.running == nil {
		r.begin(key, q)
	}
	r.mu.Unlock()

	select {
	case <-mine.done:
		return mine.value, mine.err
	case <-ctx.Done():
		r.leave(q, mine)
		var none T
		return none, WrapError(ctx, "wait for a read of Docker that is shared", ctx.Err())
	}
}

// begin starts the next read of a key, or forgets the key if none wants one. r.mu is held.
func (r *Reads[K, T]) begin(key K, q *readQueue[T]) {
	s := q.next
	q.running, q.next = s, nil
	if s == nil {
		delete(r.keys, key)
		return
	}
	go func() {
		s.value, s.err = s.read(s.ctx)
		s.cancel()
		close(s.done)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.begin(key, q)
	}()
}

func (r *Reads[K, T]) leave(q *readQueue[T], s *sharedRead[T]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.waiting--; s.waiting > 0 {
		return
	}
	s.cancel()
	if q.next == s {
		q.next = nil
	}
}
