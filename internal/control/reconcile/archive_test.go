package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/control/reconcile"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/storage/storagejob"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/workspace"
)

// Every archive of a workspace has its own key, and every restore brings the home
// back unchanged.
func TestArchiveAndRestore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lead()
	id := w.filled("one", "work")
	first := w.row(id).Home.Claim
	w.want(id, workspace.DesiredStandby, false)
	w.awaitPhase(id, workspace.PhaseStandby)
	home, _ := w.fake.Home(id)

	before := w.archived(id)
	if before.ArchiveDigest == "" || before.ArchiveSize == 0 || w.entries(before) != int64(len(home)) {
		t.Errorf("the row has %q, %d bytes, %d entries of %d", before.ArchiveDigest, before.ArchiveSize, w.entries(before), len(home))
	}
	w.awaitNoJobs(id)
	w.want(id, workspace.DesiredStandby, false)
	ws := w.awaitPhase(id, workspace.PhaseStandby)
	if ws.Home.Claim == first || ws.Home.Marker != before.ArchiveKey || ws.ArchiveKey != before.ArchiveKey {
		t.Errorf("restored: %+v, key %s", ws.Home, ws.ArchiveKey)
	}
	restored, _ := w.fake.Home(id)
	if d := cmp.Diff(home, restored); d != "" {
		t.Error(d)
	}
	w.opened(id, "work")
	w.write(id, "more work")
	after := w.archived(id)
	if after.ArchiveKey == before.ArchiveKey {
		t.Error("two archives have the same key")
	}
	w.opened(id, "more work")

	list, _, err := w.DB.Archives(t.Context(), w.owner, id, postgres.Page{})
	if err != nil || len(list) != 2 || list[0].Key != after.ArchiveKey || list[1].Key != before.ArchiveKey {
		t.Errorf("generations: %+v, %v", list, err)
	}
}

// Before it is settled, a delayed call could restore other content into it.
func TestRestoredHomesAreSettledFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var restored, failed, settled atomic.Bool
	w.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
		switch {
		case op == "MarkRestored":
			restored.Store(true)
		case op == "SettleVolume" && restored.Load() && failed.CompareAndSwap(false, true):
			return errors.New("not now")
		case op == "SettleVolume" && restored.Load():
			settled.Store(true)
		case op == "StartContainer" && restored.Load() && !settled.Load():
			t.Error("started with a home that is not settled")
		}
		return nil
	})
	w.lead()
	id := w.filled("one", "work")
	w.archived(id)
	w.opened(id, "work")
	if !settled.Load() {
		t.Error("the home was not settled")
	}
}

// Restoring an empty archive creates a home as for a new workspace, and gives it what the
// image has made for root.
func TestEmptyArchiveAndRestore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.uids = someUIDs })
	const image = "codehub/roots:latest"
	w.fake.AddImage(image, append(runtimetest.DefaultHome(), runtimetest.File{Path: "work", Mode: 0o644}))
	w.lead()
	id := w.create("one", workspace.DesiredArchived, func(n *postgres.NewWorkspace) { n.ImageRef = image })
	ws := w.awaitPhase(id, workspace.PhaseArchived)
	w.isArchived(ws)
	if w.entries(ws) != 0 || w.fake.Calls("StartJob") != 0 {
		t.Errorf("%d entries, %d jobs", w.entries(ws), w.fake.Calls("StartJob"))
	}
	w.want(id, workspace.DesiredRunning, false)
	ws = w.awaitPhase(id, workspace.PhaseRunning)
	var want []runtimetest.File
	uid := someUIDs.Of(ws)
	for _, file := range append(runtimetest.DefaultHome(), runtimetest.File{Path: "work", Mode: 0o644}) {
		file.UID, file.GID = int(uid), int(uid)
		want = append(want, file)
	}
	home, _ := w.fake.Home(id)
	if d := cmp.Diff(want, home); d != "" {
		t.Error(d)
	}
	if ws.Home.Marker != ws.ArchiveKey {
		t.Errorf("%+v, %s", ws.Home, ws.ArchiveKey)
	}
	w.write(id, "work")
	w.archived(id)
	w.opened(id, "work")
}

func TestArchiveProgress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.gate("archive.verified")
	w.step = g.hold
	w.lead()
	id := w.filled("one", "work")
	w.want(id, workspace.DesiredArchived, false)
	w.reached(g)
	ws := w.await(id, "verifying", func(ws workspace.Workspace) bool {
		return ws.Progress != nil && ws.Progress.Step == runtime.StepVerifying
	})
	if p := ws.Progress; p.Done == 0 || p.Done != p.Total || p.Entries == 0 || p.Entries != p.EntriesTotal {
		t.Errorf("%+v", p)
	}
	g.letGo()
	if ws = w.awaitPhase(id, workspace.PhaseArchived); ws.Progress != nil {
		t.Errorf("no operation is running, but %+v", ws.Progress)
	}
}

