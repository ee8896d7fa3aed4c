package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"codehub/internal/workspace"
)

// The condition says when and why the next start is delayed, and the owner can stop
// and start the workspace without the delay.
func TestCrashLoopIsExplained(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.policy.RetryBase, w.policy.RetryMax = time.Hour, time.Hour })
	w.lead()
	id := w.create("one", workspace.DesiredRunning)
	w.awaitPhase(id, workspace.PhaseRunning)
	w.write(id, "work")
	starts := w.fake.Calls("StartContainer")
	w.fake.EndContainer(id)
	ws := w.await(id, "held back", func(ws workspace.Workspace) bool {
		return strings.Contains(ws.Conditions.Get(workspace.ContainerReady).Message, "It starts again at")
	})
	if ws.Phase != workspace.PhaseStandby || ws.Operation != workspace.OpNone {
		t.Errorf("%s, %s", ws.Phase, ws.Operation)
	}
	// It is written once, not at every tick.
	w.awaitCalls("Containers", w.fake.Calls("Containers")+20)
	if again := w.row(id); !again.Conditions.Equal(ws.Conditions) {
		t.Errorf("%+v, then %+v", ws.Conditions, again.Conditions)
	}
	if n := w.fake.Calls("StartContainer") - starts; n != 0 {
		t.Errorf("it was started %d times without a pause", n)
	}
	w.want(id, workspace.DesiredStandby, true)
	w.await(id, "stopped", func(ws workspace.Workspace) bool {
		c := ws.Conditions.Get(workspace.ContainerReady)
		return ws.Phase == workspace.PhaseStandby && c.Reason == workspace.ReasonNoContainer && c.Message == ""
	})
	w.want(id, workspace.DesiredRunning, true)
	w.awaitPhase(id, workspace.PhaseRunning)
	w.expect(id, "work")
}
