package backup

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
)

// Schedule is when a Runner makes backups, as codehub serve declares it.
type Schedule struct {
	Interval time.Duration `name:"database-backup-interval" env:"CODEHUB_DATABASE_BACKUP_INTERVAL" min:"10m" or:"0" max:"720h" default:"24h" help:"Time between two backups of the database into the bucket; 0: none."`
	Keep     int           `name:"database-backups" env:"CODEHUB_DATABASE_BACKUPS" min:"1" max:"1000" default:"14" help:"Backups of the database that are kept in the bucket."`
}

// RunnerConfig configures a Runner.
type RunnerConfig struct {
	Config
	Schedule
	First time.Duration // from the start of a term to the first look for the last backup; 0: 5 min
	Retry time.Duration // pause after a failure, and until Ready; 0: 10 min
	Ready func() bool   // whether the bucket is known to be this database's; nil: always
	// Conditions lists that backups fail; nil: it is only logged.
	Conditions *health.Monitor
	Log        *slog.Logger
}

// Runner makes backups while this server leads.
type Runner struct {
	cfg    RunnerConfig
	failed *health.Condition
	last   atomic.Int64 // Unix time of the last backup in the bucket; 0: not known
}

// NewRunner returns a Runner.
func NewRunner(cfg RunnerConfig) *Runner {
	if cfg.First <= 0 {
		cfg.First = 5 * time.Minute
	}
	if cfg.Retry <= 0 {
		cfg.Retry = 10 * time.Minute
	}
	return &Runner{cfg: cfg, failed: cfg.Conditions.New(health.Config{
		Name: "database-backup", Failing: "back up the database failed; retrying", Resolved: "the database is backed up again", Level: slog.LevelError, Log: cfg.Log,
	})}
}

// Last is the time of the last backup in the bucket; zero if Run does not run, or there is none.
func (r *Runner) Last() time.Time {
	if at := r.last.Load(); at != 0 {
		return time.Unix(at, 0)
	}
	return time.Time{}
}

// Run makes backups until ctx ends. It retries failures. When the last one was made is read from
// the bucket, so that the interval goes on when another server leads.
func (r *Runner) Run(ctx context.Context) error {
	if r.cfg.Interval <= 0 {
		return nil
	}
	defer r.failed.Reset()
	defer r.last.Store(0) // the next leader makes later ones
	wait := r.cfg.First
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = r.cfg.Retry
		if r.cfg.Ready != nil && !r.cfg.Ready() {
			continue
		}
		due, err := r.backUp(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if r.failed.Set(err); err == nil {
			wait = due
		}
	}
}

// backUp makes a backup if it is time, and returns the time to the next one. It removes the oldest
// ones even if it is not, so that a removal that failed is tried again.
func (r *Runner) backUp(ctx context.Context) (due time.Duration, err error) {
	list, err := r.cfg.Bucket.Backups(ctx)
	if err != nil {
		return 0, err
	}
	list = slices.DeleteFunc(list, bucket.BackupObject.Future)
	if n := len(list); n > 0 {
		made := list[n-1].Time()
		r.last.Store(made.Unix())
		if age := time.Since(made); age < r.cfg.Interval {
			return r.cfg.Interval - age, r.prune(ctx, list)
		}
	}
	begun := time.Now()
	s, err := Store(ctx, r.cfg.Config)
	if err != nil {
		return 0, err
	}
	r.last.Store(begun.Unix())
	r.cfg.Log.Info("database backed up", "key", s.Key, "took", time.Since(begun))
	return r.cfg.Interval, r.prune(ctx, append(list, bucket.BackupObject{Object: store.Object{Key: s.Key}}))
}

// prune removes the oldest backups of a list.
func (r *Runner) prune(ctx context.Context, list []bucket.BackupObject) error {
	for i := range len(list) - r.cfg.Keep {
		if err := r.cfg.Bucket.DeleteBackup(ctx, list[i].Key); err != nil {
			return err
		}
	}
	return nil
}
