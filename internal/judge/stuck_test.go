package judge_test

import (
	"testing"
	"time"

	"codehub/internal/judge"
	"codehub/internal/workspace"
)

// States that had no way out, one test each.

// A failure counts against the attempts that follow it at once, not against
// those of another day.
func TestFailuresAreForgottenAtRest(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhaseStandby).fails(workspace.ErrActionFailed, 2)
	at := g.Now
	g.Row.RetryAt = &at
	r := g.judged()
	wantAction(t, r, judge.Settle, "")
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
	wantAction(t, r, judge.None, "")
	if r.Row.Phase != workspace.PhaseDeleting || r.Row.Home.State != workspace.HomeLive || !r.LookAgain.Equal(g.Row.DeletedAt.Add(g.Policy.DeleteGrace)) {
		t.Errorf("within the grace: %s, again at %v", describe(r.Row), r.LookAgain)
	}
	g.deleted(g.Policy.DeleteGrace)
	r = g.judged()
	wantAction(t, r, judge.Settle, "")
	if r = g.next(r).judged(); r.Row.Phase != workspace.PhaseDeleted {
		t.Errorf("after the grace: %s", describe(r.Row))
	}
}
