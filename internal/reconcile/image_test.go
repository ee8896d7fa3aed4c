package reconcile_test

import (
	"testing"

	"codehub/internal/postgres"
	"codehub/internal/runtime/runtimetest"
	"codehub/internal/workspace"
)

// TestImageChangeWaitsForTheStart: a running workspace keeps its container, and
// the next start uses the new image.
func TestImageChangeWaitsForTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lead()
	id := w.create("one", workspace.DesiredRunning)
	old := w.awaitPhase(id, workspace.PhaseRunning).ImageRef
	w.await(id, "the image of its container is known", func(ws workspace.Workspace) bool { return ws.RunningImage == old })
	starts, removals := w.fake.Calls("StartContainer"), w.fake.Calls("RemoveContainer")
	image := runtimetest.DefaultImage + "-2"
	w.fake.AddImage(image, runtimetest.DefaultHome())
	ws, err := w.DB.PatchWorkspace(t.Context(), w.owner, id, postgres.Patch{Image: &image})
	if err != nil || ws.ImageRef != image || ws.PreviousImage != old || ws.RunningImage != old {
		t.Fatalf("%+v (%v)", ws, err)
	}
	w.awaitCalls("Containers", w.fake.Calls("Containers")+5)
	if ws := w.row(id); ws.Phase != workspace.PhaseRunning || ws.RunningImage != old ||
		w.fake.Calls("StartContainer") != starts || w.fake.Calls("RemoveContainer") != removals {
		t.Fatalf("the change affected the container: %+v", ws)
	}
	w.want(id, workspace.DesiredStandby, false)
	w.await(id, "stopped", func(ws workspace.Workspace) bool { return ws.Phase == workspace.PhaseStandby && ws.RunningImage == "" })
	w.want(id, workspace.DesiredRunning, true)
	w.awaitPhase(id, workspace.PhaseRunning)
	w.await(id, "running with the new image", func(ws workspace.Workspace) bool { return ws.RunningImage == image })
}
