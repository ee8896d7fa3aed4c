package reconcile_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// inUse reports whether the progress says that the container uses the home.
func inUse(container string) func(workspace.Workspace) bool {
	return func(ws workspace.Workspace) bool {
		return ws.Progress != nil && ws.Progress.Equal(&workspace.Progress{Step: runtime.StepWaitingInUse, Detail: container, Steps: ws.Progress.Steps})
	}
}

// A container that uses the home delays its archiving without a failure, and is named in
// the progress.
func TestArchivingWaitsForUserOfHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	failed := w.watchErrors()
	w.lead()
	id := w.filled("one", "work")
	leave := w.fake.Use(id, "nightly-backup")
	w.want(id, workspace.DesiredArchived, false)
	claim := w.await(id, "waiting for the container", inUse("nightly-backup")).OpID
	w.awaitCalls("StartJob", 3)
	ws := w.await(id, "waiting for the container", inUse("nightly-backup"))
	if ws.OpID != claim || ws.ErrorCount != 0 || ws.Home.State != workspace.HomeLive {
		t.Errorf("%s of claim %s (was %s), %d failures, home %s", ws.Operation, ws.OpID, claim, ws.ErrorCount, ws.Home.State)
	}
	leave()
	w.isArchived(w.awaitPhase(id, workspace.PhaseArchived))
	if messages := failed(); len(messages) != 0 {
		t.Errorf("failures: %q", messages)
	}
	w.opened(id, "work")
}

// An archive that waits for a container can be cancelled, or superseded by a start.
func TestArchivingThatWaitsForUserCanBeCancelled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lead()
	id := w.filled("one", "work")
	w.fake.Use(id, "reader")
	w.want(id, workspace.DesiredArchived, false)
	w.await(id, "waiting for the container", inUse("reader"))
	w.cancel(id)
	if ws := w.awaitPhase(id, workspace.PhaseStandby); ws.DesiredState != workspace.DesiredStandby || ws.Progress != nil {
		t.Errorf("desired %s, progress %+v", ws.DesiredState, ws.Progress)
	}
	w.want(id, workspace.DesiredArchived, false)
	w.await(id, "waiting for the container", inUse("reader"))
	w.want(id, workspace.DesiredRunning, true)
	if ws := w.awaitPhase(id, workspace.PhaseRunning); ws.ErrorCount != 0 {
		t.Errorf("%d failures", ws.ErrorCount)
	}
	w.expect(id, "work")
}

// A container that appears after the archive was stored delays the removal of the
// home. What it writes is in the next archive.
func TestRemovalWaitsForUserOfHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var leave func()
	var once sync.Once
	w.step = func(id workspace.ID, step string) {
		if step == "archive.stored" {
			once.Do(func() { leave = w.fake.Use(id, "late-reader") })
		}
	}
	failed := w.watchErrors()
	w.lead()
	id := w.filled("one", "work")
	w.want(id, workspace.DesiredArchived, false)
	w.await(id, "waiting for the container", inUse("late-reader"))
	w.awaitCalls("StartJob", 3)
	ws := w.await(id, "waiting for the container", inUse("late-reader"))
	if ws.ErrorCount != 0 || ws.ArchiveKey == "" || ws.Home.State != workspace.HomeLive {
		t.Errorf("%d failures, archive %q, home %s", ws.ErrorCount, ws.ArchiveKey, ws.Home.State)
	}
	if err := w.fake.WriteBeside(id, "notes.txt", "written last"); err != nil {
		t.Fatal(err)
	}
	leave()
	w.isArchived(w.awaitPhase(id, workspace.PhaseArchived))
	if messages := failed(); len(messages) != 0 {
		t.Errorf("failures: %q", messages)
	}
	w.opened(id, "written last")
}