// Steps lists every step in order.
func TestSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	var passed []string
	w.step = func(_ workspace.ID, step string) {
		mu.Lock()
		defer mu.Unlock()
		if step != reconcile.OwnStep {
			passed = append(passed, step)
		}
	}
	w.lead()
	id := w.filled("one", "work")
	w.archived(id)
	nothing := w.create("nothing", workspace.DesiredArchived)
	w.awaitPhase(nothing, workspace.PhaseArchived)
	w.opened(id, "work")
	mu.Lock()
	defer mu.Unlock()
	if d := cmp.Diff(reconcile.Steps(), passed); d != "" {
		t.Error(d)
	}
}

// After a crash at any step the next start of the server completes the operation.
func TestArchiveResumesAfterCrashAtEveryStep(t *testing.T) {
	t.Parallel()
	steps := []string{"archive.job-started", "archive.stored", "archive.checked", "empty.stored", "restore.volume-created", "restore.before-mark"}
	if harness.Verifying() {
		steps = reconcile.Steps()
	}
	for _, at := range steps {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			g := w.gate(at)
			w.step = g.hold
			stop := w.lead()
			crash := func() {
				t.Helper()
				w.reached(g)
				time.AfterFunc(10*time.Millisecond, func() { g.letGo() }) // the executor has ended by then
				stop()
				w.lead()
			}
			id := w.filled("one", "work")
			if at[:5] == "empty" {
				id = w.create("nothing", workspace.DesiredArchived)
				crash()
				w.isArchived(w.awaitPhase(id, workspace.PhaseArchived))
				return
			}
			w.want(id, workspace.DesiredArchived, false)
			if at[:7] == "archive" {
				crash()
			}
			w.isArchived(w.awaitPhase(id, workspace.PhaseArchived))
			w.want(id, workspace.DesiredRunning, false)
			if at[:7] == "restore" {
				crash()
			}
			if ws := w.awaitPhase(id, workspace.PhaseRunning); ws.ErrorCount != 0 {
				t.Errorf("the crash counted as %d failures", ws.ErrorCount)
			}
			w.expect(id, "work")
			if len(w.keys(id)) != 1 {
				t.Errorf("archives: %v", w.keys(id))
			}
		})
	}
}

// A storage job may be killed or removed at any step.
func TestArchiveSurvivesLostJobAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"killed", "removed"} {
		for _, at := range few("archive.job-started", "restore.job-done", "archive.job-done", "archive.verified", "archive.stored", "restore.job-started", "restore.marked") {
			t.Run(at+" "+end, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				var once sync.Once
				w.step = func(id workspace.ID, step string) {
					if step != at {
						return
					}
					once.Do(func() {
						jobs, err := w.fake.Jobs(t.Context())
						if err != nil || len(jobs) != 1 {
							t.Errorf("jobs: %+v, %v", jobs, err)
						}
						for _, j := range jobs {
							if end == "killed" {
								w.fake.EndJob(j.ID)
							} else if err := w.fake.RemoveJob(t.Context(), j.ID); err != nil {
								t.Error(err)
							}
						}
					})
				}
				w.lead()
				id := w.filled("one", "work")
				w.archived(id)
				w.opened(id, "work")
			})
		}
	}
}

// Archives do not delay a start.
func TestArchivesDoNotDelayStarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.maxOps, w.maxJobs = 1, 1 })
	g := w.gate("archive.job-done")
	var third workspace.ID
	w.step = func(id workspace.ID, step string) {
		if id != third {
			g.hold(id, step)
		}
	}
	third = w.create("third", workspace.DesiredRunning)
	w.lead()
	w.awaitPhase(third, workspace.PhaseRunning)
	w.archived(third)
	large, other := w.filled("large", "work"), w.filled("other", "other work")
	w.want(large, workspace.DesiredArchived, false)
	w.want(other, workspace.DesiredArchived, false)
	w.reached(g)
	w.want(third, workspace.DesiredRunning, false)
	w.awaitPhase(third, workspace.PhaseRunning)
	w.awaitPhase(w.create("new", workspace.DesiredRunning), workspace.PhaseRunning)
	archiving := 0
	for _, id := range []workspace.ID{large, other} {
		if w.row(id).Operation == workspace.OpArchiving {
			archiving++
		}
	}
	if archiving != 1 {
		t.Errorf("%d archives at once", archiving)
	}
	g.letGo()
	for _, id := range []workspace.ID{large, other} {
		w.awaitPhase(id, workspace.PhaseArchived)
	}
}

