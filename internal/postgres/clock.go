package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Clock is one reading of the database's clock. Rules compare times by that
// clock only; times of this process are converted.
type Clock struct {
	Now time.Time // by the database
	At  time.Time // by this process, when the answer came
	// WaitsSince is since when every wait that ends in a removal counts anew;
	// zero: no wait was restarted.
	WaitsSince time.Time
}

// Of is a time of this process by the database's clock; zero stays zero.
func (c Clock) Of(local time.Time) time.Time {
	if local.IsZero() {
		return time.Time{}
	}
	return c.Now.Add(local.Sub(c.At)).UTC()
}

// Local is a time of the database by this process's clock; zero stays zero.
func (c Clock) Local(db time.Time) time.Time {
	if db.IsZero() {
		return time.Time{}
	}
	return c.At.Add(db.Sub(c.Now))
}

const (
	// clockJump is by how much the database's clock may deviate from the time
	// that has passed here before it counts as having been set.
	clockJump = 30 * time.Second
	// clockDrift bounds what clocks that are merely inexact add to that, as a
	// part of the time since the first reading.
	clockDrift = 500
)

// ClockWatch compares the database's clock with this process's monotonic
// clock, which nothing sets. The zero value is ready for use.
type ClockWatch struct{ first, last Clock }

// Note takes a reading and returns by how much the clock deviates since the one
// before. set reports that a clock was set or this machine slept: the caller
// restarts the waits before it removes anything. The sum of small deviations
// counts as well.
func (w *ClockWatch) Note(c Clock) (deviation time.Duration, set bool) {
	if w.last.At.IsZero() {
		w.first, w.last = c, c
		return 0, false
	}
	since := func(r Clock) time.Duration { return c.Now.Sub(r.Now) - c.At.Sub(r.At) }
	deviation = since(w.last)
	set = deviation.Abs() > clockJump || since(w.first).Abs() > clockJump+c.At.Sub(w.first.At)/clockDrift
	w.last = c
	if set {
		w.first = c
	}
	return deviation, set
}

// LeaderGap is for how long a leader may have given no sign of life before the
// waits are restarted: time in which no server led, or by which the clock was
// set meanwhile, counts for no deletion.
const LeaderGap = 10 * time.Minute

const restartWaits = `UPDATE gc_state SET restored_at = clock_timestamp()`

// Clock is the reading of the last Candidates.
func (c *Controller) Clock() Clock {
	c.looking.Lock()
	defer c.looking.Unlock()
	return c.clock
}

// RestartWaits restarts every delay that ends in a removal, from now on. Clock
// returns the new time from then on.
func (c *Controller) RestartWaits(ctx context.Context) error {
	c.looking.Lock()
	defer c.looking.Unlock()
	err := c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, restartWaits+` RETURNING restored_at`).Scan(&c.clock.WaitsSince)
	})
	return failed("restart the waits", err)
}

// RestartWaits is the same for garbage collection.
func (c *Collector) RestartWaits(ctx context.Context) error {
	err := c.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, restartWaits)
		return err
	})
	return failed("restart the waits", err)
}
