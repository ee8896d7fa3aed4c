package reconcile_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
	"codehub/internal/workspace/lifecycle"
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

// Backups are made before a start with another image, an archive and a restore, and not before other starts.
func TestBackupBeforeSteps(t *testing.T) {
	t.Parallel()
	causes := make(chan string, 10)
	w := newWorld(t, func(w *world) {
		w.backup = func(_ context.Context, row workspace.Workspace, cause string, _ func(runtime.Progress)) {
			causes <- cause
			if row.Home.State != workspace.HomeLive {
				t.Errorf("the home is %s before %s", row.Home.State, cause)
			}
		}
	})
	w.lead()
	id := w.filled("one", "content")
	w.await(id, "pinned", func(ws workspace.Workspace) bool { return lifecycle.PinOf(ws) != nil })
	w.restart(id)
	image := runtimetest.DefaultImage + "-2"
	w.fake.AddImage(image, runtimetest.DefaultHome())
	if _, err := w.DB.PatchWorkspace(t.Context(), w.owner, id, postgres.Patch{Image: &image}); err != nil {
		t.Fatal(err)
	}
	w.restart(id)
	w.want(id, workspace.DesiredStandby, false)
	w.awaitPhase(id, workspace.PhaseStandby)
	archived := w.archived(id)
	w.opened(id, "content")
	w.write(id, "changed")
	const backup = "0190f000-0000-7000-8000-000000000001"
	w.Exec(`INSERT INTO home_backups (id, workspace_id, state, cause, key, digest, size, begun_at, ended_at) VALUES ($1, $2, 'done', 'schedule', $3, $4, $5, now(), now())`,
		backup, id, archived.ArchiveKey, archived.ArchiveDigest, archived.ArchiveSize)
	if _, err := w.DB.RequestRestore(t.Context(), w.owner, id, backup, false); err != nil {
		t.Fatal(err)
	}
	w.await(id, "restored", func(ws workspace.Workspace) bool { return ws.RestoreFrom == nil && ws.Phase == workspace.PhaseRunning })
	w.expect(id, "content")
	close(causes)
	var got []string
	for cause := range causes {
		got = append(got, cause)
	}
	if !slices.Equal(got, []string{workspace.BackupImage, workspace.BackupArchive, workspace.BackupRestore}) {
		t.Errorf("backups before %q", got)
	}
}

// restart stops and starts a workspace, and returns it with another container.
func (w *world) restart(id workspace.ID) workspace.Workspace {
	w.Helper()
	w.want(id, workspace.DesiredStandby, false)
	w.await(id, "stopped", func(ws workspace.Workspace) bool { return ws.Phase == workspace.PhaseStandby && ws.RunningImage == "" })
	w.want(id, workspace.DesiredRunning, true)
	w.awaitPhase(id, workspace.PhaseRunning)
	return w.await(id, "with a known image", func(ws workspace.Workspace) bool { return lifecycle.PinOf(ws) != nil })
}

// A workspace keeps its image until it is updated, and finds out that there is a newer
// one. A container that runs is not touched by any of that.
func TestImageIsPinnedUntilUpdated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.checks = 20 * time.Millisecond })
	const ref = "registry.example.com/team/tool:1"
	w.fake.AddRemoteImage(ref, runtimetest.DefaultHome(), 1000)
	id := w.create("one", workspace.DesiredRunning, func(n *postgres.NewWorkspace) { n.ImageRef = ref })
	w.lead()
	first := *w.await(id, "pinned", func(ws workspace.Workspace) bool { return lifecycle.PinOf(ws) != nil }).ImagePin
	if first.ID == "" || first.Digest == "" || first.Note != "" {
		t.Fatalf("%+v", first)
	}
	w.fake.AddRemoteImage(ref, runtimetest.DefaultHome(), 1000) // the tag moves in the registry
	w.await(id, "an update is available", lifecycle.UpdateAvailable)
	if got := *w.restart(id).ImagePin; got != first {
		t.Fatalf("started with %+v, was %+v", got, first)
	}
	starts := w.fake.Calls("StartContainer")
	ws, err := w.DB.UpdateImage(t.Context(), w.owner, id)
	if err != nil || !lifecycle.UpdateWaits(ws) {
		t.Fatalf("%+v (%v)", ws, err)
	}
	w.awaitCalls("Newest", w.fake.Calls("Newest")+5)
	if ws := w.row(id); !lifecycle.UpdateWaits(ws) || w.fake.Calls("StartContainer") != starts {
		t.Fatalf("the update affected the container: %+v", ws)
	}
	second := *w.restart(id).ImagePin
	if second.ID == first.ID || second.Digest == first.Digest || second.Note != "" {
		t.Fatalf("started with %+v, was %+v", second, first)
	}
	w.awaitCalls("Newest", w.fake.Calls("Newest")+5)
	if ws := w.row(id); lifecycle.UpdateAvailable(ws) || lifecycle.UpdateWaits(ws) {
		t.Fatalf("%+v", ws)
	}
	// A prune loses nothing as long as the registry has the digest.
	w.want(id, workspace.DesiredStandby, false)
	w.await(id, "stopped", func(ws workspace.Workspace) bool { return ws.Phase == workspace.PhaseStandby && ws.RunningImage == "" })
	w.fake.TakeImage(second.ID)
	w.want(id, workspace.DesiredRunning, true)
	w.awaitPhase(id, workspace.PhaseRunning)
	if got := *w.row(id).ImagePin; got != second {
		t.Fatalf("after a prune: %+v, was %+v", got, second)
	}
}

