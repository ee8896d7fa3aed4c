package reconcile_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/archive"
	"codehub/internal/control/reconcile"
	"codehub/internal/runtime"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

// withShortNoProgress shortens the time an operation may go without progress.
func withShortNoProgress(w *world) { w.policy.NoProgress = lenient(500 * time.Millisecond) }

// lenient returns a deadline for real work, four times as long as that takes: on a busy
// machine a process may get no processor time for seconds.
func lenient(d time.Duration) time.Duration { return 4 * d }

func bucketOf(s reconcile.Status) string { return s.Bucket }

// While the bucket is unavailable, archives wait, workspaces can be opened, and no
// error is reported.
func TestBucketOutageDoesNotBlockWorkspaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withShortNoProgress)
	c, _ := w.leads()
	packed, kept := w.filled("packed", "packed work"), w.filled("kept", "kept work")
	w.archived(packed)
	w.want(kept, workspace.DesiredStandby, false)
	w.awaitPhase(kept, workspace.PhaseStandby)
	w.archives.setDown(true)
	w.want(kept, workspace.DesiredArchived, false)
	w.awaitStatus(c, "Meta: connection refused", bucketOf)
	w.want(packed, workspace.DesiredRunning, false)
	empty := w.create("empty", workspace.DesiredArchived)
	time.Sleep(2 * w.policy.NoProgress) // much longer than NoProgress
	w.awaitCalls("Containers", w.fake.Calls("Containers")+10)
	for id, phase := range map[workspace.ID]workspace.Phase{packed: workspace.PhaseArchived, kept: workspace.PhaseStandby, empty: workspace.PhasePending} {
		if ws := w.row(id); ws.Phase != phase || ws.ErrorCount != 0 {
			t.Errorf("%s is %s, %s, %d errors: %s", ws.Name, ws.Phase, ws.Operation, ws.ErrorCount, ws.ErrorMessage)
		}
	}
	w.want(kept, workspace.DesiredRunning, true)
	w.want(empty, workspace.DesiredRunning, true)
	w.awaitPhase(kept, workspace.PhaseRunning)
	w.awaitPhase(empty, workspace.PhaseRunning)
	w.expect(kept, "kept work")
	w.want(kept, workspace.DesiredArchived, true)
	w.await(kept, "waiting", func(ws workspace.Workspace) bool { return ws.Phase == workspace.PhaseStandby })

	w.archives.setDown(false)
	w.awaitStatus(c, "", bucketOf)
	w.awaitPhase(packed, workspace.PhaseRunning)
	w.expect(packed, "packed work")
	w.isArchived(w.awaitPhase(kept, workspace.PhaseArchived))
	w.opened(kept, "kept work")
}

// The bucket fails at any call, and recovers.
func TestBucketOutageDuringOperation(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"ArchiveJob", "ReadBack", "State", "PutEmpty", "Meta", "RestoreJob"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			away := newFirst()
			w.archives.setBefore(func(_ context.Context, at string, id workspace.ID) error {
				if at == op && (op != "Meta" || strings.Trim(string(id), "0-") != "") && (op != "State" || w.row(id).Operation == workspace.OpArchiving) {
					go away.do(func() { w.archives.setDown(true) })
					return fmt.Errorf("%s: cut off: %w", at, store.ErrUnavailable)
				}
				return nil
			})
			failed := w.watchErrors()
			c, _ := w.leads()
			id := workspace.ID("")
			if op == "PutEmpty" {
				id = w.create("nothing", workspace.DesiredArchived)
			} else {
				id = w.filled("one", "work")
				w.want(id, workspace.DesiredArchived, false)
			}
			if op == "Meta" || op == "RestoreJob" {
				w.awaitPhase(id, workspace.PhaseArchived)
				w.want(id, workspace.DesiredRunning, false)
			}
			<-away.reached
			w.awaitStatus(c, op[:4], func(s reconcile.Status) string { return op[:4] + s.Bucket[:min(len(s.Bucket), 1)] })
			w.awaitCalls("Containers", w.fake.Calls("Containers")+10)
			if ws := w.row(id); ws.Operation == workspace.OpNone || ws.Phase == workspace.PhaseError {
				t.Errorf("%s, %s: %s", ws.Phase, ws.Operation, ws.ErrorMessage)
			}
			w.archives.setDown(false)
			if op == "Meta" || op == "RestoreJob" {
				w.awaitPhase(id, workspace.PhaseRunning)
				w.expect(id, "work")
			} else {
				w.isArchived(w.awaitPhase(id, workspace.PhaseArchived))
			}
			if messages := failed(); len(messages) != 0 {
				t.Errorf("failures: %q", messages)
			}
		})
	}
}

