package lifecycle_test

import (
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// TestQueuedStateIsApplied compares QueuedState with what the intents and the rules of
// operations lead to.
func TestQueuedStateIsApplied(t *testing.T) {
	t.Parallel()
	limited, queued := 0, 0
	everyWorkspace(func(w workspace.Workspace) {
		got := lifecycle.QueuedState(w)
		ended := w
		ended.Operation = workspace.OpNone
		applied := lifecycle.ApplyQueued(w, epoch)
		switch rule, running := lifecycle.RuleOf(w.Operation); {
		case lifecycle.Present(w) != nil:
			if got != "" || lifecycle.AwaitsLimit(w) {
				t.Fatalf("%s: %q is queued for a deleted workspace", describe(w), got)
			}
		case w.NextDesired != "":
			next := lifecycle.ApplyQueued(ended, epoch).Workspace
			if got != w.NextDesired {
				t.Fatalf("%s: %q, and queued is %s", describe(w), got, w.NextDesired)
			}
			waits := w.Phase == workspace.PhaseError || lifecycle.Restarting(ended)
			if became := next.DesiredState == got || got == workspace.DesiredDeleted && next.DeletedAt != nil; !became && !waits {
				t.Fatalf("%s: %s is queued and not applied", describe(w), got)
			}
		case running && w.Operation != workspace.OpDeleting:
			if (got == "") != (workspace.Phase(w.DesiredState) == rule.To) || got != "" && got != w.DesiredState {
				t.Fatalf("%s: %q follows an operation that leads to %s", describe(w), got, rule.To)
			}
		case got != "" && got != w.DesiredState:
			t.Fatalf("%s: %q", describe(w), got)
		}
		if got != "" {
			queued++
		}
		if lifecycle.AwaitsLimit(w) {
			limited++
			if !applied.Changed || applied.Workspace.DesiredState != workspace.DesiredRunning || got != workspace.DesiredRunning || !lifecycle.StartRequested(w) {
				t.Fatalf("%s: awaits the running limit, and queued is %q", describe(w), got)
			}
		}
	})
	if limited == 0 || queued == 0 {
		t.Fatalf("%d workspaces have a queued state, %d await the running limit", queued, limited)
	}
}

// TestQueuedStateAtRest lists the workspaces at rest whose desired state takes two
// operations.
func TestQueuedStateAtRest(t *testing.T) {
	t.Parallel()
	two := map[workspace.Phase]workspace.DesiredState{
		workspace.PhaseRunning: workspace.DesiredArchived, workspace.PhaseArchived: workspace.DesiredRunning,
	}
	for _, phase := range workspace.Phases() {
		for _, desired := range []workspace.DesiredState{workspace.DesiredArchived, workspace.DesiredStandby, workspace.DesiredRunning} {
			w := workspace.Workspace{Phase: phase, Operation: workspace.OpNone, DesiredState: desired}
			want := workspace.DesiredState("")
			if two[phase] == desired {
				want = desired
			}
			if got := lifecycle.QueuedState(w); got != want {
				t.Errorf("%s, desired %s: %q, want %q", phase, desired, got, want)
			}
		}
	}
}

// TestTimeoutToMatchesEndIdle: with timeouts set, exactly the workspaces that TimeoutTo
// names change, and to that state.
func TestTimeoutToMatchesEndIdle(t *testing.T) {
	t.Parallel()
	ttl := workspace.TTL{Standby: time.Second, Archive: time.Second}
	changed := map[workspace.DesiredState]int{}
	everyWorkspace(func(w workspace.Workspace) {
		to := lifecycle.TimeoutTo(w)
		changed[to]++
		out := lifecycle.EndIdle(w, epoch.Add(time.Hour), ttl)
		if out.Changed != (to != "") || out.Changed && out.Workspace.DesiredState != to {
			t.Fatalf("%s: to %q, and an idle timeout changes it to %s: %v", describe(w), to, out.Workspace.DesiredState, out.Changed)
		}
		if _, ok := lifecycle.EndsAt(w, workspace.TTL{}); ok {
			t.Fatalf("%s: a timeout of 0 ends", describe(w))
		}
	})
	if changed[workspace.DesiredStandby] == 0 || changed[workspace.DesiredArchived] == 0 {
		t.Errorf("changes: %v", changed)
	}
}
