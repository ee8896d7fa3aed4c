package lifecycle_test

import (
	"testing"

	"codehub/internal/lifecycle"
	"codehub/internal/workspace"
)

// A database that was restored from a backup may call a home live whose removal
// has begun since: nothing can be started on it, and its owner has to see that.
func TestHomeWithBegunRemovalIsLost(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhaseStandby)
	g.Obs.Volume.Seeded, g.Obs.Volume.Removing = false, true
	r := lifecycle.Judge(g.Input)
	if health := r.Row.Conditions.Get(workspace.Healthy); health.True() || r.Row.ErrorReason != workspace.ErrDataLost {
		t.Errorf("healthy %+v, reason %q", health, r.Row.ErrorReason)
	}
	if c := r.Row.Conditions.Get(workspace.VolumeReady); c.True() || c.Reason != workspace.ReasonRemoving {
		t.Errorf("volume_ready is %+v", c)
	}
}
