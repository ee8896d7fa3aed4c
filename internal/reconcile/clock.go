package reconcile

import (
	"context"
	"time"

	"codehub/internal/lifecycle"
	"codehub/internal/workspace"
)

// jump is by how much the database's clock may deviate from the time that has
// passed here between two ticks before the deadlines of operations count from
// now, as they do after an outage.
const jump = 10 * time.Second

// checkClock compares the clock that was read with the rows with the time that
// has passed here. If a clock was set, or this machine slept, every deletion
// and every garbage collection waits its whole time again before anything is
// judged.
func (t *term) checkClock(ctx context.Context) error {
	clock := t.rows.Clock()
	deviation, set := t.watch.Note(clock)
	if deviation.Abs() > jump && !t.upSince.IsZero() {
		t.cfg.Log.Warn("clock was set or machine slept; deadlines restarted", "deviation", deviation)
		t.upSince = time.Now()
	}
	t.waits = t.waits || set
	if !t.waits {
		t.clock = clock
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	if err := t.rows.RestartWaits(ctx); err != nil {
		return err
	}
	t.cfg.Log.Warn("clock was set; deletion and garbage collection delays restarted", "deviation", deviation)
	t.waits, t.clock = false, t.rows.Clock()
	t.mu.Lock()
	t.orphans = orphans{} // read again: their time counts from now as well
	t.mu.Unlock()
	return nil
}

// plausible is row without times that a clock which was ahead has left behind:
// a retry is never further away than the longest wait, and what runs was not
// begun in the future.
func plausible(row workspace.Workspace, now, upSince time.Time, p lifecycle.Policy) workspace.Workspace {
	if at := row.RetryAt; at != nil && at.Sub(now) > p.RetryMax*3/2+jump {
		row.RetryAt = nil
	}
	if at := row.OpStartedAt; at != nil && at.Sub(now) > jump {
		row.OpStartedAt = &upSince
	}
	return row
}
