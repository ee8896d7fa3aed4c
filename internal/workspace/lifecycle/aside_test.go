package lifecycle_test

import (
	"strings"
	"testing"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// TestSetAsideTable: a request to set aside what is in the way, from every
// error there is and every volume that may be seen.
func TestSetAsideTable(t *testing.T) {
	t.Parallel()
	a := readAnswers(t)
	aside := 0
	crossNth([]string{"deleted", "recorded", "home", "container", "volume", "archive", "late"}, everyNth, func(v []uint8) {
		c := combination{deleted: v[0], home: v[2], container: v[3], volume: v[4], archive: v[5], desired: 1}
		if a.never.find(c.deleted, c.error, c.home, c.operation, c.queued, c.container, c.volume, c.archive) != nil {
			return
		}
		in := c.input()
		in.Row.ErrorReason, in.Row.ErrorMessage, in.Row.ErrorCount = workspace.ErrorReason(word("recorded", v[1])), "earlier", 1
		asked := in.Now.Add(-in.Policy.Deleting / 2)
		if yes(v[6]) {
			asked = in.Now.Add(-in.Policy.Deleting)
		}
		in.Row.RecoverRequestedAt, in.Row.RecoverAction = &asked, workspace.RecoverAfresh
		plain := lifecycle.Judge(in)
		in.Row.RecoverAction = workspace.RecoverSetAside
		r := lifecycle.Judge(in)
		known := in.Obs.ContainerKnown && in.Obs.VolumeKnown
		switch {
		case plain.Action.Kind == lifecycle.None || in.Row.DeletedAt != nil || !lifecycle.InTheWay(in):
			// Nothing is in the way, or not everything was seen: as a plain recovery.
			plain.Row.RecoverAction = workspace.RecoverSetAside
			if describe(plain.Row) != describe(r.Row) || plain.Action != r.Action || plain.ClearRecover != r.ClearRecover {
				t.Fatalf("%s: %+v, a plain recovery is %+v", c, r.Action, plain.Action)
			}
		case !known:
			t.Fatalf("%s: decided without an observation", c)
		case in.Obs.Container != nil && !yes(v[6]):
			if r.Action.Kind != lifecycle.RemoveContainer || r.ClearRecover {
				t.Fatalf("%s: %+v, want the container removed first", c, r.Action)
			}
		default:
			aside++
			if r.Action.Kind != lifecycle.SetAside || r.ClearRecover || !r.Row.Home.Equal(in.Row.Home) || r.Row.ArchiveKey != in.Row.ArchiveKey ||
				r.Row.ErrorReason != in.Row.ErrorReason || r.Row.ErrorCount != in.Row.ErrorCount {
				t.Fatalf("%s: %+v %s", c, r.Action, describe(r.Row))
			}
			if v := in.Obs.Volume; in.Row.Home.State == workspace.HomeLive && v.Claim == in.Row.Home.Claim {
				t.Fatalf("%s: a live home is set aside", c)
			}
		}
	})
	if aside == 0 {
		t.Error("nothing was ever set aside")
	}
}

// obstructed is a workspace in ERROR whose home's name a volume without a claim
// has.
func obstructed(home workspace.HomeState) *given {
	g := look(workspace.PhasePending).fails(workspace.ErrRetryExceeded, workspace.MaxAttempts)
	g.Row.Home = workspace.Home{State: home, Claim: "home"}
	g.Obs.Volume = &lifecycle.Volume{}
	g.Row.Conditions = lifecycle.Conditions(g.Input)
	g.Row.Phase = lifecycle.Phase(g.Row, g.Row.Conditions)
	return g
}

func TestSetAsideFailureKeepsError(t *testing.T) {
	t.Parallel()
	for home, want := range map[workspace.HomeState]workspace.ErrorReason{
		workspace.HomeFilling: workspace.ErrRetryExceeded,
		workspace.HomeLive:    workspace.ErrDataLost,
	} {
		g := obstructed(home).recovers(workspace.RecoverSetAside)
		g.Aside = &lifecycle.Failure{Reason: workspace.ErrActionFailed, Message: "in use by container dump"}
		r := lifecycle.Judge(g.Input)
		if r.Action.Kind != lifecycle.Fail || !r.ClearRecover || r.Row.ErrorReason != want || r.Row.Phase != workspace.PhaseError ||
			!strings.Contains(r.Row.ErrorMessage, "in use by container dump") || r.Row.RetryAt != nil {
			t.Errorf("%s: %+v, %s %q", home, r.Action, r.Row.ErrorReason, r.Row.ErrorMessage)
		}
	}
}

func TestErrorNamesWayOut(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhasePending).wants(workspace.DesiredStandby)
	g.Row.Home = workspace.Home{State: workspace.HomeFilling, Claim: "home"}
	g.Obs.Volume = &lifecycle.Volume{}
	g.during(workspace.OpProvisioning).Row.ErrorCount = workspace.MaxAttempts - 1
	g.Work = lifecycle.Work{Failure: &lifecycle.Failure{Reason: workspace.ErrActionFailed, Message: "the volume is not the one"}}
	if r := lifecycle.Judge(g.Input); r.Row.ErrorReason != workspace.ErrRetryExceeded || !strings.Contains(r.Row.ErrorMessage, "set the volume aside") {
		t.Errorf("%s %q", r.Row.ErrorReason, r.Row.ErrorMessage)
	}
	lost := look(workspace.PhaseStandby)
	lost.Obs.Volume = &lifecycle.Volume{Claim: "another"}
	if r := lifecycle.Judge(lost.Input); r.Row.ErrorReason != workspace.ErrDataLost || !strings.Contains(r.Row.ErrorMessage, "set the volume aside") {
		t.Errorf("%s %q", r.Row.ErrorReason, r.Row.ErrorMessage)
	}
	lost.Obs.Volume = nil
	if r := lifecycle.Judge(lost.Input); strings.Contains(r.Row.ErrorMessage, "set the volume aside") {
		t.Errorf("nothing is in the way: %q", r.Row.ErrorMessage)
	}
}
