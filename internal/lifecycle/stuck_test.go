package lifecycle_test

import (
	"testing"
	"time"

	"codehub/internal/lifecycle"
	"codehub/internal/workspace"
)

// States without a way out, and wrong turns on the way; one test each.

// A failure counts against the attempts that follow it at once, not against
// those of another day.
func TestFailuresAreForgottenAtRest(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhaseStandby).fails(workspace.ErrActionFailed, 2)
	at := g.Now
	g.Row.RetryAt = &at
	r := g.judged()
	wantAction(t, r, lifecycle.Settle, "")
	if r.Row.ErrorCount != 0 || r.Row.ErrorReason != "" || r.Row.RetryAt != nil {
		t.Errorf("left of the failure: %s", describe(r.Row))
	}
	if r = look(workspace.PhaseStandby).wants(workspace.DesiredRunning).fails(workspace.ErrActionFailed, 2).judged(); r.Row.ErrorCount != 2 {
		t.Errorf("forgotten on the way: %s", describe(r.Row))
	}
}

// One look that misses the volume does not end the grace of a deletion.
func TestDeletedHomeWaitsOutItsGrace(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhaseStandby).deleted(time.Minute)
	g.Obs.Volume = nil
	r := g.judged()
	wantAction(t, r, lifecycle.None, "")
	if r.Row.Phase != workspace.PhaseDeleting || r.Row.Home.State != workspace.HomeLive || !r.LookAgain.Equal(g.Row.DeletedAt.Add(g.Policy.DeleteGrace)) {
		t.Errorf("within the grace: %s, again at %v", describe(r.Row), r.LookAgain)
	}
	g.deleted(g.Policy.DeleteGrace)
	r = g.judged()
	wantAction(t, r, lifecycle.Settle, "")
	if r = g.next(r).judged(); r.Row.Phase != workspace.PhaseDeleted {
		t.Errorf("after the grace: %s", describe(r.Row))
	}
}

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

// A volume that went after its ARCHIVING had ended leaves an archived
// workspace, which can be restored.
func TestVolumeGoneAfterArchivingHasEnded(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhaseArchived).wants(workspace.DesiredRunning)
	g.Row.Home = workspace.Home{State: workspace.HomeArchived, Claim: "home"}
	r := g.judged()
	wantAction(t, r, lifecycle.Settle, "")
	wantAction(t, g.next(r).judged(), lifecycle.Claim, workspace.OpRestoring)
}

