package activity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"codehub/internal/base/health"
)

// Database is the epoch of activity that was written directly to the database,
// which loses nothing.
const Database = "database"

// FlushPoint is the database's state at the start of a flush.
type FlushPoint struct {
	Now          time.Time  // by its clock
	WatchedUntil *time.Time // all servers' activity before this time is written; nil: never
}

// FlushStore is the database as a Flusher uses it.
type FlushStore interface {
	FlushPoint(ctx context.Context) (FlushPoint, error)
	// SaveAccesses records when workspaces were last used. It never replaces a
	// later time.
	SaveAccesses(ctx context.Context, seen []Access) error
	// ConfirmFlush records that a replica has flushed all activity before asOf, and
	// to which epoch. It returns false if the replica does not exist.
	ConfirmFlush(ctx context.Context, replica string, asOf time.Time, epoch string) (known bool, err error)
}

// Flusher flushes the activity that this process has recorded. It keeps activity in
// memory until the leader has written it: what a bus loses is flushed again, and so
// is everything after an outage of the database.
type Flusher struct {
	cfg     FlusherConfig
	flushes *health.Condition

	slot           chan struct{} // holds an element during a flush
	confirmed      time.Time     // the last recorded asOf, by the database's clock
	confirmedLocal time.Time     // the same moment by the local clock

	clocks atomic.Pointer[clockPair] // nil: the database was not queried yet
}

// clockPair is one moment by the local and the database's clock.
type clockPair struct{ local, database time.Time }

// DatabaseTime converts a local time to the database's clock, as of the last flush.
func (f *Flusher) DatabaseTime(at time.Time) time.Time {
	if c := f.clocks.Load(); c != nil {
		return c.database.Add(at.Sub(c.local))
	}
	return at
}

// Settings are the settings of a Flusher, as codehub serve declares them. An Interval
// of 0 is 30 s.
type Settings struct {
	Interval time.Duration `name:"activity-flush-interval" env:"CODEHUB_ACTIVITY_FLUSH_INTERVAL" min:"1s" max:"45s" default:"30s" help:"Time between two flushes of activity."`
}

// FlusherConfig holds a Flusher's dependencies and settings.
type FlusherConfig struct {
	Memory  *Recorder
	Store   FlushStore
	Bus     Bus    // nil: flush to the database
	Replica string // its ID
	Log     *slog.Logger
	Settings
	// Conditions lists that flushes fail; nil: it is only logged.
	Conditions *health.Monitor
}

// Limits of a whole flush, and of the bus, which the database can replace.
const (
	flushTimeout = 20 * time.Second
	busTimeout   = 5 * time.Second
)

// NewFlusher returns a Flusher.
func NewFlusher(cfg FlusherConfig) *Flusher {
	if cfg.Interval <= 0 {
		cfg.Interval = 30 * time.Second
	}
	return &Flusher{cfg: cfg, slot: make(chan struct{}, 1), flushes: cfg.Conditions.New(health.Config{
		Name: "activity", Failing: "activity flush failed; retrying", Resolved: "activity flush recovered", Level: slog.LevelWarn, Log: cfg.Log,
	})}
}

// Run flushes now and at every interval until ctx ends.
func (f *Flusher) Run(ctx context.Context) error {
	t := time.NewTicker(f.cfg.Interval)
	defer t.Stop()
	for {
		err := f.Flush(ctx)
		if ctx.Err() != nil {
			return nil
		}
		f.flushes.Set(err)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// errUnknown: the replica's row does not exist yet, or it was declared dead.
var errUnknown = errors.New("this server is not registered")

// Flush flushes the recorded activity.
func (f *Flusher) Flush(ctx context.Context) error { return f.flush(ctx, f.cfg.Bus) }

// Last flushes before the replica leaves, directly to the database: if a bus lost
// the data afterwards, no replica would flush it again.
func (f *Flusher) Last(ctx context.Context) error { return f.flush(ctx, nil) }

func (f *Flusher) flush(ctx context.Context, bus Bus) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	select {
	case f.slot <- struct{}{}:
		defer func() { <-f.slot }()
	case <-ctx.Done():
		return fmt.Errorf("wait for the running flush: %w", ctx.Err())
	}

	// Read the local clock before the database's. A use may then be dated late by
	// the query's duration, but never early.
	here := time.Now()
	p, err := f.cfg.Store.FlushPoint(ctx)
	if err != nil {
		return err
	}
	f.clocks.Store(&clockPair{here, p.Now})
	// After the database's time was read, so that all activity before that time is
	// included.
	from := f.pending(p)
	seen := f.cfg.Memory.Since(from)
	for i := range seen {
		seen[i].At = roundUp(f.DatabaseTime(seen[i].At))
	}
	epoch, err := f.write(ctx, bus, seen)
	if err != nil {
		return err
	}
	known, err := f.cfg.Store.ConfirmFlush(ctx, f.cfg.Replica, p.Now, epoch)
	if err != nil {
		return err
	}
	if !known {
		return errUnknown
	}
	f.confirmed, f.confirmedLocal = p.Now, here
	f.cfg.Memory.Forget(from)
	return nil
}

// pending returns the local time from which activity has to be flushed. Earlier
// activity is both confirmed as flushed and written by the leader. It is relative
// to the confirmed flush, because the database's clock may have been set since.
func (f *Flusher) pending(p FlushPoint) time.Time {
	if f.confirmed.IsZero() || p.WatchedUntil == nil {
		return time.Time{}
	}
	done := f.confirmed
	if p.WatchedUntil.Before(done) {
		done = *p.WatchedUntil
	}
	return f.confirmedLocal.Add(done.Sub(f.confirmed))
}

// write writes seen to the bus, or to the database if there is no bus or it fails,
// and returns the epoch.
func (f *Flusher) write(ctx context.Context, bus Bus, seen []Access) (epoch string, err error) {
	if bus != nil {
		bctx, cancel := context.WithTimeout(ctx, busTimeout)
		epoch, err = bus.Add(bctx, seen)
		cancel()
		if err == nil && epoch != "" && epoch != Database {
			return epoch, nil
		}
		f.cfg.Log.Debug("write activity to bus failed; using the database", "err", err)
	}
	if err := f.cfg.Store.SaveAccesses(ctx, seen); err != nil {
		return "", fmt.Errorf("write activity: %w", err)
	}
	return Database, nil
}

// roundUp rounds up to a second, so that the same use usually has the same time
// when it is flushed again.
func roundUp(t time.Time) time.Time {
	if cut := t.Truncate(time.Second); cut.Before(t) {
		return cut.Add(time.Second)
	}
	return t
}
