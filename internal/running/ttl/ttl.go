// Package ttl stops idle workspaces and archives those that stay stopped. It runs
// on the leader. docs/workspaces.md#idle-workspaces describes the timeouts.
package ttl

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/bus/activity"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// Settings are the settings of a Runner, as codehub serve declares them. Interval is
// at most 2 min, so that with a flush it stays below the 3 min that count as a gap;
// 0 is 60 s.
type Settings struct {
	Interval time.Duration `name:"ttl-interval" env:"CODEHUB_TTL_INTERVAL" min:"1s" max:"2m" default:"1m" help:"Time between two checks for idle workspaces."`
	// BusyMax, WorkMax: 0 is never.
	BusyMax       time.Duration `name:"busy-max" env:"CODEHUB_BUSY_MAX" min:"0" max:"720h" default:"24h" help:"Longest time for which commands in a workspace keep it awake without another use (0 = never)."`
	WorkMax       time.Duration `name:"working-max" env:"CODEHUB_WORKING_MAX" min:"0" max:"24h" default:"8h" help:"Longest time a day for which processes at work keep a workspace awake whose owner turned that on (0 = never)."`
	WorkThreshold int           `name:"working-threshold" env:"CODEHUB_WORKING_THRESHOLD" min:"1" max:"10000" default:"20" help:"Processor use from which processes are at work, in percent of one processor."`
}

// Config holds a Runner's dependencies and settings.
type Config struct {
	TTL workspace.TTL // the server's defaults
	Bus activity.Bus  // nil: none
	Log *slog.Logger
	// Flush flushes this server's activity before the clock is read, so that a
	// single server does not stop a workspace that was just used. Its errors are
	// ignored here. Optional.
	Flush func(ctx context.Context) error
	// Agents are asked before a workspace is stopped; nil: nothing in a workspace keeps it
	// awake.
	Agents Agents
	Settings
	BatchSize int // workspaces per statement; 0: 500
	// Conditions lists that idle workspaces cannot be stopped; nil: it is only logged.
	Conditions *health.Monitor
}

// Runner ticks while this server leads.
type Runner struct {
	cfg           Config
	ticks, behind *health.Condition

	mu     sync.Mutex
	status Status
}

// Status is the state of the idle timeouts.
type Status struct {
	WatchedUntil time.Time // activity is known until then, in this term; zero: not yet, or this server does not lead
	Err          string    // of the last tick; empty: none
	Stopped      int64     // since this process started
	Archived     int64
}

// New returns a Runner.
func New(cfg Config) *Runner {
	if cfg.Interval <= 0 {
		cfg.Interval = time.Minute
	}
	if cfg.BatchSize <= 0 {
		cfg.BatchSize = 500
	}
	return &Runner{cfg: cfg,
		ticks: cfg.Conditions.New(health.Config{
			Name: "idleness", Failing: "stop idle workspaces failed; retrying", Resolved: "idle workspaces are stopped again", Level: slog.LevelError, Log: cfg.Log,
		}),
		behind: cfg.Conditions.New(health.Config{
			Name: "idleness", Failing: "activity of a server is missing; idle workspaces are not stopped",
			Resolved: "activity of all servers is known again", Level: slog.LevelWarn, Log: cfg.Log,
		}),
	}
}

// Status returns the state of the idle timeouts.
func (r *Runner) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.Err = r.ticks.Text()
	return s
}

// pruneInterval is the interval between removals of gaps that are no longer needed.
const pruneInterval = time.Hour

// Run ticks until ctx ends, through the leader's session. The next tick retries a
// failure.
func (r *Runner) Run(ctx context.Context, session postgres.Session) error {
	term := &term{
		Runner: r, idle: postgres.NewIdleness(session), store: postgres.NewActivityClock(session),
	}
	term.clock = activity.NewClock(term.store, r.cfg.Bus, r.cfg.Log, r.behind)
	defer r.update(func(s *Status) { s.WatchedUntil = time.Time{} })
	t := time.NewTicker(r.cfg.Interval)
	defer t.Stop()
	defer r.ticks.Reset()
	defer r.behind.Reset()
	for {
		err := term.tick(ctx)
		if ctx.Err() != nil {
			return nil
		}
		r.ticks.Set(err)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func (r *Runner) update(f func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.status)
}

// term is one term of leadership.
type term struct {
	*Runner
	clock  *activity.Clock
	store  *postgres.ActivityClock
	idle   *postgres.Idleness
	pruned time.Time
	// samples are those of the tick before.
	samples map[workspace.ID]sample
}

// tick advances the clock and stops and archives what is idle. It does nothing
// before the clock has advanced in this term, because earlier activity may be
// missing.
func (t *term) tick(ctx context.Context) error {
	if t.cfg.Flush != nil {
		_ = t.cfg.Flush(ctx) // the Flusher logs it
	}
	moved, err := t.clock.Tick(ctx)
	t.update(func(s *Status) { s.WatchedUntil = t.clock.Until() })
	if err != nil || !moved {
		return err
	}
	unknown, err := t.confirm(ctx)
	if err != nil {
		return err
	}
	endIdle := func(ctx context.Context, def time.Duration, limit int) ([]workspace.ID, error) {
		return t.idle.EndIdle(ctx, def, limit, unknown...)
	}
	if err := t.end(ctx, "idle workspace stopped", endIdle, t.cfg.TTL.Standby, func(s *Status) *int64 { return &s.Stopped }); err != nil {
		return err
	}
	if err := t.end(ctx, "idle workspace archived", t.idle.EndUnused, t.cfg.TTL.Archive, func(s *Status) *int64 { return &s.Archived }); err != nil {
		return err
	}
	if time.Since(t.pruned) < pruneInterval {
		return nil
	}
	if _, err := t.store.Prune(ctx, t.cfg.TTL); err != nil {
		return err
	}
	t.pruned = time.Now()
	return nil
}

// end stops or archives all that is due, in batches, because others use the
// session, too.
func (t *term) end(ctx context.Context, what string, due func(context.Context, time.Duration, int) ([]workspace.ID, error),
	def time.Duration, count func(*Status) *int64) error {
	for {
		ids, err := due(ctx, def, t.cfg.BatchSize)
		if err != nil {
			return err
		}
		for _, id := range ids {
			t.cfg.Log.Info(what, "workspace", id)
		}
		t.update(func(s *Status) { *count(s) += int64(len(ids)) })
		if len(ids) < t.cfg.BatchSize {
			return nil
		}
	}
}
