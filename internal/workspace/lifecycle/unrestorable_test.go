package lifecycle_test

import (
	"testing"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// A home that cannot be archived stays in STANDBY with the reason shown. It is
// not packed again by itself, and its owner can go on working.
func TestUnrestorableHomeStaysInStandby(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhaseStandby).wants(workspace.DesiredArchived).during(workspace.OpArchiving)
	g.Work.Failure = &lifecycle.Failure{Reason: workspace.ErrUnrestorable, Message: "the file and why"}
	r := g.judged()
	wantAction(t, r, lifecycle.Fail, workspace.OpArchiving)
	if r.Row.Phase != workspace.PhaseStandby || r.Row.Home.State != workspace.HomeLive || r.Row.ErrorMessage != "the file and why" {
		t.Errorf("after the failure: %s", describe(r.Row))
	}
	g = g.next(r)
	g.Work = lifecycle.Work{}
	rest := g.judged()
	wantAction(t, rest, lifecycle.None, "")
	if rest.Row.ErrorReason != workspace.ErrUnrestorable || !rest.LookAgain.IsZero() {
		t.Errorf("at rest: %s, looked at again at %v", describe(rest.Row), rest.LookAgain)
	}
	wantAction(t, look(workspace.PhaseStandby).wants(workspace.DesiredRunning).fails(workspace.ErrUnrestorable, 1).judged(), lifecycle.Claim, workspace.OpStarting)
	// Another desired state forgets it: to archive it then is to try again.
	r = look(workspace.PhaseStandby).wants(workspace.DesiredStandby).fails(workspace.ErrUnrestorable, 1).judged()
	wantAction(t, r, lifecycle.Settle, "")
	if r.Row.ErrorReason != "" {
		t.Errorf("settled: %s", describe(r.Row))
	}
}