// A home that is being removed cannot be entered: its container is removed first.
func TestContainerOnRemovedHomeIsNotReady(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhaseStandby).archived("key").home(workspace.HomeArchived).container(lifecycle.Running).wants(workspace.DesiredRunning)
	g.Obs.Container.Answers = true
	r := g.judged()
	if r.Row.Phase == workspace.PhaseRunning {
		t.Errorf("phase %s", r.Row.Phase)
	}
	wantAction(t, r, lifecycle.Claim, workspace.OpStopping)
	if g.during(workspace.OpArchiving).judged().Row.Phase == workspace.PhaseRunning {
		t.Error("RUNNING while its home is removed")
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

// A container that turns up while a home is packed ends the packing.
func TestContainerEndsArchiving(t *testing.T) {
	t.Parallel()
	for _, state := range []lifecycle.ContainerState{lifecycle.Created, lifecycle.Running, lifecycle.Exited} {
		g := look(workspace.PhaseStandby).wants(workspace.DesiredArchived).during(workspace.OpArchiving).container(state)
		r := g.judged()
		wantAction(t, r, lifecycle.Cancel, workspace.OpArchiving)
		wantAction(t, g.next(r).judged(), lifecycle.Claim, workspace.OpStopping)
	}
}

// To start empty leads out of every loss, and forgets no volume that would be
// in the way for ever.
func TestStartEmptyLeadsOut(t *testing.T) {
	t.Parallel()
	gone := func(g *given) *given { g.Obs.Archive = lifecycle.ArchiveMissing; return g }
	for _, c := range []struct {
		name string
		g    *given
		home workspace.Home
	}{
		{"the volume is gone", func() *given {
			g := look(workspace.PhaseStandby)
			g.Obs.Volume = nil
			return g.fails(workspace.ErrDataLost, 1)
		}(), workspace.Home{State: workspace.HomeAbsent}},
		{"the volume is another one", func() *given {
			g := look(workspace.PhaseStandby)
			g.Obs.Volume.Claim = "other"
			return g.fails(workspace.ErrDataLost, 1)
		}(), workspace.Home{State: workspace.HomeAbsent}},
		{"the archive is gone", gone(look(workspace.PhaseArchived)).fails(workspace.ErrDataLost, 1),
			workspace.Home{State: workspace.HomeAbsent}},
		{"the archive is gone, a restore has begun", gone(look(workspace.PhaseArchived).home(workspace.HomeFilling)).fails(workspace.ErrDataLost, 1),
			workspace.Home{State: workspace.HomeFilling, Claim: "home"}},
		{"the archive is gone, the volume is being removed", gone(look(workspace.PhaseArchived).home(workspace.HomeDiscarding)).fails(workspace.ErrDataLost, 1),
			workspace.Home{State: workspace.HomeDiscarding, Claim: "home"}},
		{"the archive is damaged, as a restore has found out", look(workspace.PhaseArchived).home(workspace.HomeFilling).fails(workspace.ErrArchiveCorrupted, 1),
			workspace.Home{State: workspace.HomeFilling, Claim: "home"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := c.g.wants(workspace.DesiredStandby).recovers(workspace.RecoverEmpty).judged()
			wantAction(t, r, lifecycle.Recover, "")
			if !r.Row.Home.Equal(c.home) || r.Row.ArchiveKey != "" || !r.ClearRecover {
				t.Fatalf("recovered: %s", describe(r.Row))
			}
			if r = c.g.next(r).judged(); c.home.State == workspace.HomeDiscarding {
				wantAction(t, r, lifecycle.Claim, workspace.OpArchiving) // what is left goes first
				c.g.next(r).Obs.Volume = nil
				r = c.g.judged()
				wantAction(t, r, lifecycle.Complete, workspace.OpArchiving)
				r = c.g.next(r).judged()
			}
			wantAction(t, r, lifecycle.Claim, workspace.OpProvisioning)
			if c.home.State == workspace.HomeFilling && r.Row.Home.Claim != c.home.Claim {
				t.Errorf("the volume of %s is in the way of %s", c.home.Claim, r.Row.Home.Claim)
			}
		})
	}
}

// A container whose volume is gone is removed, by either way to recover:
// what is wrong with the home shows without it, and has its own ways out.
func TestRecoveryRemovesAContainerWithoutVolume(t *testing.T) {
	t.Parallel()
	lost := func(action string) *given {
		g := look(workspace.PhaseRunning).fails(workspace.ErrContainerWithoutVolume, 1).recovers(action)
		g.Obs.Volume = nil
		r := g.judged()
		wantAction(t, r, lifecycle.RemoveContainer, "")
		if r.ClearRecover || r.Row.Home.State != workspace.HomeLive {
			t.Fatalf("given up already: %s", describe(r.Row))
		}
		g.next(r).Obs.Container = nil
		r = g.judged()
		wantAction(t, r, lifecycle.Recover, "")
		return g.next(r)
	}
	if g := lost(workspace.RecoverAfresh); g.Row.ErrorReason != workspace.ErrDataLost || g.Row.Phase != workspace.PhaseError {
		t.Errorf("%s", describe(g.Row))
	}
	wantAction(t, lost(workspace.RecoverEmpty).judged(), lifecycle.Claim, workspace.OpProvisioning)
}

// A recovery concludes nothing from what was seen before it.
func TestRecoveryWaitsForObservation(t *testing.T) {
	t.Parallel()
	for _, action := range []string{workspace.RecoverAfresh, workspace.RecoverEmpty} {
		g := look(workspace.PhaseArchived)
		g.Obs.Archive = lifecycle.ArchiveMissing
		g.Row.Conditions = lifecycle.Conditions(g.Input)
		g.fails(workspace.ErrDataLost, 1).recovers(action)
		if !lifecycle.AsksBucket(g.Row) {
			t.Error("the bucket is not asked")
		}
		for _, blind := range []func(*lifecycle.Observation){
			func(o *lifecycle.Observation) { o.Archive = lifecycle.ArchiveUnknown },
			func(o *lifecycle.Observation) { o.Archive, o.ContainerKnown = lifecycle.ArchivePresent, false },
			func(o *lifecycle.Observation) { o.Archive, o.VolumeKnown = lifecycle.ArchivePresent, false },
		} {
			h := *g
			blind(&h.Obs)
			if r := h.judged(); r.Action.Kind != lifecycle.None || r.ClearRecover || r.Row.ArchiveKey == "" {
				t.Fatalf("%s: not waited for: %d %s", action, r.Action.Kind, describe(r.Row))
			}
		}
		g.Obs.Archive = lifecycle.ArchivePresent // it is back
		r := g.judged()
		wantAction(t, r, lifecycle.Recover, "")
		if r.Row.Phase != workspace.PhaseArchived || r.Row.ArchiveKey == "" {
			t.Errorf("%s: %s", action, describe(r.Row))
		}
	}
}

// A deadline is not held against an operation that may be complete, for all
// that was seen.
func TestNoTimeoutFromAFailedObservation(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhaseRunning).during(workspace.OpStopping)
	g.Now = g.Now.Add(time.Hour)
	blind := *g
	blind.Obs = lifecycle.Observation{}
	r := blind.judged()
	wantAction(t, r, lifecycle.None, "")
	if !r.LookAgain.IsZero() {
		t.Errorf("to be looked at again at %v, which is past", r.LookAgain)
	}
	wantAction(t, g.judged(), lifecycle.Fail, workspace.OpStopping)
}

