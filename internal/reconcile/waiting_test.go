package reconcile_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"codehub/internal/reconcile"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// An operation that waits for disk space can be cancelled.
func TestProvisioningWithoutSpaceCanBeCancelled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	full := make(chan struct{})
	w.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
		select {
		case <-full:
		default:
			if op == "CreateVolume" {
				return fmt.Errorf("create the volume: %w", runtime.ErrNoSpace)
			}
		}
		return nil
	})
	c, _ := w.leads()
	id := w.create("one", workspace.DesiredRunning)
	w.awaitStatus(c, "no space left on Docker's disk", func(s reconcile.Status) string { return s.Disk })
	if _, err := w.DB.RequestCancel(t.Context(), w.owner, id); err != nil {
		t.Fatal(err)
	}
	w.await(id, "at rest", func(ws workspace.Workspace) bool {
		return ws.Phase == workspace.PhaseArchived && ws.Operation == workspace.OpNone && ws.DesiredState == workspace.DesiredArchived && ws.ErrorReason == ""
	})
	close(full)
	w.want(id, workspace.DesiredRunning, true)
	w.awaitPhase(id, workspace.PhaseRunning)
}

// The condition says when and why the next start is delayed, and the owner can stop
// and start the workspace without the delay.
func TestCrashLoopIsExplained(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.policy.RetryBase, w.policy.RetryMax = time.Hour, time.Hour })
	w.lead()
	id := w.create("one", workspace.DesiredRunning)
	w.awaitPhase(id, workspace.PhaseRunning)
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
	w.want(id, workspace.DesiredStandby, true)
	w.await(id, "stopped", func(ws workspace.Workspace) bool {
		c := ws.Conditions.Get(workspace.ContainerReady)
		return ws.Phase == workspace.PhaseStandby && c.Reason == workspace.ReasonNoContainer && c.Message == ""
	})
	w.want(id, workspace.DesiredRunning, true)
	w.awaitPhase(id, workspace.PhaseRunning)
}
