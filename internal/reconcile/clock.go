package reconcile

import (
	"time"

	"codehub/internal/judge"
	"codehub/internal/workspace"
)

// jump is by how much the wall clock may differ from the time that has really
// passed between two ticks before it counts as having been set.
const jump = 10 * time.Second

// begin notes the time of a tick. Deadlines hold the wall clock against times
// in the database: if it was set, or the machine slept, they count afresh, as
// they do after an outage. Nobody took too long.
func (t *term) begin() {
	now := time.Now()
	if !t.began.IsZero() && !t.upSince.IsZero() {
		if wall, real := now.Round(0).Sub(t.began.Round(0)), now.Sub(t.began); jumped(wall, real) {
			t.cfg.Log.Warn("the clock was set, or this machine slept; deadlines count from now", "by", wall-real)
			t.upSince = now
		}
	}
	t.began = now
}

func jumped(wall, real time.Duration) bool { return (wall - real).Abs() > jump }

// plausible is row without times that a clock which was ahead has left behind:
// a retry is never further away than the longest wait, and what runs was not
// begun in the future.
func plausible(row workspace.Workspace, now, upSince time.Time, p judge.Policy) workspace.Workspace {
	if at := row.RetryAt; at != nil && at.Sub(now) > p.RetryMax*3/2+jump {
		row.RetryAt = nil
	}
	if at := row.OpStartedAt; at != nil && at.Sub(now) > jump {
		row.OpStartedAt = &upSince
	}
	return row
}
