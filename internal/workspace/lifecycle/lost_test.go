package lifecycle

import (
	"testing"
	"time"

	"codehub/internal/workspace"
)

// A live home whose storage is gone is lost without being removed, and is there again once the
// storage is back. A container that runs on it can be opened.
func TestLostStorage(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	row := workspace.Workspace{Home: workspace.Home{State: workspace.HomeLive, Claim: "home-1"}}
	judged := func(row workspace.Workspace, lost, runs bool) workspace.Conditions {
		in := Input{Row: row, Now: now, Obs: Observation{VolumeKnown: true, ContainerKnown: true, Volume: &Volume{Claim: "home-1", Seeded: !lost, Removing: lost, Lost: lost}}}
		if runs {
			in.Obs.Container = &Container{State: Running, Answers: true}
		}
		return Conditions(in)
	}
	row.Conditions = judged(row, true, false)
	if h := row.Conditions.Get(workspace.Healthy); h.Reason != string(workspace.ErrDataLost) || h.Message != msgVolumeLost {
		t.Errorf("%+v", h)
	}
	if c := judged(row, false, false); !c.Is(workspace.VolumeReady) || !c.Is(workspace.Healthy) {
		t.Errorf("it is back: %+v", c)
	}
	if h := judged(row, true, true).Get(workspace.Healthy); h.Reason != workspace.ReasonContainerWithoutVolume || h.Message != msgVolumeLost {
		t.Errorf("a container runs: %+v", h)
	}
}
