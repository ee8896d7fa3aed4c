package auth

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"codehub/internal/workspace"
)

// queue lets a limited number of callers through at a time. The sources of the
// callers take turns, so that callers from one source, however many, delay a caller
// from another one by one turn only.
type queue struct {
	slots     int           // callers at a time
	perSource int           // callers of one source that may wait
	total     int           // callers that may wait in all
	patience  time.Duration // how long a caller waits

	mu      sync.Mutex
	busy    int
	waiting int
	lines   map[string]*list.Element // of order, by source
	order   *list.List               // of *line, those with waiting callers; the front is next
}

// line is the waiting callers of one source, in the order of their arrival. Each gets
// nil when it is let through, or the reason why it is not.
type line struct {
	source  string
	waiters []chan error
}

func newQueue(slots, perSource, total int, patience time.Duration) *queue {
	return &queue{slots: slots, perSource: perSource, total: total, patience: patience, lines: map[string]*list.Element{}, order: list.New()}
}

// full reports whether a caller of this source would be refused now.
func (q *queue) full(source string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.line(source)) >= q.perSource
}

// take waits for a slot, which the caller must release. CodeTooManyAttempts if too
// many callers wait or the wait takes too long.
func (q *queue) take(ctx context.Context, source string) error {
	q.mu.Lock()
	if q.busy < q.slots {
		q.busy++
		q.mu.Unlock()
		return nil
	}
	if !q.admit(source) {
		q.mu.Unlock()
		return tooManyAttempts()
	}
	w := make(chan error, 1)
	q.push(source, w)
	q.mu.Unlock()

	t := time.NewTimer(q.patience)
	defer t.Stop()
	var err error
	select {
	case err := <-w:
		return err
	case <-t.C:
		err = tooManyAttempts()
	case <-ctx.Done():
		err = ctx.Err()
	}
	q.mu.Lock()
	left := q.remove(source, w)
	q.mu.Unlock()
	if !left && <-w == nil {
		q.release() // it was let through meanwhile
	}
	return err
}

// release frees a slot for the next caller.
func (q *queue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	front := q.order.Front()
	if front == nil {
		q.busy--
		return
	}
	l := front.Value.(*line)
	w := l.waiters[0]
	q.order.MoveToBack(front)
	q.remove(l.source, w)
	w <- nil
}

// idle reports whether no caller holds a slot other than the one that asks, and none
// waits.
func (q *queue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.busy == 1 && q.waiting == 0
}

// admit reports whether another caller of this source may wait. If too many wait in
// all, the newest caller of the longest line gives way to a source with a shorter one.
func (q *queue) admit(source string) bool {
	mine := len(q.line(source))
	if mine >= q.perSource {
		return false
	}
	if q.waiting < q.total {
		return true
	}
	var longest *line
	for e := q.order.Front(); e != nil; e = e.Next() {
		if l := e.Value.(*line); longest == nil || len(l.waiters) > len(longest.waiters) {
			longest = l
		}
	}
	if longest == nil || len(longest.waiters) <= mine+1 {
		return false
	}
	newest := longest.waiters[len(longest.waiters)-1]
	q.remove(longest.source, newest)
	newest <- tooManyAttempts()
	return true
}

func (q *queue) line(source string) []chan error {
	if e := q.lines[source]; e != nil {
		return e.Value.(*line).waiters
	}
	return nil
}

func (q *queue) push(source string, w chan error) {
	e := q.lines[source]
	if e == nil {
		e = q.order.PushBack(&line{source: source})
		q.lines[source] = e
	}
	l := e.Value.(*line)
	l.waiters = append(l.waiters, w)
	q.waiting++
}

// remove reports whether w was still waiting.
func (q *queue) remove(source string, w chan error) bool {
	e := q.lines[source]
	if e == nil {
		return false
	}
	l := e.Value.(*line)
	i := slices.Index(l.waiters, w)
	if i < 0 {
		return false
	}
	l.waiters = slices.Delete(l.waiters, i, i+1)
	q.waiting--
	if len(l.waiters) == 0 {
		q.order.Remove(e)
		delete(q.lines, source)
	}
	return true
}

// busyRetry is the number of seconds after which a refused client should try again.
const busyRetry = 2

func tooManyAttempts() error {
	e := workspace.Errorf(workspace.CodeTooManyAttempts, "Too many passwords are being checked. Try again in %d seconds.", busyRetry)
	e.Details = map[string]any{detailRetryAfter: busyRetry}
	return e
}