// Starting the workspace then keeps the home with what the container has written.
func TestStartWhileRemovalWaitsKeepsHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var once sync.Once
	w.step = func(id workspace.ID, step string) {
		if step == "archive.checked" {
			once.Do(func() { w.fake.Use(id, "late-writer") })
		}
	}
	w.lead()
	id := w.filled("one", "work")
	home := w.row(id).Home
	w.want(id, workspace.DesiredArchived, false)
	w.await(id, "waiting for the container", inUse("late-writer"))
	if err := w.fake.WriteBeside(id, "notes.txt", "written last"); err != nil {
		t.Fatal(err)
	}
	w.want(id, workspace.DesiredRunning, true)
	if ws := w.awaitPhase(id, workspace.PhaseRunning); ws.Home.Claim != home.Claim || ws.ErrorCount != 0 {
		t.Errorf("home %+v, was %+v; %d failures", ws.Home, home, ws.ErrorCount)
	}
	w.expect(id, "written last")
}

// Writes between packing and storing are in the next archive, whether the container
// has ended by then or not.
func TestArchivingIncludesWritesAfterPacking(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"archive.job-done", "archive.verified"} {
		for _, stays := range []bool{false, true} {
			t.Run(fmt.Sprint(at, " stays ", stays), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				leave := func() {}
				var once sync.Once
				w.step = func(id workspace.ID, step string) {
					if step != at {
						return
					}
					once.Do(func() {
						if stays {
							leave = w.fake.Use(id, "writer")
						}
						if err := w.fake.WriteBeside(id, "notes.txt", "written late"); err != nil {
							t.Error(err)
						}
					})
				}
				failed := w.watchErrors()
				w.lead()
				id := w.filled("one", "work")
				w.want(id, workspace.DesiredArchived, false)
				if stays {
					w.await(id, "waiting for the container", inUse("writer"))
					if err := w.fake.WriteBeside(id, "notes.txt", "written last"); err != nil {
						t.Error(err)
					}
					leave()
				}
				w.isArchived(w.awaitPhase(id, workspace.PhaseArchived))
				if messages := failed(); len(messages) != 0 {
					t.Errorf("failures: %q", messages)
				}
				w.opened(id, map[bool]string{false: "written late", true: "written last"}[stays])
			})
		}
	}
}

// The next server also detects that the home has changed.
func TestArchivingOnNextServerIncludesWritesAfterPacking(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.gate("archive.verified")
	w.step = g.hold
	stop := w.lead()
	id := w.filled("one", "work")
	w.want(id, workspace.DesiredArchived, false)
	w.reached(g)
	time.AfterFunc(10*time.Millisecond, func() { g.letGo() })
	stop()
	if err := w.fake.WriteBeside(id, "notes.txt", "written late"); err != nil {
		t.Fatal(err)
	}
	w.lead()
	w.isArchived(w.awaitPhase(id, workspace.PhaseArchived))
	w.opened(id, "written late")
}

// Repacking stops after maxChanges attempts with a failure that says why.
func TestArchivingFailsIfHomeKeepsChanging(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var writes atomic.Int32
	var writing atomic.Bool
	writing.Store(true)
	w.fake.SetBefore(func(_ context.Context, op string, id workspace.ID) error {
		if op == "Fingerprint" && writing.Load() {
			return w.fake.WriteBeside(id, "notes.txt", fmt.Sprint("write ", writes.Add(1)))
		}
		return nil
	})
	failed := w.watchErrors()
	w.lead()
	id := w.filled("one", "work")
	w.want(id, workspace.DesiredArchived, false)
	ws := w.await(id, "failed", func(ws workspace.Workspace) bool { return ws.ErrorCount == 1 })
	if ws.Home.State != workspace.HomeLive || ws.ArchiveKey != "" || !strings.Contains(ws.ErrorMessage, "the home has changed since it was packed") {
		t.Errorf("%s, home %s, archive %q", ws.ErrorMessage, ws.Home.State, ws.ArchiveKey)
	}
	if n := writes.Load(); n < 3 {
		t.Errorf("given up after %d archives", n)
	}
	writing.Store(false)
	w.isArchived(w.awaitPhase(id, workspace.PhaseArchived))
	if messages := failed(); len(messages) != 1 {
		t.Errorf("failures: %q", messages)
	}
}

