package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"codehub/api"
	"codehub/internal/base/health"
	"codehub/internal/postgres"
	"codehub/internal/storage/bucket"
	"codehub/internal/users/sealed"
	"codehub/internal/workspace"
)

// DrillConfig says what a drill restores, and what it compares it with.
type DrillConfig struct {
	Bucket *bucket.Bucket
	DSN    string
	DB     *postgres.DB // of DSN
	Keys   *sealed.Ring
	// Compare compares the rows of a restored database with Docker and the bucket (rollback.Service).
	Compare func(ctx context.Context, restored postgres.RollbackState, live func(context.Context) (postgres.RollbackState, error)) (api.DrillComparison, error)
}

// ErrNoBackup is the error of Drill if the bucket has no backup of this installation's database.
var ErrNoBackup = errors.New("the bucket has no backup of the database")

// Drill restores the last backup in the bucket into a scratch database, compares it, and records
// the result. What is wrong with the backup is in the result; an error is about the drill, such as
// postgres.ErrDrilling or a missing right, and leaves the last result.
func Drill(ctx context.Context, cfg DrillConfig) (d api.DatabaseDrill, err error) {
	last, err := lastBackup(ctx, cfg.Bucket)
	if err != nil {
		return d, err
	}
	d.Backup, d.Comparison = last.Key, api.DrillComparison{Changes: map[string]int{}, MissingIn: []string{}}
	from := &object{ctx: ctx, bucket: cfg.Bucket, key: last.Key}
	defer from.close()
	err = postgres.WithScratch(ctx, cfg.DSN, from, func(ctx context.Context, s *postgres.Scratch) error {
		return compare(ctx, cfg, s, &d)
	})
	switch {
	case errors.Is(err, postgres.ErrUnrestorable) && from.err == nil:
		d.Problem = workspace.Cut(err.Error())
	case err != nil:
		return d, fmt.Errorf("restore the backup %s for comparison: %w", last.Key, err)
	}
	return d, cfg.DB.SaveDatabaseDrill(ctx, d)
}

// lastBackup is the last backup that is not of the future.
func lastBackup(ctx context.Context, b *bucket.Bucket) (o bucket.BackupObject, err error) {
	list, err := b.Backups(ctx)
	if err != nil {
		return o, err
	}
	list = slices.DeleteFunc(list, bucket.BackupObject.Future)
	if len(list) == 0 {
		return o, ErrNoBackup
	}
	return list[len(list)-1], nil
}

// compare compares a restored database, and puts the result into d.
func compare(ctx context.Context, cfg DrillConfig, s *postgres.Scratch, d *api.DatabaseDrill) error {
	d.BackupAt, d.Tables, d.Rows = &s.Time, s.Tables, s.Rows
	restored, err := s.Homes(ctx)
	if err != nil {
		return err
	}
	unreadable, why := 0, error(nil)
	err = s.SealedValues(ctx, func(v postgres.SealedValue) error {
		text, err := cfg.Keys.Open(v.Value, v.Owner)
		clear(text)
		if err != nil {
			unreadable, why = unreadable+1, err
			return nil
		}
		d.Secrets++
		return nil
	})
	if err != nil {
		return err
	}
	if d.Comparison, err = cfg.Compare(ctx, restored, cfg.DB.Homes); err != nil {
		return fmt.Errorf("compare with the runtime and the bucket: %w", err)
	}
	var problems []string
	if n := d.Comparison.Missing; n > 0 {
		problems = append(problems, fmt.Sprintf("workspaces that have not changed since the backup and whose home is missing: %d, such as %s", n, strings.Join(d.Comparison.MissingIn, ", ")))
	}
	if unreadable > 0 {
		problems = append(problems, fmt.Sprintf("encrypted values that cannot be decrypted: %d of %d, with the last error: %v", unreadable, unreadable+d.Secrets, why))
	}
	d.Problem = workspace.Cut(strings.Join(problems, "; "))
	return nil
}

// object reads an object of the bucket. It keeps an error of the bucket, which is none of the
// backup.
type object struct {
	ctx    context.Context
	bucket *bucket.Bucket
	key    string
	open   io.ReadCloser // nil: at the beginning
	err    error         // other than io.EOF
}

func (o *object) Read(p []byte) (n int, err error) {
	if o.open == nil {
		if o.open, err = o.bucket.OpenBackup(o.ctx, o.key); err != nil {
			o.open, o.err = nil, err
			return 0, err
		}
	}
	if n, err = o.open.Read(p); err != nil && err != io.EOF {
		o.err = err
	}
	return n, err
}

// Seek goes to the beginning, as postgres.LoadBackup does between its two passes.
func (o *object) Seek(to int64, whence int) (int64, error) {
	if to != 0 || whence != io.SeekStart {
		return 0, errors.ErrUnsupported
	}
	o.close()
	return 0, nil
}

