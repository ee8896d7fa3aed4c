package lifecycle_test

import (
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// given is a look at one workspace, put together by a test.
type given struct{ lifecycle.Input }

// look is a workspace that nothing is wrong with, at rest in the phase, and
// the observation that says so.
func look(phase workspace.Phase) *given {
	g := &given{lifecycle.Input{
		Now: epoch.Add(time.Hour), UpSince: epoch, ClaimID: "fresh", Policy: lifecycle.DefaultPolicy(),
		Obs: lifecycle.Observation{ContainerKnown: true, VolumeKnown: true},
		Row: workspace.Workspace{
			ID: "019a0000-0000-7000-8000-000000000001", Operation: workspace.OpNone,
			Home: workspace.Home{State: workspace.HomeAbsent}, DesiredState: workspace.DesiredArchived,
		},
	}}
	switch phase {
	case workspace.PhaseArchived:
		g.archived("old")
	case workspace.PhaseStandby, workspace.PhaseRunning:
		g.home(workspace.HomeLive).Row.DesiredState = workspace.DesiredStandby
	}
	if phase == workspace.PhaseRunning {
		g.Row.DesiredState = workspace.DesiredRunning
		g.container(lifecycle.Running).Obs.Container.Answers = true
	}
	g.Row.Conditions = lifecycle.Conditions(g.Input)
	g.Row.Phase = lifecycle.Phase(g.Row, g.Row.Conditions)
	return g
}

// home gives the workspace a volume of its own, in that state.
func (g *given) home(state workspace.HomeState) *given {
	g.Row.Home = workspace.Home{State: state, Claim: "home"}
	g.Obs.Volume = &lifecycle.Volume{Claim: "home", Seeded: state == workspace.HomeLive || state == workspace.HomeArchived}
	return g
}

func (g *given) archived(key string) *given {
	g.Row.ArchiveKey, g.Obs.Archive = key, lifecycle.ArchivePresent
	return g
}

func (g *given) container(state lifecycle.ContainerState) *given {
	g.Obs.Container = &lifecycle.Container{ID: "c1", State: state}
	return g
}

func (g *given) wants(d workspace.DesiredState) *given {
	g.Row.DesiredState = d
	return g
}

// during has an operation run since a second ago, with its executor at work.
func (g *given) during(op workspace.Operation) *given {
	started := g.Now.Add(-time.Second)
	g.Row.Operation, g.Row.OpID, g.Row.OpStartedAt = op, "claim", &started
	g.Work.Running = true
	return g
}

func (g *given) fails(reason workspace.ErrorReason, count int) *given {
	g.Row.ErrorReason, g.Row.ErrorMessage, g.Row.ErrorCount = reason, "earlier", count
	return g
}

func (g *given) recovers(action string) *given {
	at := g.Now.Add(-time.Second)
	g.Row.RecoverRequestedAt, g.Row.RecoverAction = &at, action
	return g
}

func (g *given) deleted(ago time.Duration) *given {
	at := g.Now.Add(-ago)
	g.Row.DeletedAt = &at
	return g
}

func (g *given) judged() lifecycle.Result { return lifecycle.Judge(g.Input) }

// next takes the decision for written and looks again a second later.
func (g *given) next(r lifecycle.Result) *given {
	g.Row = r.Row
	if r.ClearRecover {
		g.Row.RecoverRequestedAt, g.Row.RecoverAction = nil, ""
	}
	if r.ClearForceStop {
		g.Row.ForceStopRequestedAt = nil
	}
	if r.ClearCancel {
		g.Row.CancelRequestedAt = nil
	}
	g.Work = lifecycle.Work{}
	g.Now = g.Now.Add(time.Second)
	return g
}

func wantAction(t *testing.T, r lifecycle.Result, kind lifecycle.Kind, op workspace.Operation) {
	t.Helper()
	if r.Action.Kind != kind || r.Action.Op != op {
		t.Fatalf("action %d %q %s %s, want %d %q; row: %s", r.Action.Kind, r.Action.Op, r.Action.Reason, r.Action.Message, kind, op, describe(r.Row))
	}
}
