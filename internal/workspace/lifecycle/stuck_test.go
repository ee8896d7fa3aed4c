package lifecycle_test

import (
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// What the tables in testdata have no columns for.

// An error that was found in the moment of the deletion does not hold it up;
// one of the deletion itself stays until it is asked for again.
func TestDeletionOfLostHomeIsNotDelayed(t *testing.T) {
	t.Parallel()
	for _, reason := range workspace.ErrorReasons() {
		if !reason.Final() {
			continue
		}
		g := look(workspace.PhaseStandby).deleted(3*time.Hour).fails(reason, 1)
		r := g.judged()
		if reason == workspace.ErrTimeout || reason == workspace.ErrRetryExceeded {
			wantAction(t, r, lifecycle.None, "")
			r = g.recovers(workspace.RecoverAfresh).judged()
			wantAction(t, r, lifecycle.Recover, "")
		} else {
			wantAction(t, r, lifecycle.Settle, "")
		}
		wantAction(t, g.next(r).judged(), lifecycle.Claim, workspace.OpDeleting)
	}
}

// A container on a node that does not respond cannot be removed. The operation waits for it
// without a deadline, and can be ended by its owner. Once the container is gone it has its whole
// time.
func TestOperationWaitsForLostNode(t *testing.T) {
	t.Parallel()
	for _, op := range []workspace.Operation{workspace.OpStarting, workspace.OpStopping, workspace.OpDeleting} {
		for _, state := range []lifecycle.ContainerState{lifecycle.Created, lifecycle.Running, lifecycle.Exited} {
			lost := func() *given {
				g := look(workspace.PhaseStandby).container(state).wants(workspace.DesiredRunning).during(op)
				g.Obs.Container.LostNode = "node1"
				g.Work.Failure = &lifecycle.Failure{Reason: workspace.ErrActionFailed, Message: "node1 does not respond", Passing: true}
				if op == workspace.OpDeleting {
					g.deleted(time.Hour)
				}
				g.Now = g.Now.Add(6 * time.Minute)
				return g
			}
			g := lost()
			r := g.judged()
			if wantAction(t, r, lifecycle.None, ""); !r.LookAgain.IsZero() {
				t.Errorf("%s: it has the deadline %v", op, r.LookAgain)
			}
			g.Work.Running = false
			wantAction(t, g.judged(), lifecycle.Run, op)

			// Any other failure ends it, and what does not fail has its deadline.
			g.Work = lifecycle.Work{Running: true}
			if r := g.judged(); r.Action.Reason != workspace.ErrTimeout {
				t.Errorf("%s does not wait for the node and is not over: %+v", op, r.Action)
			}
			g.Work.Failure = &lifecycle.Failure{Reason: workspace.ErrActionFailed, Message: "why"}
			wantAction(t, g.judged(), lifecycle.Fail, op)

			g = lost()
			g.Row.CancelRequestedAt = &g.Now
			if op == workspace.OpStarting {
				wantAction(t, g.judged(), lifecycle.Cancel, op)
			} else {
				wantAction(t, g.judged(), lifecycle.None, "")
			}

			g = lost()
			g.Obs.Container, g.Work.PreparedAt = nil, g.Now.Add(-time.Second)
			if op != workspace.OpStarting {
				wantAction(t, g.judged(), lifecycle.Complete, op)
				continue
			}
			if r := g.judged(); !r.LookAgain.Equal(g.Work.PreparedAt.Add(g.Policy.Starting)) {
				t.Errorf("the container is gone: again at %v, %+v", r.LookAgain, r.Action)
			}
			g.Work.Failure = nil
			g.container(lifecycle.Running).Obs.Container.Answers = true
			wantAction(t, g.judged(), lifecycle.Complete, op)
		}
	}
}

// A deletion waits its whole grace from the time at which the waits were
// restarted, if that is later than the deletion. Nothing else goes by it.
func TestGraceCountsFromTheRestart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		deleted, restarted time.Duration // ago; restarted 0: never
		left               time.Duration // of the grace of 2 h; 0: it is over
	}{
		{deleted: time.Minute, left: 119 * time.Minute},
		{deleted: 2 * time.Hour},
		{deleted: 3 * time.Hour, restarted: time.Minute, left: 119 * time.Minute},
		{deleted: time.Minute, restarted: 3 * time.Hour, left: 119 * time.Minute},
		{deleted: 3 * time.Hour, restarted: 2 * time.Hour},
		{deleted: -24 * time.Hour, left: 26 * time.Hour}, // the clock was set back
		{deleted: 3 * time.Hour, restarted: -24 * time.Hour, left: 26 * time.Hour},
	} {
		for _, home := range []workspace.HomeState{workspace.HomeFilling, workspace.HomeLive, workspace.HomeArchived, workspace.HomeDiscarding, workspace.HomeDeleting} {
			g := look(workspace.PhaseArchived).home(home).deleted(c.deleted)
			if c.restarted != 0 {
				g.WaitsSince = g.Now.Add(-c.restarted)
			}
			r := g.judged()
			if c.left == 0 {
				wantAction(t, r, lifecycle.Claim, workspace.OpDeleting)
				continue
			}
			wantAction(t, r, lifecycle.None, "")
			if !r.LookAgain.Equal(g.Now.Add(c.left)) {
				t.Errorf("%+v, %s: %s are left", c, home, r.LookAgain.Sub(g.Now))
			}
		}
	}
}
