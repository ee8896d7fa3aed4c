package gc

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// Runner collects garbage while this server leads.
type Runner struct {
	cfg       RunnerConfig
	full      *health.Condition
	deletions *health.Condition
	mu        sync.Mutex
	stand     Status
}

// Schedule is when a Runner collects, as codehub serve declares it. An Interval of 0
// is 4 h.
type Schedule struct {
	Interval time.Duration `name:"gc-interval" env:"CODEHUB_GC_INTERVAL" min:"5s" max:"720h" default:"4h" help:"Time between two garbage collections of archives."`
}

// RunnerConfig configures a Runner.
type RunnerConfig struct {
	Config
	Schedule
	First time.Duration // from the start of a term to its first collection; 0: 3 min, or Interval if that is less
	// Glance is how often deleted workspaces of which only archives are left
	// are looked for; 0: 1 min.
	Glance time.Duration
	// Ready reports whether removals are allowed yet; nil: always.
	Ready  func() bool
	AtOnce int // deleted workspaces per glance; 0: 100
	// Conditions lists that collections fail; nil: it is only logged.
	Conditions *health.Monitor
}

// Status is the state of garbage collection, for /readyz and metrics.
type Status struct {
	At      time.Time // of the last full collection; zero: none yet
	Err     string    // its error; empty: it succeeded
	Took    time.Duration
	Counts  map[Verdict]int
	Bytes   map[Verdict]int64
	Aborted int
	// Removed and Failed count all archives since this process started.
	Removed, Failed int
	RemovedBytes    int64
}

// NewRunner returns a Runner.
func NewRunner(cfg RunnerConfig) *Runner {
	cfg.Server = true
	if cfg.Interval <= 0 {
		cfg.Interval = 4 * time.Hour
	}
	if cfg.First <= 0 {
		cfg.First = min(3*time.Minute, cfg.Interval)
	}
	if cfg.Glance <= 0 {
		cfg.Glance = time.Minute
	}
	if cfg.AtOnce <= 0 {
		cfg.AtOnce = 100
	}
	condition := func(failing, resolved string) *health.Condition {
		return cfg.Conditions.New(health.Config{Name: "garbage-collection", Failing: failing, Resolved: resolved, Level: slog.LevelError, Log: cfg.Log})
	}
	return &Runner{cfg: cfg,
		full:      condition("garbage collection failed; retrying", "garbage collection recovered"),
		deletions: condition("remove archives of deleted workspaces failed; retrying", "archives of deleted workspaces are removed again"),
	}
}

// Status returns the state of garbage collection.
func (r *Runner) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stand
}

// calm is the pause before another attempt to release a deleted workspace.
const calm = 10 * time.Minute

// Run collects through the leader's session until ctx ends. It retries failures.
func (r *Runner) Run(ctx context.Context, session postgres.Session) error {
	full := time.NewTimer(spread(r.cfg.First))
	defer full.Stop()
	glance := time.NewTicker(r.cfg.Glance)
	defer glance.Stop()
	r.cfg.clock = &postgres.ClockWatch{}
	defer r.full.Reset()
	defer r.deletions.Reset()
	tried := map[workspace.ID]time.Time{}
	for {
		var err error
		condition := r.deletions
		select {
		case <-ctx.Done():
			return nil
		case <-full.C:
			if !r.ready() {
				full.Reset(r.cfg.Glance)
				continue
			}
			condition, err = r.full, r.collect(ctx, session)
			full.Reset(spread(r.cfg.Interval))
			clear(tried)
		case <-glance.C:
			if r.ready() {
				err = r.deleted(ctx, session, tried)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, postgres.ErrCollecting) { // another collection runs
			condition.Set(err)
		}
	}
}

func (r *Runner) ready() bool { return r.cfg.Ready == nil || r.cfg.Ready() }

// spread randomizes d by 10 %, so that servers that start together do not
// collect together.
func spread(d time.Duration) time.Duration {
	return d - d/10 + time.Duration(rand.Int64N(int64(d/5)+1))
}

// collect runs a full collection.
func (r *Runner) collect(ctx context.Context, session postgres.Session) error {
	report, err := Collect(ctx, r.cfg.Config, session, Options{})
	if errors.Is(err, postgres.ErrCollecting) {
		return err
	}
	r.note(report, err)
	if report == nil {
		return err
	}
	n, bytes := report.Removed()
	kept, _ := report.Count(Keep)
	waiting, _ := report.Count(Wait)
	unknown, unknownBytes := report.Count(Unknown)
	missing, _ := report.Count(Missing)
	found, _ := report.Count(Found)
	r.cfg.Log.Info("archives collected", "removed", n, "bytes", bytes, "kept", kept, "waiting", waiting, "found", found,
		"missing", missing, "unknown", unknown, "unknown_bytes", unknownBytes, "aborted_uploads", report.Aborted,
		"failed", report.Failed, "took", report.Took)
	return err
}

// deleted releases deleted workspaces of which only archives are left.
func (r *Runner) deleted(ctx context.Context, session postgres.Session, tried map[workspace.ID]time.Time) error {
	maps.DeleteFunc(tried, func(_ workspace.ID, at time.Time) bool { return time.Since(at) >= calm })
	ids, err := postgres.NewCollector(session).DueDeletions(ctx, r.cfg.Settings.DeleteGrace, slices.Collect(maps.Keys(tried)), r.cfg.AtOnce)
	if err != nil || len(ids) == 0 {
		return err
	}
	for _, id := range ids {
		tried[id] = time.Now()
	}
	report, err := Collect(ctx, r.cfg.Config, session, Options{Only: ids})
	if errors.Is(err, ErrRestored) || errors.Is(err, postgres.ErrCollecting) {
		clear(tried)
	}
	r.noteRemoved(report)
	return err
}

func (r *Runner) note(report *Report, err error) {
	r.noteRemoved(report)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.stand
	s.At, s.Err = time.Now(), ""
	if err != nil {
		s.Err = err.Error()
	}
	if report == nil {
		return
	}
	s.Took, s.Aborted = report.Took, report.Aborted
	s.Counts, s.Bytes = map[Verdict]int{}, map[Verdict]int64{}
	for _, v := range Verdicts() {
		s.Counts[v], s.Bytes[v] = report.Count(v)
	}
}

func (r *Runner) noteRemoved(report *Report) {
	if report == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n, bytes := report.Removed()
	r.stand.Removed += n
	r.stand.RemovedBytes += bytes
	r.stand.Failed += report.Failed
}
