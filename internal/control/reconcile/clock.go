package reconcile

import (
	"context"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// clockTolerance is how far the database's clock may deviate from the elapsed time
// between two ticks. Beyond it the deadlines of operations restart, as they do
// after an outage.
const clockTolerance = 10 * time.Second

// checkClock compares the database's clock, read together with the rows, with the
// time that has passed in this process. If a clock was set or the machine slept,
// all deletion and garbage collection delays restart before any row is judged.
func (t *term) checkClock(ctx context.Context) error {
	clock := t.rows.Clock()
	deviation, set := t.watch.Note(clock)
	if deviation.Abs() > clockTolerance && !t.upSince.IsZero() {
		t.cfg.Log.Warn("clock was set or machine slept; deadlines restarted", "deviation", deviation)
		t.upSince = time.Now()
	}
	t.waits = t.waits || set
	if !t.waits {
		t.clock = clock
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	if err := t.rows.RestartWaits(ctx); err != nil {
		return err
	}
	t.cfg.Log.Warn("clock was set; deletion and garbage collection delays restarted", "deviation", deviation)
	t.waits, t.clock = false, t.rows.Clock()
	t.mu.Lock()
	t.orphans = orphans{} // read again: their delays restart as well
	t.mu.Unlock()
	return nil
}

// clampTimes returns row without times that were written while a clock was ahead:
// no retry is later than the longest backoff, and no running operation began in the
// future.
func clampTimes(row workspace.Workspace, now, upSince time.Time, p lifecycle.Policy) workspace.Workspace {
	if at := row.RetryAt; at != nil && at.Sub(now) > p.RetryMax*3/2+clockTolerance {
		row.RetryAt = nil
	}
	if at := row.OpStartedAt; at != nil && at.Sub(now) > clockTolerance {
		row.OpStartedAt = &upSince
	}
	return row
}
