package activity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Replica is a serving process as the leader sees it, by the database's clock.
type Replica struct {
	ID        string
	StartedAt time.Time
	SeenAt    time.Time
	FlushedAt *time.Time // up to when it has handed on what it saw; nil: not yet
	Epoch     string     // of what it handed on; Gone: it was found dead at FlushedAt
}

// Gone is the epoch of a replica that was found dead. If it comes back, which
// takes that it was stopped or cut off, the clock waits for what it has to hand
// on.
const Gone = "gone"

// buried: it was found dead and has not been seen since.
func (r Replica) buried() bool { return r.Epoch == Gone && !r.SeenAt.After(r.covered()) }

// covered is up to when all that the replica saw is known: one that has not
// flushed yet had seen nothing before it started.
func (r Replica) covered() time.Time {
	if r.FlushedAt == nil {
		return r.StartedAt
	}
	return *r.FlushedAt
}

// known reports whether what the replica handed on is where the leader finds
// it: not if it is in an epoch of the bus that is over, nor after it was taken
// for dead.
func (r Replica) known(epoch string) bool {
	return r.FlushedAt == nil || r.Epoch == Database || (epoch != "" && r.Epoch == epoch)
}

// State is what a tick of the clock begins with.
type State struct {
	Now          time.Time // the database's
	WatchedUntil *time.Time
	Replicas     []Replica
}

// Gap is a time in which nobody saw what people did. Began is nil for ever
// before.
type Gap struct {
	Began *time.Time
	Ended time.Time
}

// Step is what a tick changes.
type Step struct {
	Now          time.Time // the State's
	WatchedUntil time.Time // zero: it stays
	Gaps         []Gap
	Dead         []Replica // from Now on Gone, unless they were seen again
}

// Empty reports whether nothing changes.
func (s Step) Empty() bool { return s.WatchedUntil.IsZero() && len(s.Gaps) == 0 && len(s.Dead) == 0 }

// ErrMoved is ClockStore.Take's for a step that rests on what has changed.
var ErrMoved = errors.New("a server that was taken for dead is back")

// ClockStore is the database as the Clock uses it: through the leader's
// session, so that one that leads no more moves nothing.
type ClockStore interface {
	State(ctx context.Context) (State, error)
	// SaveAccesses writes when workspaces were last used, never backwards.
	SaveAccesses(ctx context.Context, seen []Access) error
	// Take does all of a step or, with ErrMoved, nothing.
	Take(ctx context.Context, s Step) error
}

const (
	// DeadAfter is for how long a replica is not seen that counts as dead.
	DeadAfter = 60 * time.Second
	// jump is how far the clock moves at once without that being a gap.
	jump = 3 * time.Minute
	// stale is how old the flush of a living replica is to be told of.
	stale = 5 * time.Minute
)

// Clock moves watched_until, which is what TTLs count as now (design §4): up
// to then everything that people did is in the database. The leader has one
// for each of its terms.
type Clock struct {
	store ClockStore
	bus   Bus // nil: none
	log   *slog.Logger
	began time.Time
	until time.Time // by the last tick; zero: it has not moved yet
	said  string
}

// NewClock makes the clock of a term that begins now. bus may be nil.
func NewClock(store ClockStore, bus Bus, log *slog.Logger) *Clock {
	return &Clock{store: store, bus: bus, log: log, began: time.Now()}
}

// Tick writes what the bus has collected and moves the clock as far as that
// is known. moved says whether it has moved in this term, now or before.
//
// The order matters: what a replica has recorded as handed on before it was
// read here is in the bus that is read after, or the bus is in another epoch.
func (c *Clock) Tick(ctx context.Context) (moved bool, err error) {
	state, err := c.store.State(ctx)
	if err != nil {
		return c.moved(), err
	}
	seen, epoch := c.read(ctx)
	if len(seen) > 0 {
		if err := c.store.SaveAccesses(ctx, seen); err != nil {
			return c.moved(), fmt.Errorf("write when workspaces were last used: %w", err)
		}
	}
	step := decide(state, epoch, time.Since(c.began) >= DeadAfter)
	if !step.Empty() {
		if err := c.store.Take(ctx, step); err != nil {
			if errors.Is(err, ErrMoved) {
				return c.moved(), nil // the next tick knows better
			}
			return c.moved(), fmt.Errorf("move the clock of activity: %w", err)
		}
	}
	if !step.WatchedUntil.IsZero() {
		c.until = step.WatchedUntil
	}
	c.report(state, step, epoch)
	if len(seen) > 0 {
		if err := c.bus.Remove(ctx, seen); err != nil {
			c.log.Debug("what was read stays in the bus", "err", err)
		}
	}
	return c.moved(), nil
}

// Until is up to when the clock has moved in this term; zero: not yet.
func (c *Clock) Until() time.Time { return c.until }

func (c *Clock) moved() bool { return !c.until.IsZero() }

// read reads the bus; the epoch is empty if there is none, or if it fails.
func (c *Clock) read(ctx context.Context) ([]Access, string) {
	if c.bus == nil {
		return nil, ""
	}
	ctx, cancel := context.WithTimeout(ctx, busWithin)
	defer cancel()
	seen, epoch, err := c.bus.Read(ctx)
	if err != nil {
		c.log.Debug("the bus cannot be read", "err", err)
		return nil, ""
	}
	return seen, epoch
}

// decide is the rule. epoch is the bus's, empty for none; bury says whether a
// replica may be declared dead: after an outage of the database all look so.
func decide(s State, epoch string, bury bool) Step {
	step := Step{Now: s.Now}
	var until time.Time
	known := true
	for _, r := range s.Replicas {
		dead := s.Now.Sub(r.SeenAt) > DeadAfter
		if dead && r.buried() {
			continue
		}
		if dead && bury {
			step.Dead = append(step.Dead, r)
			if from := r.covered(); from.Before(s.Now) {
				step.Gaps = append(step.Gaps, Gap{&from, s.Now})
			}
			continue
		}
		known = known && r.known(epoch)
		if at := r.covered(); until.IsZero() || at.Before(until) {
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
		if until.Sub(*was) > jump {
			step.Gaps = append(step.Gaps, Gap{was, until})
		}
	}
	// The database's clock was set back: what begins now would look idle for as
	// long as that clock takes to catch up.
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

// report says what keeps idle workspaces from being stopped, once until it
// changes.
func (c *Clock) report(s State, step Step, epoch string) {
	for _, r := range step.Dead {
		c.log.Warn("a server is gone; the time that nobody watched counts for no workspace", "replica", r.ID, "seen_at", r.SeenAt, "flushed_at", r.covered())
	}
	behind := ""
	if step.WatchedUntil.IsZero() && s.WatchedUntil != nil && s.Now.Sub(*s.WatchedUntil) > stale {
		for _, r := range s.Replicas {
			if !r.buried() && (s.Now.Sub(r.covered()) > stale || !r.known(epoch)) {
				behind = r.ID
			}
		}
	}
	if behind != c.said && behind != "" {
		c.log.Warn("what people do at a server does not arrive; nothing idle is stopped until it does", "replica", behind, "bus", epoch != "")
	}
	c.said = behind
}
