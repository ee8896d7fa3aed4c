package reconcile_test

import (
	"context"
	"fmt"
	"testing"

	"codehub/internal/workspace"
)

// TestRemovalsDoNotDelayStarts: workspaces start while the homes of as many deleted ones
// as there are slots are removed, a quarter of them at once.
func TestRemovalsDoNotDelayStarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.maxOps = 4 })
	w.lead()
	var deleted []workspace.ID
	for i := range 4 {
		deleted = append(deleted, w.create(fmt.Sprint("deleted", i), workspace.DesiredStandby))
	}
	starts := w.create("starts", workspace.DesiredStandby)
	for _, id := range append(deleted, starts) {
		w.awaitPhase(id, workspace.PhaseStandby)
	}
	slow := w.gate("")
	w.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
		if op == "RemoveVolume" {
			slow.pass()
		}
		return nil
	})
	for _, id := range deleted {
		w.delete(id)
	}
	w.reached(slow)
	w.awaitCalls("Containers", w.fake.Calls("Containers")+10)
	w.want(starts, workspace.DesiredRunning, false)
	w.awaitPhase(starts, workspace.PhaseRunning)
	if n := w.fake.Calls("RemoveVolume"); n != 1 {
		t.Errorf("%d homes were removed at once", n)
	}
	slow.letGo()
	for _, id := range deleted {
		w.awaitGone(id)
	}
}
