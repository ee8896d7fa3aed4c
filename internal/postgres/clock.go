package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Clock is one reading of the database's clock. Rules compare times by that clock only; times
// of this process are converted.
type Clock struct {
	Now time.Time // by the database
	At  time.Time // by this process, when the response came
	// WaitsSince is when all waits that end in a removal were restarted; zero: never.
	WaitsSince time.Time
}

// Of converts a time of this process to the database's clock; zero stays zero.
func (c Clock) Of(local time.Time) time.Time {
	if local.IsZero() {
		return time.Time{}
	}
	return c.Now.Add(local.Sub(c.At)).UTC()
}

// Local converts a time of the database to this process's clock; zero stays zero.
func (c Clock) Local(db time.Time) time.Time {
	if db.IsZero() {
		return time.Time{}
	}
	return c.At.Add(db.Sub(c.Now))
}

const (
	// clockJump is the deviation between the database's clock and the time that has passed here
	// from which the clock counts as set.
	clockJump = 30 * time.Second
	// clockDrift allows for inexact clocks: the deviation may also grow by this fraction of the
	// time since the first reading.
	clockDrift = 500
)

// ClockWatch compares the database's clock with this process's monotonic clock. The zero value
// is ready for use.
type ClockWatch struct{ first, last Clock }

// Note takes a reading and returns the deviation since the previous one. set reports that a
// clock was set or this machine slept: the caller must restart the waits before it removes
// anything. Small deviations add up.
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

// LeaderGap is the longest time without a heartbeat of a leader after which the waits are not
// restarted. After a longer gap, no server led or the clock was set, and that time counts for
// no deletion.
const LeaderGap = 10 * time.Minute

// restartWaits also sends a heartbeat, on the session that leads. The next leader compares its
// clock with the last heartbeat; one from before the clock was set would not show that the clock
// was set back to that time since.
const restartWaits = `
	WITH beat AS (UPDATE leader SET beat_at = clock_timestamp() WHERE pid = pg_backend_pid())
	UPDATE gc_state SET restored_at = clock_timestamp()`

// Clock returns the reading of the last Candidates.
func (c *Controller) Clock() Clock {
	c.reading.Lock()
	defer c.reading.Unlock()
	return c.clock
}

// RestartWaits restarts every delay that ends in a removal. Clock returns the new time from
// then on.
func (c *Controller) RestartWaits(ctx context.Context) error {
	c.reading.Lock()
	defer c.reading.Unlock()
	err := c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, restartWaits+` RETURNING restored_at`).Scan(&c.clock.WaitsSince)
	})
	return failed("restart the waits", err)
}

// RestartWaits restarts every delay that ends in a removal.
func (c *Collector) RestartWaits(ctx context.Context) error {
	err := c.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, restartWaits)
		return err
	})
	return failed("restart the waits", err)
}