// A storage job that the bucket refuses is restarted with backoff and does not count as a
// failure, and its owner can open the workspace in the meantime.
func TestJobRetriesRefusedUpload(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var jobs atomic.Int32
	var full atomic.Bool
	full.Store(true)
	w.fake.SetJob(func(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
		jobs.Add(1)
		if full.Load() {
			fmt.Fprintf(out, `{"result": {"claim": %q, "kind": %q, "error": {"kind": "unavailable", "message": "no space left in the bucket"}}}`+"\n", spec.Claim, spec.Kind)
			return 1
		}
		return realJob(ctx, spec, home, out)
	})
	failed := w.watchErrors()
	w.lead()
	id := w.filled("one", "work")
	w.want(id, workspace.DesiredArchived, false)
	w.awaitCalls("StartJob", 2)
	claim := w.row(id).OpID
	w.awaitCalls("StartJob", 3)
	if ws := w.row(id); ws.OpID != claim || ws.Operation != workspace.OpArchiving {
		t.Errorf("%s of another claim", ws.Operation)
	}
	w.await(id, "waiting for the bucket", waitsForBucket)
	w.want(id, workspace.DesiredRunning, true)
	w.awaitPhase(id, workspace.PhaseRunning)
	w.expect(id, "work")
	full.Store(false)
	w.archived(id)
	if messages := failed(); len(messages) != 0 {
		t.Errorf("failures: %q", messages)
	}
	w.opened(id, "work")
}

func waitsForBucket(ws workspace.Workspace) bool {
	return ws.Progress != nil && ws.Progress.Equal(&workspace.Progress{Step: runtime.StepWaitingBucket, Steps: ws.Progress.Steps})
}

// Archives that the bucket has refused keep their slots. Otherwise all archives
// would start and fail together.
func TestRefusedArchivesKeepTheirSlots(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.maxJobs = 1 })
	var full atomic.Bool
	full.Store(true)
	w.fake.SetJob(func(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
		if full.Load() {
			fmt.Fprintf(out, `{"result": {"claim": %q, "kind": %q, "error": {"kind": "unavailable", "message": "no space left in the bucket"}}}`+"\n", spec.Claim, spec.Kind)
			return 1
		}
		return realJob(ctx, spec, home, out)
	})
	w.lead()
	ids := []workspace.ID{w.filled("one", "work"), w.filled("other", "other work")}
	for _, id := range ids {
		w.want(id, workspace.DesiredArchived, false)
	}
	w.awaitCalls("StartJob", 3)
	w.awaitCalls("Containers", w.fake.Calls("Containers")+20)
	archiving := 0
	for _, id := range ids {
		if w.row(id).Operation == workspace.OpArchiving {
			archiving++
		}
	}
	if archiving != 1 {
		t.Errorf("%d archives at once", archiving)
	}
	full.Store(false)
	for _, id := range ids {
		w.isArchived(w.awaitPhase(id, workspace.PhaseArchived))
	}
}

// A bucket that hangs delays only the operations that need it.
func TestHangingBucketDelaysOnlyArchives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, _ := w.leads()
	stuck := w.filled("stuck", "work")
	w.archived(stuck)
	var asked atomic.Int32
	w.archives.setBefore(func(ctx context.Context, _ string, _ workspace.ID) error {
		asked.Add(1)
		<-ctx.Done()
		return ctx.Err()
	})
	w.want(stuck, workspace.DesiredRunning, false)
	w.awaitTrue("the bucket is probed", func() bool { return asked.Load() > 0 })
	for i := range 3 {
		w.awaitPhase(w.create(fmt.Sprint("ws", i), workspace.DesiredRunning), workspace.PhaseRunning)
	}
	if messages := bucketOf(c.Status()); messages != "" && !strings.Contains(messages, "respond") {
		t.Errorf("the bucket: %s", messages)
	}
	// A cancelled operation does not wait for the bucket.
	w.cancel(stuck)
	w.awaitPhase(stuck, workspace.PhaseArchived)
}

// A read from a hanging disk ignores its deadline. The bucket counts as
// unavailable, and at most one goroutine waits for it.
func TestHangingBucketFolder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withShortNoProgress, func(w *world) { w.lookWithin = 200 * time.Millisecond })
	hangs := make(chan struct{})
	var asked atomic.Int32
	w.archives.setBefore(func(_ context.Context, op string, id workspace.ID) error {
		if op == "Meta" && strings.Trim(string(id), "0-") == "" {
			asked.Add(1)
			<-hangs
		}
		return nil
	})
	t.Cleanup(sync.OnceFunc(func() { close(hangs) }))
	c, stop := w.leads()
	w.awaitStatus(c, "the bucket has not responded for more than", bucketOf)
	w.awaitCalls("Containers", w.fake.Calls("Containers")+100)
	if n := asked.Load(); n != 1 {
		t.Errorf("called %d times", n)
	}
	stop()
}

