package reconcile_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"codehub/internal/postgres"
	"codehub/internal/runtime/runtimetest"
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

// TestOwnersTakeTurns: a user's workspace does not wait for all that another user has
// requested before.
func TestOwnersTakeTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.maxOps = 2 })
	var mu sync.Mutex
	var provisioned []workspace.ID
	w.fake.SetBefore(func(_ context.Context, op string, id workspace.ID) error {
		if op == "CreateVolume" {
			mu.Lock()
			defer mu.Unlock()
			if !slices.Contains(provisioned, id) {
				provisioned = append(provisioned, id)
			}
		}
		return nil
	})
	for i := range 4 {
		w.create(fmt.Sprint("many", i), workspace.DesiredStandby)
	}
	bob := w.AddUser("bob")
	last := w.AddWorkspace(bob, "one", func(n *postgres.NewWorkspace) {
		n.ImageRef, n.Desired = runtimetest.DefaultImage, workspace.DesiredStandby
	}).ID
	w.lead()
	w.awaitCalls("CreateVolume", 5)
	mu.Lock()
	defer mu.Unlock()
	if turn := slices.Index(provisioned, last); turn > 1 {
		t.Errorf("bob's workspace was provisioned at position %d of %d", turn, len(provisioned))
	}
}
