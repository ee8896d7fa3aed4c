package mark

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/workspace"
)

// Runtime stores a mark next to the homes; runtime.Runtime implements it.
type Runtime interface {
	Mark(ctx context.Context) (m workspace.Mark, found bool, err error)
	SetMark(ctx context.Context, m workspace.Mark) error
}

// Config configures a Keeper.
type Config struct {
	Runtime Runtime
	Bucket  *bucket.Bucket
	// Files identifies the files of the database, which a copy of them does not
	// share; nil or "": the files cannot be read.
	Files func() string
	Log   *slog.Logger
	// Conditions lists a hold and that Docker does not respond; nil: it is only
	// logged.
	Conditions *health.Monitor

	Every  time.Duration // between two marks; 0: 20 s
	Watch  time.Duration // for how long the mark of a possible original is watched; 0: 30 s
	Check  time.Duration // between two checks of Docker's mark while leading; 0: 5 s
	Retry  time.Duration // after Docker or the bucket did not respond; 0: 1 s
	Within time.Duration // for one response of Docker or the bucket; 0: 20 s
	// First is Within for the bucket's first response in a term on a Docker that this database led
	// last; 0: 2 s.
	First time.Duration
}

// Keeper compares and stores the marks of the leader.
type Keeper struct {
	cfg  Config
	wake chan struct{}

	away, onHold, watching *health.Condition

	mu     sync.Mutex
	latest *term // the last one that has begun
	status Status
}

// Status is the state of the marks on the leader.
type Status struct {
	Hold      string // reason for the hold; empty: not on hold
	Docker    string // why Docker's mark could not be read or stored; empty: it could
	Watching  bool   // it checks whether another server leads
	MayRemove bool   // Docker and bucket were both compared in this term
}

// New returns a Keeper.
func New(cfg Config) *Keeper {
	defaults := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	defaults(&cfg.Every, 20*time.Second)
	defaults(&cfg.Watch, 30*time.Second)
	defaults(&cfg.Check, 5*time.Second)
	defaults(&cfg.Retry, time.Second)
	defaults(&cfg.Within, 20*time.Second)
	defaults(&cfg.First, 2*time.Second)
	condition := func(name, failing, resolved string, level slog.Level) *health.Condition {
		return cfg.Conditions.New(health.Config{Name: name, Failing: failing, Resolved: resolved, Level: level, Log: cfg.Log})
	}
	return &Keeper{cfg: cfg, wake: make(chan struct{}, 1),
		away:     condition("docker", "read mark in runtime failed; waiting", "mark in runtime was read", slog.LevelError),
		onHold:   condition("hold", "codehub is on hold", "codehub is no longer on hold", slog.LevelError),
		watching: condition("moved-database", "database was moved, restored or copied; checking for another server", "no other server found", slog.LevelInfo),
	}
}

// Wake makes the Keeper check soon whether a new mark is wanted. It never blocks.
func (k *Keeper) Wake() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Status returns the state of the marks.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.status
	s.Docker, s.Hold, s.Watching = k.away.Text(), k.onHold.Text(), k.watching.Err() != nil
	return s
}

// MayRemove reports whether anything may be removed: Docker and the bucket were
// both compared since this server leads.
func (k *Keeper) MayRemove() bool { return k.Status().MayRemove }

// newTerm returns a term, which is the latest from now on.
func (k *Keeper) newTerm(session postgres.Session) *term {
	t := &term{Keeper: k, db: postgres.NewMarks(session)}
	k.mu.Lock()
	k.latest = t
	k.mu.Unlock()
	t.reset()
	return t
}

var errWatching = errors.New("checking for another server: the database was moved, restored or copied")

// errForeign: another database leads.
type errForeign struct{ why string }

func (e *errForeign) Error() string { return e.why }

// Run runs act while this database leads, with a context that ends when another
// database does, and runs nothing while codehub is on hold. It returns when
// ctx ends, act returns by itself, or the session is gone.
func (k *Keeper) Run(ctx context.Context, session postgres.Session, act func(ctx context.Context) error) error {
	t := k.newTerm(session)
	defer t.reset()
	if err := t.identify(ctx); err != nil {
		return err
	}
	for {
		err := t.begin(ctx)
		if err == nil {
			err = t.lead(ctx, act)
		}
		var foreign *errForeign
		switch {
		case ctx.Err() != nil:
			return nil
		case !errors.As(err, &foreign):
			return err
		}
		if err := t.hold(ctx, foreign.why); err != nil && ctx.Err() == nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// Move compares once and stores a new mark, for commands and tests that act
// without Run. A foreign mark is an error for which IsForeign is true.
func (k *Keeper) Move(ctx context.Context, session postgres.Session) error {
	t := k.newTerm(session)
	if err := t.identify(ctx); err != nil {
		return err
	}
	return t.begin(ctx)
}

// IsForeign reports whether err says that another database led last.
func IsForeign(err error) bool {
	var foreign *errForeign
	return errors.As(err, &foreign)
}