// A slow bucket delays the end of an archive but causes no second attempt.
func TestSlowBucketCausesNoRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.archives.setBefore(func(ctx context.Context, op string, _ workspace.ID) error {
		if op == "State" {
			select {
			case <-time.After(1500 * time.Millisecond): // longer than the pause between runs
			case <-ctx.Done():
			}
		}
		return nil
	})
	w.lead()
	id := w.filled("one", "work")
	w.archived(id)
	if n := w.fake.Calls("RemoveVolume"); n != 1 {
		t.Errorf("the executor was run %d times", n)
	}
}

// A workspace without a home that is being archived can be opened without waiting
// for the bucket.
func TestStartDuringEmptyArchive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hang := newFirst()
	w.archives.setBefore(func(ctx context.Context, op string, _ workspace.ID) error {
		if op == "PutEmpty" {
			hang.do(func() { <-ctx.Done() })
		}
		return ctx.Err()
	})
	w.lead()
	id := w.create("one", workspace.DesiredArchived)
	<-hang.reached
	w.want(id, workspace.DesiredRunning, true)
	if ws := w.awaitPhase(id, workspace.PhaseRunning); ws.ArchiveKey != "" {
		t.Errorf("its archive is %s", ws.ArchiveKey)
	}
}

// A missing archive starts and removes nothing, and the workspace can be recovered.
func TestMissingArchive(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]func(w *world, id workspace.ID, earlier string, putBack func()){
		"an earlier generation": func(w *world, id workspace.ID, earlier string, _ func()) {
			if _, err := w.DB.RequestRecoverArchive(w.Context(), w.owner, id, earlier); err != nil {
				w.Fatal(err)
			}
			if ws := w.awaitPhase(id, workspace.PhaseRunning); ws.ArchiveKey != w.archives.Key(id, earlier) || ws.ArchiveDigest == "" || ws.RecoverFrom != nil {
				w.Errorf("continued with %s (%q), %+v", ws.ArchiveKey, ws.ArchiveDigest, ws.RecoverFrom)
			}
			w.expect(id, "older")
			w.archived(id)
			w.opened(id, "older")
		},
		"an earlier generation that is missing too": func(w *world, id workspace.ID, earlier string, putBack func()) {
			putEarlierBack := w.archives.take(w.T, w.archives.Key(id, earlier))
			if _, err := w.DB.RequestRecoverArchive(w.Context(), w.owner, id, earlier); err != nil {
				w.Fatal(err)
			}
			ws := w.await(id, "answered", func(ws workspace.Workspace) bool { return ws.RecoverRequestedAt == nil })
			if ws.ErrorReason != workspace.ErrDataLost || ws.Phase != workspace.PhaseError || !strings.Contains(ws.ErrorMessage, "missing as well") ||
				ws.ArchiveKey == w.archives.Key(id, earlier) {
				w.Errorf("%s, %s, %s: %s", ws.ArchiveKey, ws.Phase, ws.ErrorReason, ws.ErrorMessage)
			}
			putEarlierBack()
			putBack()
			w.recovered(id, workspace.RecoverAfresh)
			w.awaitPhase(id, workspace.PhaseRunning)
			w.expect(id, "newer")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.lead()
			id := w.filled("one", "older")
			earlier := w.archived(id).ArchiveOpID
			w.opened(id, "older")
			w.write(id, "newer")
			ws := w.archived(id)
			putBack := w.archives.take(t, ws.ArchiveKey)
			w.want(id, workspace.DesiredRunning, false)
			lost := w.awaitPhase(id, workspace.PhaseError)
			if lost.ErrorReason != workspace.ErrDataLost || !strings.Contains(lost.ErrorMessage, ws.ArchiveKey) || lost.ArchiveKey != ws.ArchiveKey {
				t.Errorf("%s: %s", lost.ErrorReason, lost.ErrorMessage)
			}
			if _, ok := w.fake.Home(id); ok {
				t.Error("a home was created nevertheless")
			}
			// A repeated check reports the same loss and resolves nothing.
			w.recovered(id, workspace.RecoverAfresh)
			still := w.await(id, "answered", func(ws workspace.Workspace) bool { return ws.RecoverRequestedAt == nil })
			if still.Phase != workspace.PhaseError || still.ErrorReason != workspace.ErrDataLost {
				t.Errorf("checked again: %s, %q", still.Phase, still.ErrorReason)
			}
			way(w, id, earlier, putBack)
		})
	}
}

func (w *world) recovered(id workspace.ID, action string) {
	w.Helper()
	if _, err := w.DB.RequestRecover(w.Context(), w.owner, id, action); err != nil {
		w.Fatal(err)
	}
}

