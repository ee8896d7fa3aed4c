package lifecycle_test

import (
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// A restart is a stop with a start queued after it. An ordinary queued start
// does not stop what is running.
func TestRestartStopsThenStarts(t *testing.T) {
	t.Parallel()
	g := look(workspace.PhaseRunning)
	out, err := lifecycle.Restart(g.Row, g.Now)
	if err != nil || !out.Changed || out.NeedsSlot || out.Audit.Action != lifecycle.AuditRestart {
		t.Fatalf("%+v, %v", out, err)
	}
	g.Row = out.Workspace
	r := g.judged()
	wantAction(t, r, lifecycle.Claim, workspace.OpStopping)
	if r.ApplyQueued {
		t.Error("the queued start is applied before the stop")
	}
	g.next(r).Obs.Container = nil
	r = g.judged()
	wantAction(t, r, lifecycle.Complete, workspace.OpStopping)
	if !r.ApplyQueued || r.Row.StopReason != lifecycle.StopRequested {
		t.Errorf("after the stop: %+v", r)
	}
	start := lifecycle.ApplyQueued(g.next(r).Row, g.Now)
	if !start.NeedsSlot || start.Workspace.DesiredState != workspace.DesiredRunning || start.Workspace.DesiredCause != "" {
		t.Errorf("the start: %+v", start)
	}
	g.Row = start.Workspace
	wantAction(t, g.judged(), lifecycle.Claim, workspace.OpStarting)

	// A stop that fails once is tried again: the start still follows it.
	g = look(workspace.PhaseRunning)
	out, _ = lifecycle.Restart(g.Row, g.Now)
	later := g.Now.Add(time.Minute)
	g.Row = out.Workspace
	g.Row.ErrorReason, g.Row.ErrorCount, g.Row.RetryAt = workspace.ErrActionFailed, 1, &later
	r = g.judged()
	if r.Action.Kind != lifecycle.None || r.ApplyQueued || !r.LookAgain.Equal(later) {
		t.Errorf("until the next attempt: %+v", r)
	}
	if out := lifecycle.ApplyQueued(g.Row, g.Now); out.Changed {
		t.Errorf("the queued start replaces the restart: %+v", out)
	}
	g.Now = later
	wantAction(t, g.judged(), lifecycle.Claim, workspace.OpStopping)

	queued := look(workspace.PhaseRunning).wants(workspace.DesiredStandby)
	queued.Row.NextDesired = workspace.DesiredRunning
	if r := queued.judged(); r.Action.Kind != lifecycle.None || !r.ApplyQueued {
		t.Errorf("a start queued without a restart: %+v", r)
	}

	if _, err := lifecycle.Restart(look(workspace.PhaseStandby).Row, g.Now); workspace.CodeOf(err) != workspace.CodeNotRunning {
		t.Errorf("stopped: %v", err)
	}
	if _, err := lifecycle.Restart(look(workspace.PhaseRunning).during(workspace.OpStopping).Row, g.Now); workspace.CodeOf(err) != workspace.CodeOperationInProgress {
		t.Errorf("stopping: %v", err)
	}
}

// A request that drops the queued start of a restart makes it an ordinary stop: the cause
// exempts the start of a restart from the limit of bytes.
func TestDroppedRestartLosesCause(t *testing.T) {
	t.Parallel()
	for name, drop := range map[string]func(workspace.Workspace, time.Time) (lifecycle.Intent, error){
		"stop": func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
			return lifecycle.Desire(w, now, workspace.DesiredStandby, true)
		},
		"stop by an administrator": func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
			return lifecycle.Halt(w, now, false)
		},
		"force stop": lifecycle.RequestForceStop,
	} {
		for when, during := range map[string]workspace.Operation{"before the stop": workspace.OpNone, "during the stop": workspace.OpStopping} {
			g := look(workspace.PhaseRunning)
			out, err := lifecycle.Restart(g.Row, g.Now)
			if err != nil {
				t.Fatal(err)
			}
			w := out.Workspace
			w.Operation = during
			out, err = drop(w, g.Now)
			if err != nil || !out.Changed {
				t.Fatalf("%s %s: %+v, %v", name, when, out, err)
			}
			if w := out.Workspace; w.DesiredState != workspace.DesiredStandby || w.DesiredCause != "" || w.NextDesired != "" {
				t.Errorf("%s %s: desired %s for %q, then %q", name, when, w.DesiredState, w.DesiredCause, w.NextDesired)
			}
		}
		// After the stop, while the queued start waits for the running limit.
		g := look(workspace.PhaseStandby).wants(workspace.DesiredStandby)
		g.Row.DesiredCause, g.Row.NextDesired = workspace.CauseRestart, workspace.DesiredRunning
		out, err := drop(g.Row, g.Now)
		if err != nil || out.Workspace.DesiredCause != "" || out.Workspace.NextDesired != "" {
			t.Errorf("%s after the stop: %+v, %v", name, out.Workspace, err)
		}
	}
}
