package reconcile

import (
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// A clock that was ahead must not delay a workspace after it was corrected.
func TestClampTimes(t *testing.T) {
	t.Parallel()
	p := lifecycle.DefaultPolicy()
	up := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := up.Add(time.Minute)
	soon, later, before := now.Add(p.RetryMax), now.Add(9*time.Hour), now.Add(-time.Second)

	row := clampTimes(workspace.Workspace{RetryAt: &soon, OpStartedAt: &before}, now, up, p)
	if row.RetryAt != &soon || row.OpStartedAt != &before {
		t.Errorf("plausible times were changed: %v %v", row.RetryAt, row.OpStartedAt)
	}
	row = clampTimes(workspace.Workspace{RetryAt: &later, OpStartedAt: &later}, now, up, p)
	if row.RetryAt != nil || !row.OpStartedAt.Equal(up) {
		t.Errorf("implausible times were kept: %v %v", row.RetryAt, row.OpStartedAt)
	}
}
