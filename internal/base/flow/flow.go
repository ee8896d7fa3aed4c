// Package flow bounds how far a sender gets ahead of a receiver that is slow, or has not
// begun. Commands, terminals, SSH and forwarded ports use it.
package flow

import (
	"context"
	"io"
	"sync"
	"time"
)

// Window counts what was sent and is not acknowledged. One goroutine sends; the other methods
// are safe for concurrent use.
type Window struct {
	size    int
	every   time.Duration
	stalled func()

	mu                 sync.Mutex
	sent, acked, freed int // in total; freed: sent before the last Skip
	room               chan struct{}
}

// NewWindow returns a window of size, which the last that is sent may exceed; 0: without limit.
func NewWindow(size int) *Window { return &Window{size: size, room: make(chan struct{}, 1)} }

// Stalled sets what Send calls again and again, after each d in which it waits.
func (w *Window) Stalled(d time.Duration, stalled func()) { w.every, w.stalled = d, stalled }

// Send waits until the window has room, and takes n of it. The error is the cause of ctx.
func (w *Window) Send(ctx context.Context, n int) error {
	if w.send(n) {
		return nil
	}
	var tick <-chan time.Time
	if w.stalled != nil {
		t := time.NewTicker(w.every)
		defer t.Stop()
		tick = t.C
	}
	for !w.send(n) {
		select {
		case <-w.room:
		case <-tick:
			w.stalled()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (w *Window) send(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.size > 0 && w.sent-max(w.acked, w.freed) >= w.size {
		return false
	}
	w.sent += n
	return true
}

// Ack acknowledges n, but no more than was sent.
func (w *Window) Ack(n int) {
	w.mu.Lock()
	w.acked += min(max(0, n), w.sent-w.acked)
	w.mu.Unlock()
	wake(w.room)
}

// Skip empties a window that is full. What it held counts no longer, and its acknowledgements
// make no further room.
func (w *Window) Skip() {
	w.mu.Lock()
	if w.sent-max(w.acked, w.freed) >= w.size {
		w.freed = w.sent
	}
	w.mu.Unlock()
	wake(w.room)
}

func wake(waits chan struct{}) {
	select {
	case waits <- struct{}{}:
	default:
	}
}

// Queue holds what was read ahead, in its order, as far as its window allows. One goroutine puts,
// and one gets.
type Queue[T any] struct {
	*Window // of the costs of the items

	mu    sync.Mutex
	items []item[T]
	ended bool
	more  chan struct{}
}

type item[T any] struct {
	value T
	cost  int
}

// NewQueue returns a queue for items of this cost in total, and one more.
func NewQueue[T any](size int) *Queue[T] {
	return &Queue[T]{Window: NewWindow(size), more: make(chan struct{}, 1)}
}

// Put adds an item once there is room. The error is the cause of ctx.
func (q *Queue[T]) Put(ctx context.Context, v T, cost int) error {
	if err := q.Send(ctx, cost); err != nil {
		return err
	}
	q.mu.Lock()
	q.items = append(q.items, item[T]{v, cost})
	q.mu.Unlock()
	wake(q.more)
	return nil
}

// End says that no item follows.
func (q *Queue[T]) End() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	wake(q.more)
}

// Get waits for the next item and removes it. The error is io.EOF after the last one, or the
// cause of ctx.
func (q *Queue[T]) Get(ctx context.Context) (v T, err error) {
	for {
		q.mu.Lock()
		if len(q.items) > 0 {
			next := q.items[0]
			q.items[0] = item[T]{}
			q.items = q.items[1:]
			q.mu.Unlock()
			q.Ack(next.cost)
			return next.value, nil
		}
		ended := q.ended
		q.mu.Unlock()
		if ended {
			return v, io.EOF
		}
		select {
		case <-q.more:
		case <-ctx.Done():
			return v, context.Cause(ctx)
		}
	}
}
