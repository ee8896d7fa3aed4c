package reconcile_test

import (
	"testing"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// The container of a workspace gets its size at a start, and a change waits for the next one.
func TestSizeOfContainer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		w.sizes = workspace.Sizes{Default: workspace.Size{Name: workspace.DefaultSize}, Offered: []workspace.Size{{Name: "small"}, {Name: "large"}}}
	})
	w.lead()
	id := w.create("demo", workspace.DesiredStandby)
	w.awaitPhase(id, workspace.PhaseStandby)
	run := func(size string) {
		t.Helper()
		w.want(id, workspace.DesiredRunning, true)
		w.await(id, "runs with the size "+size, func(ws workspace.Workspace) bool {
			return ws.Phase == workspace.PhaseRunning && ws.RunningSize == size && !lifecycle.SizeWaits(ws, w.sizes)
		})
	}
	stop := func() {
		t.Helper()
		w.want(id, workspace.DesiredStandby, false)
		w.await(id, "stopped", func(ws workspace.Workspace) bool { return ws.Phase == workspace.PhaseStandby && ws.RunningSize == "" })
	}
	w.Change(`UPDATE workspaces SET size = 'small' WHERE id = $1`, id)
	run("small")
	w.Change(`UPDATE workspaces SET size = 'large' WHERE id = $1`, id)
	if ws := w.row(id); ws.RunningSize != "small" || !lifecycle.SizeWaits(ws, w.sizes) {
		t.Errorf("the change affected the container, or does not wait: %q", ws.RunningSize)
	}
	stop()
	run("large")
	stop()
	w.Change(`UPDATE workspaces SET size = 'gone' WHERE id = $1`, id)
	run(workspace.DefaultSize)
}