// A damaged archive is a final error, and nothing is restored from it.
func TestDamagedArchive(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"the object", "the .meta"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.lead()
			id := w.filled("one", "older")
			earlier := w.archived(id).ArchiveOpID
			w.opened(id, "older")
			w.write(id, "newer")
			key := w.archived(id).ArchiveKey
			if what == "the object" {
				w.archives.damage(t, key)
			} else {
				w.archives.damage(t, archive.MetaKey(key))
			}
			w.want(id, workspace.DesiredRunning, false)
			ws := w.awaitPhase(id, workspace.PhaseError)
			if ws.ErrorReason != workspace.ErrArchiveCorrupted || ws.ArchiveKey != key || ws.ErrorCount != 1 || !strings.Contains(ws.ErrorMessage, key) {
				t.Errorf("%s, %d: %s", ws.ErrorReason, ws.ErrorCount, ws.ErrorMessage)
			}
			if len(w.keys(id)) != 2 {
				t.Errorf("archives: %v", w.keys(id))
			}
			if _, err := w.DB.RequestRecoverArchive(t.Context(), w.owner, id, earlier); err != nil {
				t.Fatal(err)
			}
			w.awaitPhase(id, workspace.PhaseRunning)
			w.expect(id, "older")
		})
	}
}

// If the stored archive differs from the home, the home stays and is packed again.
// This is not reported as a damaged archive.
func TestReadBackDetectsDamage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	once := sync.Once{}
	w.archives.setBefore(func(_ context.Context, op string, id workspace.ID) error {
		if op == "ReadBack" {
			once.Do(func() {
				w.archives.damage(t, w.keys(id)[0])
			})
		}
		return nil
	})
	failed := w.watchErrors()
	w.lead()
	id := w.filled("one", "work")
	w.archived(id)
	if messages := failed(); len(messages) != 1 || !strings.Contains(messages[0], "corrupted") {
		t.Errorf("failures: %q", messages)
	}
	w.opened(id, "work")
}

// A folder that is not the bucket, such as an unmounted disk, counts as unavailable
// and not as empty.
func TestUnmountedBucketIsUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, _ := w.leads()
	id := w.filled("one", "work")
	w.archived(id)
	mountAgain := w.archives.take(t, w.archives.Installation)
	w.want(id, workspace.DesiredRunning, false)
	w.awaitTrue("the outage is reported", func() bool { return bucketOf(c.Status()) != "" })
	w.awaitCalls("Containers", w.fake.Calls("Containers")+10)
	if ws := w.row(id); ws.Phase == workspace.PhaseError || ws.ErrorCount != 0 {
		t.Errorf("%s: %s", ws.Phase, ws.ErrorMessage)
	}
	mountAgain()
	w.awaitPhase(id, workspace.PhaseRunning)
	w.expect(id, "work")
}

// A home on a disk of its own keeps none of it free for others. If the archive does not fit, a
// larger size helps, as the error says; not if the disk below is full.
func TestRestoreIntoSmallHome(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind, want string
		disk       int64 // the limit of the home; 0: it has no disk of its own
	}{
		"small home":       {"disk_full", "choose a larger size for the workspace: the home needs 3 bytes", 1 << 30},
		"full shared disk": {"shared_disk_full", "the disk of the homes is full: the home needs 3 bytes", 1 << 30},
		"full disk":        {"disk_full", "the disk of the homes is full: the home needs 3 bytes", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(w *world) {
				w.sizes = workspace.Sizes{Default: workspace.Size{Name: workspace.DefaultSize, Disk: c.disk}}
				w.archives.MinFreeShare = 0.05
			})
			w.lead()
			id := w.filled("one", "work")
			w.archived(id)
			w.fake.SetJob(func(_ context.Context, spec runtime.JobSpec, _ string, out io.Writer) int {
				if own := c.disk > 0; spec.OwnDisk != own || strings.Contains(string(spec.Input), "min_free") == own {
					t.Errorf("the job has OwnDisk %v and the instructions %s", spec.OwnDisk, spec.Input)
				}
				fmt.Fprintf(out, `{"result": {"claim": %q, "kind": %q, "error": {"kind": %q, "message": "the home needs 3 bytes"}}}`+"\n", spec.Claim, spec.Kind, c.kind)
				return 1
			})
			w.want(id, workspace.DesiredRunning, false)
			ws := w.awaitPhase(id, workspace.PhaseError)
			if ws.ErrorReason != workspace.ErrRetryExceeded || !strings.Contains(ws.ErrorMessage, c.want) || name != "small home" && strings.Contains(ws.ErrorMessage, "larger size") {
				t.Errorf("%s: %s", ws.ErrorReason, ws.ErrorMessage)
			}
		})
	}
}
