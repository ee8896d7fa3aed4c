package activity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"codehub/internal/base/health"
)

// Replica is a server as the leader sees it, by the database's clock.
type Replica struct {
	ID        string
	StartedAt time.Time
	SeenAt    time.Time
	FlushedAt *time.Time // everything seen before this time is flushed; nil: nothing yet
	Epoch     string     // of the last flush; Gone: declared dead at FlushedAt
}

// Gone is the epoch of a replica that was declared dead. If it was only stopped or
// disconnected and returns, the clock waits for its next flush.
const Gone = "gone"

// declaredDead reports whether it was declared dead and has not been seen since.
func (r Replica) declaredDead() bool { return r.Epoch == Gone && !r.SeenAt.After(r.knownUntil()) }

// knownUntil is the time until which all activity of the replica is known. A
// replica that has not flushed yet saw nothing before it started.
func (r Replica) knownUntil() time.Time {
	if r.FlushedAt == nil {
		return r.StartedAt
	}
	return *r.FlushedAt
}

// available reports whether the leader can read what the replica flushed: not if
// the bus has begun a new epoch since, nor after the replica was declared dead.
func (r Replica) available(epoch string) bool {
	return r.FlushedAt == nil || r.Epoch == Database || (epoch != "" && r.Epoch == epoch)
}

// State is the input of a tick of the clock.
type State struct {
	Now          time.Time // the database's
	WatchedUntil *time.Time
	Replicas     []Replica
}

// Gap is a time in which activity was not observed. If Began is nil, it covers all
// time before Ended.
type Gap struct {
	Began *time.Time
	Ended time.Time
}

// Step is the result of a tick.
type Step struct {
	Now          time.Time // the State's
	WatchedUntil time.Time // zero: unchanged
	Gaps         []Gap
	Dead         []Replica // to be marked as Gone, unless they were seen again
}

// Empty reports whether the step changes nothing.
func (s Step) Empty() bool { return s.WatchedUntil.IsZero() && len(s.Gaps) == 0 && len(s.Dead) == 0 }

// ErrMoved is returned by ClockStore.Take if the state has changed since it was
// read.
var ErrMoved = errors.New("a server that was declared dead is back")

// ClockStore is the database as the Clock uses it, through the leader's session, so
// that a former leader changes nothing.
type ClockStore interface {
	State(ctx context.Context) (State, error)
	// SaveAccesses records when workspaces were last used. It never replaces a
	// later time.
	SaveAccesses(ctx context.Context, seen []Access) error
	// Take applies the whole step, or nothing and returns ErrMoved.
	Take(ctx context.Context, s Step) error
}

const (
	// DeadAfter is the time without a heartbeat after which a replica counts as
	// dead.
	DeadAfter = 60 * time.Second
	// maxAdvance is how far the clock may advance in one tick without a gap.
	maxAdvance = 3 * time.Minute
	// staleAfter is the age from which the flush of a live replica is logged.
	staleAfter = 5 * time.Minute
)

// Clock advances watched_until, the time until which all activity is in the
// database. Idle timeouts are measured against it. The leader has one Clock per
// term.
type Clock struct {
	store ClockStore
	bus   Bus // nil: none
	log   *slog.Logger
	began time.Time
	until time.Time // as of the last tick; zero: not advanced yet
	// behind fails while the activity of a living server is missing.
	behind *health.Condition
}

// NewClock returns the clock for a new term. bus may be nil. behind fails while the
// activity of a living server is missing.
func NewClock(store ClockStore, bus Bus, log *slog.Logger, behind *health.Condition) *Clock {
	return &Clock{store: store, bus: bus, log: log, began: time.Now(), behind: behind}
}