func (o *object) close() {
	if o.open != nil {
		_ = o.open.Close()
		o.open = nil
	}
}

const (
	// drillInterval is the time between two drills on schedule; a shorter one of the drills of homes
	// applies to those of the database as well.
	drillInterval = 7 * 24 * time.Hour
	// repeatAfter is the time until a drill that found a problem is repeated, with a newer backup.
	repeatAfter = 24 * time.Hour
)

// DrillRunnerConfig configures a DrillRunner.
type DrillRunnerConfig struct {
	DrillConfig
	Interval time.Duration // that of the drills of homes; 0: none is made
	First    time.Duration // from the start of a term to the first look for the last drill; 0: 10 min
	Retry    time.Duration // between two such looks, and after a failure; 0: 1 h
	Ready    func() bool   // whether the bucket is known to be this database's; nil: always
	// Conditions lists that drills fail or find a problem; nil: it is only logged.
	Conditions *health.Monitor
	Log        *slog.Logger
}

// DrillRunner makes drills of the database while this server leads.
type DrillRunner struct {
	cfg    DrillRunnerConfig
	failed *health.Condition
	last   atomic.Int64 // Unix time of the last drill; 0: not known
	drills *prometheus.CounterVec
}

// NewDrillRunner returns a DrillRunner.
func NewDrillRunner(cfg DrillRunnerConfig) *DrillRunner {
	if cfg.First <= 0 {
		cfg.First = 10 * time.Minute
	}
	if cfg.Retry <= 0 {
		cfg.Retry = time.Hour
	}
	r := &DrillRunner{cfg: cfg, drills: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "codehub_database_drills_total", Help: "Drills of the database that this process made, by result.",
	}, []string{"result"})}
	for _, result := range []string{"same", "problem", "failed"} {
		r.drills.WithLabelValues(result)
	}
	r.failed = cfg.Conditions.New(health.Config{
		Name: "database-drill", Failing: "drill of the database failed", Resolved: "the drill of the database succeeds again", Level: slog.LevelError, Log: cfg.Log,
	})
	return r
}

// Metrics returns the metrics of the drills.
func (r *DrillRunner) Metrics() []prometheus.Collector {
	return []prometheus.Collector{r.drills, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "codehub_database_drill_last_timestamp_seconds",
		Help: "Time of the last drill of the database, in Unix time; 0 on servers that do not lead.",
	}, func() float64 { return float64(r.last.Load()) })}
}

// Run makes drills until ctx ends. It retries failures. When the last one was made is read from the
// database, so that the interval goes on when another server leads.
func (r *DrillRunner) Run(ctx context.Context) error {
	if r.cfg.Interval <= 0 {
		return nil
	}
	defer r.failed.Reset()
	defer r.last.Store(0) // the next leader makes later ones
	dropped := false
	for wait := r.cfg.First; ; wait = r.cfg.Retry {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		if r.cfg.Ready != nil && !r.cfg.Ready() {
			continue
		}
		if !dropped {
			err := postgres.DropScratch(ctx, r.cfg.DSN)
			if dropped = err == nil; err != nil && !errors.Is(err, postgres.ErrDrilling) {
				r.cfg.Log.Debug("remove the scratch database of an earlier drill failed; retrying", "err", err)
			}
		}
		problem, err := r.drill(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, postgres.ErrDrilling), errors.Is(err, ErrNoBackup): // the condition stays
		case err != nil:
			r.drills.WithLabelValues("failed").Inc()
			r.failed.Set(err)
		default:
			r.failed.Set(health.Error(problem))
		}
	}
}

// drill makes a drill if it is time, and returns the problem of the last one.
func (r *DrillRunner) drill(ctx context.Context) (problem string, err error) {
	last, age, err := r.cfg.DB.DatabaseDrill(ctx)
	if err != nil {
		return "", err
	}
	if last != nil {
		r.last.Store(last.EndedAt.Unix())
		interval := min(r.cfg.Interval, drillInterval)
		if last.Problem != "" {
			interval = min(interval, repeatAfter)
		}
		if age < interval {
			return last.Problem, nil
		}
	}
	begun := time.Now()
	d, err := Drill(ctx, r.cfg.DrillConfig)
	if err != nil {
		return "", err
	}
	r.last.Store(time.Now().Unix())
	if d.Problem != "" {
		r.drills.WithLabelValues("problem").Inc()
	} else {
		r.drills.WithLabelValues("same").Inc()
	}
	r.cfg.Log.Info("database backup restored for comparison", "key", d.Backup, "rows", d.Rows, "workspaces", d.Comparison.Workspaces, "unchanged", d.Comparison.Unchanged, "problem", d.Problem, "took", time.Since(begun))
	return d.Problem, nil
}
