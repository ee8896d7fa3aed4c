package lifecycle_test

import (
	"strings"
	"testing"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
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

// A volume that was removed in Kubernetes stays while its Pod runs. The workspace says so and can
// be opened, no recovery ends the Pod, and a forced stop does. Without the Pod the home is lost.
func TestHomeThatGoesWithItsContainer(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhaseRunning)
	g.Obs.Volume.Removing = true
	r := g.judged()
	if r.Row.Phase != workspace.PhaseError || r.Row.ErrorReason != workspace.ErrContainerWithoutVolume || !strings.Contains(r.Row.ErrorMessage, "copy them out") {
		t.Fatalf("%s", describe(r.Row))
	}
	if !lifecycle.Vanishing(r.Row) || lifecycle.OpeningOf(r.Row) != lifecycle.OpenNow || lifecycle.LossOf(r.Row) != "" {
		t.Errorf("it cannot be opened: %s", describe(r.Row))
	}
	for _, action := range []string{workspace.RecoverAfresh, workspace.RecoverEmpty} {
		if _, err := lifecycle.RequestRecover(r.Row, g.Now, action); workspace.CodeOf(err) != workspace.CodeNotSupported {
			t.Errorf("%s: %v", action, err)
		}
	}
	g.next(r)
	g.recovers(workspace.RecoverAfresh) // a request from just before the volume was removed
	if r = g.judged(); r.Action.Kind != lifecycle.Recover || r.Row.ErrorReason != workspace.ErrContainerWithoutVolume {
		t.Errorf("%v: %s", r.Action, describe(r.Row))
	}
	stopped, err := lifecycle.RequestForceStop(g.next(r).Row, g.Now)
	if err != nil {
		t.Fatal(err)
	}
	g.Row = stopped.Workspace
	wantAction(t, g.judged(), lifecycle.RemoveContainer, "")
	g = look(workspace.PhaseStandby)
	g.Obs.Volume = nil
	if r := g.judged(); r.Row.ErrorReason != workspace.ErrDataLost || lifecycle.Vanishing(r.Row) {
		t.Errorf("without the volume: %s", describe(r.Row))
	}
}
