// Package ttl stops what nobody uses and archives what stays stopped, on the
// leader (design §4).
package ttl

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"codehub/internal/activity"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// Config is what a Runner is made of.
type Config struct {
	TTL workspace.TTL // the server's defaults
	Bus activity.Bus  // nil: none
	Log *slog.Logger
	// Flush hands on what this very server saw, right before the clock is
	// read, so that with one server nothing is stopped that was just used. Its
	// errors are of no concern here. nil: not.
	Flush func(ctx context.Context) error
	Every time.Duration // between two ticks; 0: 60 s
	Batch int           // workspaces that one statement ends; 0: 500
}

// Runner ticks for as long as this server leads.
type Runner struct {
	cfg Config

	mu    sync.Mutex
	stand Status
}

// Status is how the TTLs fare.
type Status struct {
	WatchedUntil time.Time // how far the clock has come in this term; zero: not yet, or this server does not lead
	Err          string    // why the last tick failed; empty: it did not
	Stopped      int64     // since this process started
	Archived     int64
}

// New makes a Runner.
func New(cfg Config) *Runner {
	if cfg.Every <= 0 {
		cfg.Every = time.Minute
	}
	if cfg.Batch <= 0 {
		cfg.Batch = 500
	}
	return &Runner{cfg: cfg}
}

// Status tells how the TTLs fare.
func (r *Runner) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stand
}

// pruneEvery is how often gaps are looked for that nothing needs any more.
const pruneEvery = time.Hour

// Run ticks until ctx ends, through the leader's session. What fails is tried
// again by the next tick; it is logged once until it changes.
func (r *Runner) Run(ctx context.Context, session postgres.Session) error {
	term := &term{
		Runner: r, idle: postgres.NewIdleness(session), store: postgres.NewActivityClock(session),
	}
	term.clock = activity.NewClock(term.store, r.cfg.Bus, r.cfg.Log)
	defer r.note(func(s *Status) { s.WatchedUntil = time.Time{} })
	t := time.NewTicker(r.cfg.Every)
	defer t.Stop()
	said := ""
	for {
		err := term.tick(ctx)
		if ctx.Err() != nil {
			return nil
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != said {
			r.cfg.Log.Error("what is idle cannot be stopped; it is tried again", "err", err)
		}
		said = text
		r.note(func(s *Status) { s.Err = text })
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func (r *Runner) note(f func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.stand)
}

// term is one time of leadership.
type term struct {
	*Runner
	clock  *activity.Clock
	store  *postgres.ActivityClock
	idle   *postgres.Idleness
	pruned time.Time
}

// tick moves the clock and ends what is idle by it. Before the clock has moved
// in this term nothing is known of the time before.
func (t *term) tick(ctx context.Context) error {
	if t.cfg.Flush != nil {
		_ = t.cfg.Flush(ctx) // the Flusher tells of it
	}
	moved, err := t.clock.Tick(ctx)
	t.note(func(s *Status) { s.WatchedUntil = t.clock.Until() })
	if err != nil || !moved {
		return err
	}
	if err := t.end(ctx, "stopped: not used", t.idle.EndIdle, t.cfg.TTL.Standby, func(s *Status) *int64 { return &s.Stopped }); err != nil {
		return err
	}
	if err := t.end(ctx, "archived: not used", t.idle.EndUnused, t.cfg.TTL.Archive, func(s *Status) *int64 { return &s.Archived }); err != nil {
		return err
	}
	if time.Since(t.pruned) < pruneEvery {
		return nil
	}
	if _, err := t.store.Prune(ctx, t.cfg.TTL); err != nil {
		return err
	}
	t.pruned = time.Now()
	return nil
}

// end ends all that is due, a batch at a time: others use the session, too.
func (t *term) end(ctx context.Context, what string, due func(context.Context, time.Duration, int) ([]workspace.ID, error),
	def time.Duration, count func(*Status) *int64) error {
	for {
		ids, err := due(ctx, def, t.cfg.Batch)
		if err != nil {
			return err
		}
		for _, id := range ids {
			t.cfg.Log.Info(what, "workspace", id)
		}
		t.note(func(s *Status) { *count(s) += int64(len(ids)) })
		if len(ids) < t.cfg.Batch {
			return nil
		}
	}
}