// A cancellation removes the job at once. The job that restored a home is kept, also as an
// orphan.
func TestOrphanedJobsAreRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.gate("archive.job-started")
	w.step = g.hold
	stop := w.lead()
	id := w.filled("one", "work")
	w.want(id, workspace.DesiredArchived, false)
	w.reached(g)
	w.cancel(id)
	w.awaitNoJobs(id) // while the executor has not ended yet
	g.letGo()
	w.awaitPhase(id, workspace.PhaseStandby)
	w.opened(id, "work")

	w.archived(id)
	w.opened(id, "work")
	w.want(id, workspace.DesiredStandby, false)
	w.awaitPhase(id, workspace.PhaseStandby)
	asked := w.fake.Calls("RemoveJob")
	w.awaitCalls("Jobs", w.fake.Calls("Jobs")+10)
	if n := w.fake.Calls("RemoveJob") - asked; n > 1 {
		t.Errorf("the removal of a job that holds a home was requested %d times", n)
	}
	stop()
	w.Exec(`DELETE FROM workspaces WHERE id = $1`, id)
	w.lead()
	w.awaitTrue("the job is kept as an orphan", func() bool { return w.orphansOf(id)["job"].Kept })
	if _, ok := w.fake.Home(id); !ok {
		t.Error("an orphaned home was removed")
	}
}

// A workspace does not start while the job of an operation that was cancelled
// still reads its home.
func TestStartEndsEarlierJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.lead()
	id := w.filled("one", "work")
	w.want(id, workspace.DesiredStandby, false)
	claim := w.awaitPhase(id, workspace.PhaseStandby).Home.Claim
	stop()
	w.fake.SetJob(func(ctx context.Context, _ runtime.JobSpec, _ string, _ io.Writer) int {
		<-ctx.Done()
		return 0
	})
	_, err := w.fake.StartJob(t.Context(), runtime.JobSpec{
		Workspace: id, Claim: "cancelled", Kind: runtime.JobArchive, Storage: workspace.StorageDockerVolume, VolumeClaim: claim, Key: "k",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.want(id, workspace.DesiredRunning, false)
	var refused, together atomic.Bool
	w.fake.SetBefore(func(ctx context.Context, op string, _ workspace.ID) error {
		switch op {
		case "RemoveJob": // the first request fails
			if !refused.Swap(true) {
				return runtime.ErrUnreachable
			}
		case "StartContainer":
			jobs, err := w.fake.Jobs(ctx)
			if err != nil || slices.ContainsFunc(jobs, func(j runtime.Job) bool { return j.Workspace == id && j.Running }) {
				together.Store(true)
			}
		}
		return nil
	})
	w.lead()
	w.opened(id, "work")
	if together.Load() {
		t.Error("the container was started while a storage job ran")
	}
}

// A cancelled restore leaves no volume. If it is cancelled too late, the home
// belongs to the workspace.
func TestCancelRestore(t *testing.T) {
	t.Parallel()
	for _, at := range few("restore.job-started", "restore.before-mark", "restore.begin", "restore.volume-created", "restore.job-done") {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			g := w.gate(at)
			w.step = g.hold
			w.lead()
			id := w.filled("one", "work")
			key := w.archived(id).ArchiveKey
			w.want(id, workspace.DesiredRunning, false)
			w.reached(g)
			w.cancel(id)
			w.await(id, "called off", func(ws workspace.Workspace) bool { return ws.Operation != workspace.OpRestoring })
			g.letGo()
			ws := w.await(id, "archived, without a volume", func(ws workspace.Workspace) bool {
				_, volume := w.fake.Home(id)
				return ws.Phase == workspace.PhaseArchived && ws.Operation == workspace.OpNone && !volume &&
					ws.Conditions.Get(workspace.VolumeReady).Reason == workspace.ReasonNoVolume
			})
			if ws.ArchiveKey != key || ws.ErrorCount != 0 {
				t.Errorf("%s, %d errors", ws.ArchiveKey, ws.ErrorCount)
			}
			w.awaitNoJobs(id)
			w.opened(id, "work")
		})
	}
}

// Deleting an archived workspace completes once its archives are gone.
func TestDeleteArchivedWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lead()
	id := w.filled("one", "work")
	w.archived(id)
	w.delete(id)
	w.awaitCalls("Containers", w.fake.Calls("Containers")+5)
	if ws, err := w.DB.Workspace(t.Context(), workspace.System, id); err != nil || ws.Phase != workspace.PhaseDeleting || ws.Operation != workspace.OpNone {
		t.Fatalf("%s, %s, %v", ws.Phase, ws.Operation, err)
	}
	// As garbage collection does once it has removed them.
	w.Exec(`UPDATE workspaces SET archive_key = NULL WHERE id = $1`, id)
	w.awaitGone(id)
}

