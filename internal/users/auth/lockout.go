package auth

import (
	"container/list"
	"context"
	"crypto/sha256"
	"math"
	"sync"
	"time"

	"codehub/internal/workspace"
)

// A name is locked out from the 5th failure on: for 30 s, then twice as long after
// each failure, at most 30 min. Failures count for postgres.LoginFailureAge.
const (
	lockFrom  = 5
	lockFirst = 30 * time.Second
	lockMost  = 30 * time.Minute

	// maxAttemptNames limits the names of attempts.
	maxAttemptNames = 1 << 16

	// refusalQuantum hides how long a refusal took: the rows of users and of unknown
	// names are not equally fast.
	refusalQuantum = 250 * time.Millisecond
)

const detailRetryAfter = "retry_after_seconds"

// lockedUntil returns when the lockout after consecutive failures ends; nil: no
// lockout.
func lockedUntil(failures int, now time.Time) *time.Time {
	if failures < lockFrom {
		return nil
	}
	d := lockMost
	if n := failures - lockFrom; n < 16 {
		d = min(lockFirst<<n, lockMost)
	}
	t := now.Add(d)
	return &t
}

func lockedOut(until, now time.Time) error {
	secs := max(1, int(math.Ceil(until.Sub(now).Seconds())))
	e := workspace.Errorf(workspace.CodeLockedOut, "Too many failed attempts. Try again in %s.", (time.Duration(secs) * time.Second).String())
	e.Details = map[string]any{detailRetryAfter: secs}
	return e
}

// attempts counts failures of this process alone: with the setup code, which is the
// process's, and with the codes of programs' logins. It drops the least recently used.
type attempts struct {
	mu   sync.Mutex
	max  int
	by   map[[32]byte]*list.Element
	used *list.List // front: most recently used
}

type attempt struct {
	key      [32]byte
	failures int
	last     time.Time
	until    *time.Time
}

func newAttempts(max int) *attempts {
	return &attempts{max: max, by: map[[32]byte]*list.Element{}, used: list.New()}
}

func (a *attempts) lockedUntil(name string) *time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e, ok := a.by[sha256.Sum256([]byte(name))]; ok {
		return e.Value.(*attempt).until
	}
	return nil
}

func (a *attempts) fail(name string, now time.Time) {
	key := sha256.Sum256([]byte(name))
	a.mu.Lock()
	defer a.mu.Unlock()
	e, ok := a.by[key]
	if !ok {
		e = a.used.PushFront(&attempt{key: key})
		a.by[key] = e
		if a.used.Len() > a.max {
			delete(a.by, a.used.Remove(a.used.Back()).(*attempt).key)
		}
	}
	a.used.MoveToFront(e)
	at := e.Value.(*attempt)
	at.failures++
	at.last = now
	at.until = lockedUntil(at.failures, now)
}

// forget forgives the failures of a name if the last one was before a time.
func (a *attempts) forget(name string, before time.Time) {
	key := sha256.Sum256([]byte(name))
	a.mu.Lock()
	defer a.mu.Unlock()
	if e, ok := a.by[key]; ok && e.Value.(*attempt).last.Before(before) {
		a.used.Remove(e)
		delete(a.by, key)
	}
}

// turns lets one attempt per name through at a time, so that parallel guesses
// cannot pass before the first failure is counted.
type turns struct {
	patience time.Duration
	mu       sync.Mutex
	by       map[string]*turn
}

type turn struct {
	queue *queue
	n     int // the holder and those waiting
}

// Limits of the attempts that may wait for one name.
const (
	maxTurnWaiting          = 64
	maxTurnWaitingPerSource = 16
)

func newTurns(patience time.Duration) *turns {
	return &turns{patience: patience, by: map[string]*turn{}}
}

func (t *turns) take(ctx context.Context, name, source string) (done func(), err error) {
	t.mu.Lock()
	w := t.by[name]
	if w == nil {
		w = &turn{queue: newQueue(1, maxTurnWaitingPerSource, maxTurnWaiting, t.patience)}
		t.by[name] = w
	}
	w.n++
	t.mu.Unlock()

	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if w.n--; w.n == 0 {
			delete(t.by, name)
		}
	}
	if err := w.queue.take(ctx, source); err != nil {
		leave()
		return nil, err
	}
	return func() { w.queue.release(); leave() }, nil
}

// wait returns when a multiple of refusalInterval has passed since start.
func (a *Auth) wait(ctx context.Context, start time.Time) {
	spent := time.Since(start)
	t := time.NewTimer(spent.Truncate(a.refusalInterval) + a.refusalInterval - spent)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
