package reconcile_test

import (
	"context"
	"fmt"
	"testing"

	"codehub/internal/workspace"
)

// TestRestartDuringSlowSettling: a restart does not wait for the settling of other homes.
func TestRestartDuringSlowSettling(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.lead()
	restarts := w.create("restarts", workspace.DesiredRunning)
	var ids []workspace.ID
	for i := range 8 {
		ids = append(ids, w.create(fmt.Sprint("ws", i), workspace.DesiredStandby))
	}
	for _, id := range ids {
		w.awaitPhase(id, workspace.PhaseStandby)
	}
	w.awaitPhase(restarts, workspace.PhaseRunning)
	stop()
	w.fake.SetBefore(func(ctx context.Context, op string, id workspace.ID) error {
		if op == "SettleVolume" && id != restarts {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	settling, started := w.fake.Calls("SettleVolume"), w.fake.Calls("StartContainer")
	w.lead()
	w.awaitCalls("SettleVolume", settling+8)
	if _, err := w.DB.Restart(t.Context(), w.owner, restarts); err != nil {
		t.Fatal(err)
	}
	w.awaitCalls("StartContainer", started+1)
	w.awaitPhase(restarts, workspace.PhaseRunning)
}

// TestNoSettlingDuringOperation: a home is not settled while an operation runs on its
// workspace, beginning with the tick that claims it.
func TestNoSettlingDuringOperation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.lead()
	id := w.create("one", workspace.DesiredStandby)
	w.awaitPhase(id, workspace.PhaseStandby)
	stop()
	pulls := w.gate("")
	w.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
		if op == "StartContainer" {
			pulls.pass()
		}
		return nil
	})
	w.want(id, workspace.DesiredRunning, false)
	settled := w.fake.Calls("SettleVolume")
	w.lead()
	w.reached(pulls)
	w.awaitCalls("Containers", w.fake.Calls("Containers")+10)
	if n := w.fake.Calls("SettleVolume"); n != settled {
		t.Errorf("the home was settled %d times during the start", n-settled)
	}
	pulls.letGo()
	w.awaitPhase(id, workspace.PhaseRunning)
	w.awaitCalls("SettleVolume", settled+1)
}