// While a disk is too full nothing is started or restored, archives continue, and
// the status says why.
func TestFullDiskBlocksStarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.minFree = 0.05 })
	c, _ := w.leads()
	id, packed := w.filled("one", "work"), w.filled("two", "work")
	w.archived(id)
	w.fake.SetDisks(runtime.Disk{Name: "the homes", Free: 4, Total: 100})
	w.awaitStatus(c, "the homes: 4.0 %", func(s reconcile.Status) string { return s.Disk })
	w.want(id, workspace.DesiredRunning, false)
	fresh := w.create("three", workspace.DesiredRunning)
	w.archived(packed)
	w.awaitCalls("Containers", w.fake.Calls("Containers")+10)
	for _, id := range []workspace.ID{id, fresh} {
		if ws := w.row(id); ws.Operation != workspace.OpNone || ws.ErrorCount != 0 || ws.Phase != workspace.PhaseArchived && ws.Phase != workspace.PhasePending {
			t.Errorf("%s is %s, %s", ws.Name, ws.Phase, ws.Operation)
		}
	}
	w.fake.SetDisks()
	w.awaitPhase(id, workspace.PhaseRunning)
	w.awaitPhase(fresh, workspace.PhaseRunning)
	w.expect(id, "work")
	w.awaitStatus(c, "", func(s reconcile.Status) string { return s.Disk })
}

// A new leader waits for the first disk check, and starts workspaces if that check
// fails.
func TestStartsWaitForFirstDiskCheck(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.minFree = 0.05 })
	w.fake.SetDisks(runtime.Disk{Name: "the homes", Free: 4, Total: 100})
	id := w.create("one", workspace.DesiredRunning)
	stop := w.lead()
	w.awaitCalls("Containers", 20)
	if ws := w.row(id); ws.Operation != workspace.OpNone || w.fake.Calls("CreateVolume") != 0 {
		t.Errorf("%s, %s", ws.Phase, ws.Operation)
	}
	stop()
	var asked atomic.Int32
	w.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
		if op == "Disks" {
			asked.Add(1)
			return errNotNow
		}
		return nil
	})
	w.lead()
	w.awaitPhase(id, workspace.PhaseRunning)
	if asked.Load() == 0 {
		t.Error("the disks were never checked")
	}
}

// An archive that does not fit on its disk waits without a deadline, without further attempts and
// without a slot, says what it needs, and continues once there is enough space.
func TestArchiveWaitsForRoom(t *testing.T) {
	t.Parallel()
	const needs, free = 3 << 20, 1<<20 + 5
	w := newWorld(t, func(w *world) { w.maxJobs = 1 })
	w.policy.NoProgress = lenient(750 * time.Millisecond)
	w.archives.free.Store(free)
	var jobs atomic.Int32
	var large atomic.Value
	w.fake.SetJob(func(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
		if spec.Workspace != large.Load() || w.archives.free.Load() >= needs {
			return realJob(ctx, spec, home, out)
		}
		jobs.Add(1)
		b, _ := json.Marshal(storagejob.Event{Result: &storagejob.Result{Claim: spec.Claim, Kind: string(spec.Kind), Error: &storagejob.Error{
			Kind: storagejob.Unavailable, Message: "full", Room: &storagejob.Room{Needs: needs, Free: free},
		}}})
		_, _ = out.Write(append(b, '\n'))
		return storagejob.ExitFailed
	})
	w.lead()
	id, small := w.filled("large", "work"), w.filled("small", "work")
	large.Store(id)
	began := time.Now()
	w.want(id, workspace.DesiredArchived, false)
	ws := w.await(id, "waiting for room", func(ws workspace.Workspace) bool {
		return ws.Progress != nil && ws.Progress.Step == runtime.StepWaitingStorage
	})
	if ws.Progress.Detail != "This archive needs 3 MiB, and 1 MiB are available on the disk of the archives." {
		t.Errorf("the step says %q", ws.Progress.Detail)
	}
	if err := w.health.Err("archive-disk"); err == nil || !strings.Contains(err.Error(), "needs 3 MiB, and 1 MiB are available") {
		t.Errorf("the condition is %v", err)
	}
	w.archived(small)
	w.awaitTrue("several checks of the space, beyond the deadline", func() bool {
		return w.archives.asked.Load() >= 5 && time.Since(began) > w.policy.NoProgress+time.Second
	})
	if ws := w.row(id); ws.Operation != workspace.OpArchiving || ws.ErrorCount != 0 || jobs.Load() != 1 {
		t.Errorf("%s, %d errors, %d attempts", ws.Operation, ws.ErrorCount, jobs.Load())
	}
	w.archives.free.Store(needs)
	w.isArchived(w.awaitPhase(id, workspace.PhaseArchived))
	w.awaitTrue("the condition ends", func() bool { return w.health.Err("archive-disk") == nil })
}
