package reconcile_test

import (
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/workspace"
)

// Before the mark is compared, deletions and orphans wait and everything else
// continues.
func TestRemovalsWaitForMarkComparison(t *testing.T) {
	t.Parallel()
	var may atomic.Bool
	w := newWorld(t, func(w *world) { w.orphanDelay, w.mayRemove = time.Nanosecond, may.Load })
	orphan := w.orphan()
	w.lead()
	id := w.create("one", workspace.DesiredRunning)
	w.await(id, "RUNNING", func(ws workspace.Workspace) bool { return ws.Phase == workspace.PhaseRunning })
	w.delete(id)
	w.awaitTrue("its container goes", func() bool { return !w.hasContainer(id) })
	w.awaitCalls("Containers", w.fake.Calls("Containers")+10)
	if _, ok := w.fake.Home(id); !ok {
		t.Fatal("the home was removed")
	}
	if !w.hasContainer(orphan) {
		t.Error("an orphan was removed")
	}
	// The removal was not claimed, so the deletion can be undone.
	if n := w.fake.Calls("RemoveVolume"); n != 0 {
		t.Errorf("a removal was attempted %d times", n)
	}
	may.Store(true)
	w.awaitTrue("the home goes", func() bool { _, ok := w.fake.Home(id); return !ok })
	w.awaitTrue("the orphan goes", func() bool { return !w.hasContainer(orphan) })
}