// An image that was built here and is gone is replaced, and that is recorded. A rebuilt
// image is an update.
func TestLostImageIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.checks = 20 * time.Millisecond })
	w.lead()
	id := w.create("one", workspace.DesiredRunning)
	first := *w.await(id, "pinned", func(ws workspace.Workspace) bool { return lifecycle.PinOf(ws) != nil }).ImagePin
	w.fake.AddImage(runtimetest.DefaultImage, runtimetest.DefaultHome())
	w.await(id, "an update is available", lifecycle.UpdateAvailable)
	w.want(id, workspace.DesiredStandby, false)
	w.await(id, "stopped", func(ws workspace.Workspace) bool { return ws.Phase == workspace.PhaseStandby && ws.RunningImage == "" })
	w.fake.TakeImage(first.ID)
	w.want(id, workspace.DesiredRunning, true)
	w.awaitPhase(id, workspace.PhaseRunning)
	ws := w.await(id, "pinned to another image", func(ws workspace.Workspace) bool { return ws.ImagePin.ID != first.ID })
	if ws.ImagePin.Note != workspace.ImageReplaced {
		t.Errorf("%+v", ws.ImagePin)
	}
	if n := fixture.Query[int](w, "SELECT count(*) FROM audit_log WHERE action = 'workspace.image_replaced' AND target = $1", string(id)); n != 1 {
		t.Errorf("%d entries in the audit log", n)
	}
	if ws := w.restart(id); ws.ImagePin.Note != "" {
		t.Errorf("the notice stays: %+v", ws.ImagePin)
	}
}

// An image that this server has just made is offered without waiting for the next check.
func TestCheckImagesNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.checks = time.Hour })
	c, _ := w.leads()
	id := w.create("one", workspace.DesiredRunning)
	w.await(id, "pinned", func(ws workspace.Workspace) bool { return lifecycle.PinOf(ws) != nil })
	w.fake.AddImage(runtimetest.DefaultImage, runtimetest.DefaultHome())
	c.CheckImages()
	w.await(id, "an update is available", lifecycle.UpdateAvailable)
}

// An image that is not allowed any more is not started. The workspace runs on, keeps its
// home, and is never stuck.
func TestImageNotAllowedIsNotStarted(t *testing.T) {
	t.Parallel()
	allowed, err := imageref.ParseAllowed("registry.example.com/**", "")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	id := w.create("one", workspace.DesiredRunning)
	never := w.create("never started", workspace.DesiredArchived)
	stop := w.lead()
	w.awaitPhase(id, workspace.PhaseRunning)
	w.awaitPhase(never, workspace.PhaseArchived)
	stop()
	w.images = allowed
	w.lead()
	w.awaitCalls("Containers", w.fake.Calls("Containers")+5)
	if ws := w.row(id); ws.Phase != workspace.PhaseRunning {
		t.Fatalf("%+v", ws)
	}
	w.fake.EndContainer(id) // it would start again
	ws := w.awaitPhase(id, workspace.PhaseError)
	if ws.ErrorReason != workspace.ErrImageNotAllowed || ws.Home.State != workspace.HomeLive {
		t.Fatalf("%+v", ws)
	}
	another := "registry.example.com/tool:1"
	w.fake.AddRemoteImage(another, runtimetest.DefaultHome(), 100)
	if _, err := w.DB.PatchWorkspace(t.Context(), w.owner, id, postgres.Patch{Image: &another}); err != nil {
		t.Fatal(err)
	}
	w.awaitPhase(id, workspace.PhaseRunning) // the change starts it again

	pulls := w.fake.Calls("CreateVolume")
	fresh := w.create("fresh", workspace.DesiredStandby)
	if ws := w.awaitPhase(fresh, workspace.PhaseError); ws.ErrorReason != workspace.ErrImageNotAllowed {
		t.Errorf("%+v", ws)
	}
	if w.fake.Calls("CreateVolume") != pulls {
		t.Error("a home was made from an image that is not allowed")
	}
}
