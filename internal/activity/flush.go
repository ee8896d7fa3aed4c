package activity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// Database is the epoch of what was handed straight to the database, which
// loses nothing.
const Database = "database"

// FlushPoint is what the database says at the begin of a flush.
type FlushPoint struct {
	Now          time.Time  // by its clock
	WatchedUntil *time.Time // up to when every server's activity is written; nil: never yet
}

// FlushStore is the database as a Flusher uses it.
type FlushStore interface {
	FlushPoint(ctx context.Context) (FlushPoint, error)
	// SaveAccesses writes when workspaces were last used, never backwards.
	SaveAccesses(ctx context.Context, seen []Access) error
	// ConfirmFlush records that a replica has handed on all that it saw up to
	// asOf, and to where. It is false if there is no such replica.
	ConfirmFlush(ctx context.Context, replica string, asOf time.Time, epoch string) (known bool, err error)
}

// Flusher hands on what one replica saw (design §9). Nothing is forgotten that
// the leader has not yet written: what a bus loses is sent again, and while the
// database is away everything stays in memory.
type Flusher struct {
	cfg FlusherConfig

	turn      chan struct{} // one flush at a time: holds an element during one
	confirmed time.Time     // the last asOf that was recorded, by the database's clock
	here      time.Time     // the same moment by the clock here

	clocks atomic.Pointer[clocks] // nil: the database has not been asked yet
}

// clocks is one moment by the clock here and by the database's.
type clocks struct{ here, database time.Time }

// Dated is a time here as the database's clock has it, as of the last flush.
func (f *Flusher) Dated(at time.Time) time.Time {
	if c := f.clocks.Load(); c != nil {
		return c.database.Add(at.Sub(c.here))
	}
	return at
}

// FlusherConfig is what a Flusher is made of.
type FlusherConfig struct {
	Memory  *Recorder
	Store   FlushStore
	Bus     Bus    // nil: straight to the database
	Replica string // its id
	Log     *slog.Logger
	Every   time.Duration // 0: 30 s
}

// Bounds of one flush: of all of it, and of the bus, which the database can
// stand in for.
const (
	flushWithin = 20 * time.Second
	busWithin   = 5 * time.Second
)

// NewFlusher makes a Flusher.
func NewFlusher(cfg FlusherConfig) *Flusher {
	if cfg.Every <= 0 {
		cfg.Every = 30 * time.Second
	}
	return &Flusher{cfg: cfg, turn: make(chan struct{}, 1)}
}

// Run flushes at once, and then again and again until ctx ends. What fails is
// tried again; it is logged once until it changes.
func (f *Flusher) Run(ctx context.Context) error {
	t := time.NewTicker(f.cfg.Every)
	defer t.Stop()
	said := ""
	for {
		err := f.Flush(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			f.cfg.Log.Warn("what people do is not handed on; it is kept and tried again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// errUnknown: the replica's row is not there yet, or it was taken for dead.
var errUnknown = errors.New("this server is not registered")

// Flush hands on what was seen.
func (f *Flusher) Flush(ctx context.Context) error { return f.flush(ctx, f.cfg.Bus) }

// Last hands on what was seen before the replica leaves, straight to the
// database: nobody would send again what a bus then lost.
func (f *Flusher) Last(ctx context.Context) error { return f.flush(ctx, nil) }

func (f *Flusher) flush(ctx context.Context, bus Bus) error {
	ctx, cancel := context.WithTimeout(ctx, flushWithin)
	defer cancel()
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return fmt.Errorf("wait for the flush under way: %w", ctx.Err())
	}

	// The clocks are held together before the database's was read: so a use is
	// dated late by the time that the answer took, and never early.
	here := time.Now()
	p, err := f.cfg.Store.FlushPoint(ctx)
	if err != nil {
		return err
	}
	f.clocks.Store(&clocks{here, p.Now})
	// After the database's time was read: all that came before it is there.
	from := f.pending(p)
	seen := f.cfg.Memory.Since(from)
	for i := range seen {
		seen[i].At = wholeSecond(f.Dated(seen[i].At))
	}
	epoch, err := f.hand(ctx, bus, seen)
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
	f.confirmed, f.here = p.Now, here
	f.cfg.Memory.Forget(from)
	return nil
}

// pending is from when on what was seen has still to be handed on, by the
// clock here: what is both recorded as handed on and written by the leader
// need not be. It is told from the flush that was recorded: the database's
// clock may have been set since.
func (f *Flusher) pending(p FlushPoint) time.Time {
	if f.confirmed.IsZero() || p.WatchedUntil == nil {
		return time.Time{}
	}
	done := f.confirmed
	if p.WatchedUntil.Before(done) {
		done = *p.WatchedUntil
	}
	return f.here.Add(done.Sub(f.confirmed))
}

// hand gives seen to the bus, or to the database if there is none or it fails,
// and says which.
func (f *Flusher) hand(ctx context.Context, bus Bus, seen []Access) (epoch string, err error) {
	if bus != nil {
		bctx, cancel := context.WithTimeout(ctx, busWithin)
		epoch, err = bus.Add(bctx, seen)
		cancel()
		if err == nil && epoch != "" && epoch != Database {
			return epoch, nil
		}
		f.cfg.Log.Debug("the bus does not take what people do; the database does", "err", err)
	}
	if err := f.cfg.Store.SaveAccesses(ctx, seen); err != nil {
		return "", fmt.Errorf("write when workspaces were last used: %w", err)
	}
	return Database, nil
}

// wholeSecond rounds up, so that the same use, dated anew by the next flush, is
// mostly no news.
func wholeSecond(t time.Time) time.Time {
	if cut := t.Truncate(time.Second); cut.Before(t) {
		return cut.Add(time.Second)
	}
	return t
}