// A home in use occupies no slot, and waits for one when it becomes free.
func TestHomeInUseDoesNotDelayOtherArchivings(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.maxJobs = 1 })
	var atOnce, most atomic.Int32
	w.fake.SetJob(func(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
		most.Store(max(most.Load(), atOnce.Add(1)))
		defer atOnce.Add(-1)
		time.Sleep(20 * time.Millisecond)
		return realJob(ctx, spec, home, out)
	})
	w.lead()
	var leaves []func()
	var used []workspace.ID
	for i := range 3 {
		id := w.filled(fmt.Sprint("used", i), "work")
		leaves, used = append(leaves, w.fake.Use(id, "reader")), append(used, id)
		w.want(id, workspace.DesiredArchived, false)
		w.await(id, "waiting for the container", inUse("reader"))
	}
	w.archived(w.filled("free", "work"))
	for _, leave := range leaves {
		leave()
	}
	for _, id := range used {
		w.isArchived(w.awaitPhase(id, workspace.PhaseArchived))
	}
	if n := most.Load(); n != 1 {
		t.Errorf("%d archives at once", n)
	}
}

func TestDeletionWaitsForUserOfHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	failed := w.watchErrors()
	w.lead()
	id := w.create("one", workspace.DesiredRunning)
	w.awaitPhase(id, workspace.PhaseRunning)
	leave := w.fake.Use(id, "reader")
	w.delete(id)
	w.awaitCalls("RemoveVolume", 3)
	leave()
	w.awaitGone(id)
	if messages := failed(); len(messages) != 0 {
		t.Errorf("failures: %q", messages)
	}
}

const noAddress = "no available IPv4 addresses on this network's address pools: codehub-1 (1)"

func TestStartWaitsForAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	failed := w.watchErrors()
	w.lead()
	id := w.create("one", workspace.DesiredStandby)
	w.awaitPhase(id, workspace.PhaseStandby)
	w.fake.SetNoAddress(noAddress)
	w.want(id, workspace.DesiredRunning, false)
	w.await(id, "waiting for an address", func(ws workspace.Workspace) bool {
		return ws.Progress != nil && ws.Progress.Step == runtime.StepWaitingBackend && strings.Contains(ws.Progress.Detail, noAddress)
	})
	w.awaitCalls("StartContainer", 3)
	if ws := w.row(id); ws.Operation != workspace.OpStarting || ws.ErrorCount != 0 {
		t.Errorf("%s, %d failures", ws.Operation, ws.ErrorCount)
	}
	w.fake.SetNoAddress("")
	w.awaitPhase(id, workspace.PhaseRunning)
	if messages := failed(); len(messages) != 0 {
		t.Errorf("failures: %q", messages)
	}
}

func (w *world) jobs() []runtime.Job {
	w.Helper()
	list, err := w.fake.Jobs(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return list
}

// A storage job that waits for a node with room stays, however long that takes, and runs once there
// is room.
func TestJobsWaitForRoom(t *testing.T) {
	t.Parallel()
	const noRoom = "0/3 nodes are available: 3 Insufficient memory."
	w := newWorld(t)
	failed := w.watchErrors()
	w.lead()
	id := w.filled("one", "work")
	for _, to := range []workspace.DesiredState{workspace.DesiredArchived, workspace.DesiredStandby} {
		w.fake.SetNoRoom(noRoom)
		before := w.fake.Calls("StartJob")
		w.want(id, to, true)
		w.await(id, "waiting for room", func(ws workspace.Workspace) bool {
			return ws.Progress != nil && ws.Progress.Step == runtime.StepWaitingRoom && ws.Progress.Detail == noRoom
		})
		first := w.jobs()
		w.awaitCalls("StartJob", before+4)
		if again := w.jobs(); len(first) != 1 || !first[0].Waiting || !slices.Equal(first, again) {
			t.Errorf("to %s: the jobs %+v, then %+v", to, first, again)
		}
		w.fake.SetNoRoom("")
		w.awaitPhase(id, workspace.Phase(to))
	}
	w.opened(id, "work")
	if messages := failed(); len(messages) != 0 {
		t.Errorf("failures: %q", messages)
	}
}