// Tick writes the activity from the bus and advances the clock as far as activity
// is known. moved reports whether it has advanced in this term.
//
// The order matters: everything that the replicas' rows report as flushed is in the
// bus when it is read afterwards, or the bus has another epoch.
func (c *Clock) Tick(ctx context.Context) (moved bool, err error) {
	state, err := c.store.State(ctx)
	if err != nil {
		return c.moved(), err
	}
	seen, epoch := c.read(ctx)
	if len(seen) > 0 {
		if err := c.store.SaveAccesses(ctx, seen); err != nil {
			return c.moved(), fmt.Errorf("write activity: %w", err)
		}
	}
	step := decide(state, epoch, time.Since(c.began) >= DeadAfter)
	if !step.Empty() {
		if err := c.store.Take(ctx, step); err != nil {
			if errors.Is(err, ErrMoved) {
				return c.moved(), nil // the next tick reads the new state
			}
			return c.moved(), fmt.Errorf("advance the activity clock: %w", err)
		}
	}
	if !step.WatchedUntil.IsZero() {
		c.until = step.WatchedUntil
	}
	c.report(state, step, epoch)
	if len(seen) > 0 {
		if err := c.bus.Remove(ctx, seen); err != nil {
			c.log.Debug("remove activity from bus failed", "err", err)
		}
	}
	return c.moved(), nil
}

// Until returns the time to which the clock has advanced in this term; zero: not
// yet.
func (c *Clock) Until() time.Time { return c.until }

func (c *Clock) moved() bool { return !c.until.IsZero() }

// read reads the bus. The epoch is empty if there is no bus or the read fails.
func (c *Clock) read(ctx context.Context) ([]Access, string) {
	if c.bus == nil {
		return nil, ""
	}
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	seen, epoch, err := c.bus.Read(ctx)
	if err != nil {
		c.log.Debug("read activity bus failed", "err", err)
		return nil, ""
	}
	return seen, epoch
}

// decide computes the step. epoch is the bus's, or empty. bury reports whether
// replicas may be declared dead: right after an outage of the database all seem
// dead.
func decide(s State, epoch string, bury bool) Step {
	step := Step{Now: s.Now}
	var until time.Time
	known := true
	for _, r := range s.Replicas {
		dead := s.Now.Sub(r.SeenAt) > DeadAfter
		if dead && r.declaredDead() {
			continue
		}
		if dead && bury {
			step.Dead = append(step.Dead, r)
			if from := r.knownUntil(); from.Before(s.Now) {
				step.Gaps = append(step.Gaps, Gap{&from, s.Now})
			}
			continue
		}
		known = known && r.available(epoch)
		if at := r.knownUntil(); until.IsZero() || at.Before(until) {
			until = at
		}
	}
	switch was := s.WatchedUntil; {
	case until.IsZero() || !known:
	case was == nil:
		step.WatchedUntil = until
		step.Gaps = append(step.Gaps, Gap{nil, until})
	case until.After(*was):
		step.WatchedUntil = until
		if until.Sub(*was) > maxAdvance {
			step.Gaps = append(step.Gaps, Gap{was, until})
		}
	}
	// The database's clock was set back. Without a gap, new activity would seem old
	// until the clock catches up.
	if was := s.WatchedUntil; was != nil && was.After(s.Now) {
		step.Gaps = append(step.Gaps, Gap{&s.Now, later(*was, step.WatchedUntil)})
	}
	return step
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// report logs dead servers and what prevents idle workspaces from stopping.
func (c *Clock) report(s State, step Step, epoch string) {
	for _, r := range step.Dead {
		c.log.Warn("server declared dead; its unobserved time does not count as idle", "replica", r.ID, "seen_at", r.SeenAt, "flushed_at", r.knownUntil())
	}
	behind := ""
	if step.WatchedUntil.IsZero() && s.WatchedUntil != nil && s.Now.Sub(*s.WatchedUntil) > staleAfter {
		for _, r := range s.Replicas {
			if !r.declaredDead() && (s.Now.Sub(r.knownUntil()) > staleAfter || !r.available(epoch)) {
				behind = r.ID
			}
		}
	}
	if behind == "" {
		c.behind.Set(nil)
		return
	}
	c.behind.Set(fmt.Errorf("no activity of server %s for %s", behind, staleAfter), "replica", behind, "bus", epoch != "")
}
