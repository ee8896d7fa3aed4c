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

// The lockout of design §6: from the 5th failure on 30 s, doubling, at most
// 30 min, per user.
const (
	lockFrom  = 5
	lockFirst = 30 * time.Second
	lockMost  = 30 * time.Minute

	// maxAttemptNames bounds what is remembered of names without a user.
	// Pushing one out takes as many password hashes as there are names here.
	maxAttemptNames = 1 << 16

	// refusalQuantum hides behind a wait what a refusal had to do: counting
	// the failure of somebody who exists takes a commit, of nobody none.
	refusalQuantum = 250 * time.Millisecond
)

const detailRetryAfter = "retry_after_seconds"

// lockedUntil is the end of the lock that a number of failures in a row
// brings; nil for none.
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

// attempts counts failures where there is no row to count them in: for names
// that nobody has, which must lock like those of users, and for the setup
// code. The least recently used are forgotten.
type attempts struct {
	mu   sync.Mutex
	max  int
	by   map[[32]byte]*list.Element
	used *list.List // front: most recent
}

type attempt struct {
	key      [32]byte
	failures int
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
	at.until = lockedUntil(at.failures, now)
}

// turns lets one attempt per name through at a time, so that a burst of
// guesses cannot all pass before the first failure is counted.
type turns struct {
	mu sync.Mutex
	by map[string]*turn
}

type turn struct {
	slot chan struct{}
	n    int // who holds it or waits
}

// maxTurnWaiting bounds how many attempts may wait for one name.
const maxTurnWaiting = 16

func newTurns() *turns { return &turns{by: map[string]*turn{}} }

func (t *turns) take(ctx context.Context, name string) (done func(), err error) {
	t.mu.Lock()
	w := t.by[name]
	if w == nil {
		w = &turn{slot: make(chan struct{}, 1)}
		t.by[name] = w
	}
	if w.n > maxTurnWaiting {
		t.mu.Unlock()
		return nil, tooBusy()
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
	select {
	case w.slot <- struct{}{}:
		return func() { <-w.slot; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// wait returns once a multiple of answerIn has passed since start.
func (a *Auth) wait(ctx context.Context, start time.Time) {
	spent := time.Since(start)
	t := time.NewTimer(spent.Truncate(a.answerIn) + a.answerIn - spent)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
