package lifecycle_test

import (
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// A workspace is handed over only at rest: no operation runs, no request waits, nothing follows
// from its desired state, and it has no container.
func TestHandOverNeedsRest(t *testing.T) {
	t.Parallel()
	given := 0
	everyWorkspace(func(w workspace.Workspace) {
		w.OwnerID, w.Env, w.Memo = "ann", map[string]string{"A": "b"}, "note"
		w.Project = &workspace.Project{Devcontainer: &workspace.Devcontainer{File: "f", Before: workspace.DevcontainerSettings{Env: map[string]string{"A": "b"}}}}
		out, err := lifecycle.HandOver(w, "bob", "name")
		if err != nil {
			return
		}
		given++
		next := out.Workspace
		switch {
		case w.Operation != workspace.OpNone, w.NextDesired != "", w.PendingRequest() != "", w.DeletedAt != nil, w.Conditions.HasContainer(), w.Phase == workspace.PhaseRunning:
			t.Fatalf("handed over: %s", describe(w))
		case w.Phase != workspace.PhaseError && lifecycle.StateOf(w).Busy():
			t.Fatalf("handed over while it is %s: %s", lifecycle.StateOf(w), describe(w))
		case next.OwnerID != "bob" || next.Name != "name" || next.Env != nil || next.Memo != "" || next.TimeZone != "" || next.KeepAwakeTil != nil || next.Project.Devcontainer.Before.Env != nil:
			t.Fatalf("keeps what was its former owner's: %+v", next)
		case lifecycle.HoldsSlot(next), next.DesiredState == workspace.DesiredRunning:
			t.Fatalf("it would run for its new owner: %s", describe(next))
		}
	})
	if given == 0 {
		t.Error("nothing was handed over")
	}
}

// Halt never leads a workspace to a state with more than it has, and keeps a queued deletion.
func TestHaltStartsNothing(t *testing.T) {
	t.Parallel()
	halted := 0
	everyWorkspace(func(w workspace.Workspace) {
		for _, force := range []bool{false, true} {
			out, err := lifecycle.Halt(w, epoch.Add(time.Hour), force)
			if err != nil {
				continue
			}
			next := out.Workspace
			if w.NextDesired == workspace.DesiredDeleted && next.NextDesired != workspace.DesiredDeleted && next.DeletedAt == nil {
				t.Fatalf("force %v, %s: the deletion is dropped", force, describe(w))
			}
			if !out.Changed {
				continue
			}
			halted++
			if next.NextDesired == workspace.DesiredRunning || workspace.Phase(next.DesiredState).Level() > workspace.Phase(w.DesiredState).Level() || out.NeedsSlot {
				t.Fatalf("force %v, %s: then %s, queued %q", force, describe(w), next.DesiredState, next.NextDesired)
			}
		}
	})
	if halted == 0 {
		t.Error("nothing was stopped")
	}
}

// Stop refuses no workspace that exists, and leads none to a state with more than it has.
func TestStopStartsNothing(t *testing.T) {
	t.Parallel()
	stopped := 0
	everyWorkspace(func(w workspace.Workspace) {
		out, err := lifecycle.Stop(w, epoch.Add(time.Hour))
		if err != nil {
			if lifecycle.Present(w) == nil {
				t.Fatalf("%s: %v", describe(w), err)
			}
			return
		}
		next := out.Workspace
		if next.DesiredState == workspace.DesiredRunning && (next.NextDesired == "" || next.NextDesired == workspace.DesiredRunning) && next.ForceStopRequestedAt == nil {
			t.Fatalf("it keeps running: %s", describe(w))
		}
		if !out.Changed {
			return
		}
		stopped++
		if next.NextDesired == workspace.DesiredRunning || workspace.Phase(next.DesiredState).Level() > workspace.Phase(w.DesiredState).Level() || out.NeedsSlot {
			t.Fatalf("%s: then %s, queued %q", describe(w), next.DesiredState, next.NextDesired)
		}
	})
	if stopped == 0 {
		t.Error("nothing was stopped")
	}
}