// What was seen of an earlier archive says nothing about the one that took its
// place.
func TestArchiveConditionIsAboutOneArchive(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhaseStandby).archived("old")
	g.Obs.Archive = lifecycle.ArchiveMissing
	g.Row.Conditions = lifecycle.Conditions(g.Input)
	g.during(workspace.OpArchiving).home(workspace.HomeArchived)
	g.Row.ArchiveKey, g.Obs.Archive = "new", lifecycle.ArchiveUnknown
	r := g.judged()
	if c := r.Row.Conditions.Get(workspace.ArchiveReady); r.Row.Phase == workspace.PhaseError || c.Reason != workspace.ReasonNotObserved {
		t.Errorf("%s", describe(r.Row))
	}
	if !lifecycle.AsksBucket(r.Row) {
		t.Error("the bucket is not asked about the new one")
	}
}

// A forced stop names the container it has seen, and does not hold up the
// rest for ever when that cannot be removed.
func TestForcedStopEnds(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhaseRunning).wants(workspace.DesiredStandby)
	asked := g.Now
	g.Row.ForceStopRequestedAt = &asked

	blind := *g
	blind.Obs.ContainerKnown, blind.Obs.Container = false, nil
	r := blind.judged()
	wantAction(t, r, lifecycle.None, "")
	if r.ClearForceStop {
		t.Error("taken for done unseen")
	}

	r = g.judged()
	wantAction(t, r, lifecycle.RemoveContainer, "")
	if due := asked.Add(g.Policy.Deleting); !r.LookAgain.Equal(due) || r.Row.StopReason != lifecycle.StopForced {
		t.Errorf("again at %v, want %v; reason %q", r.LookAgain, due, r.Row.StopReason)
	}
	g.Now = asked.Add(g.Policy.Deleting)
	r = g.judged()
	wantAction(t, r, lifecycle.Claim, workspace.OpStopping) // with a deadline, and ERROR at its end
	if !r.ClearForceStop {
		t.Error("the request stays")
	}
}

// A cancelled start leaves its container, and its owner has queued another start that waits
// for the limits: a container that does not hold a slot must not run during that wait.
func TestQueuedStartDoesNotKeepTheContainerOfAnotherOne(t *testing.T) {
	t.Parallel()
	for _, state := range []lifecycle.ContainerState{lifecycle.Created, lifecycle.Running, lifecycle.Exited} {
		g := look(workspace.PhaseStandby).container(state)
		g.Row.NextDesired = workspace.DesiredRunning
		wantAction(t, g.judged(), lifecycle.Claim, workspace.OpStopping)
		// After a failed attempt it waits, and may be let in meanwhile.
		at := g.Now.Add(time.Minute)
		g.fails(workspace.ErrActionFailed, 1).Row.RetryAt = &at
		if r := g.judged(); r.Action.Kind != lifecycle.None || !r.ApplyQueued {
			t.Errorf("%+v", r)
		}
	}
	// What is up is left alone, and there may be nothing to remove.
	g := look(workspace.PhaseRunning).wants(workspace.DesiredStandby)
	g.Row.NextDesired = workspace.DesiredRunning
	if r := g.judged(); r.Action.Kind != lifecycle.None || !r.ApplyQueued {
		t.Errorf("%+v", r)
	}
	g = look(workspace.PhaseStandby)
	g.Row.NextDesired = workspace.DesiredRunning
	if r := g.judged(); r.Action.Kind != lifecycle.None || !r.ApplyQueued {
		t.Errorf("%+v", r)
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
