package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/control/reconcile"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/storage/store"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/workspace"
)

func TestOperationFailsAfterThreeAttempts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var tries atomic.Int32
	w.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
		if op == "StartContainer" {
			tries.Add(1)
			return errors.New("no space left on device")
		}
		return nil
	})
	w.lead()
	id := w.create("one", workspace.DesiredRunning)
	ws := w.awaitPhase(id, workspace.PhaseError)
	if ws.ErrorReason != workspace.ErrRetryExceeded || ws.ErrorCount != 3 || tries.Load() != 3 ||
		!strings.Contains(ws.ErrorMessage, "no space left on device") {
		t.Errorf("after %d tries: %q %d %q", tries.Load(), ws.ErrorReason, ws.ErrorCount, ws.ErrorMessage)
	}
	w.fake.SetBefore(nil)
	w.recovered(id, workspace.RecoverAfresh)
	ws = w.awaitPhase(id, workspace.PhaseRunning)
	if ws.ErrorCount != 0 || ws.ErrorReason != "" {
		t.Errorf("the error was not cleared: %q %d", ws.ErrorReason, ws.ErrorCount)
	}
}

// While Docker's disk is full, operations wait without a failure, the status says
// so, and other workspaces can start.
func TestOperationsWaitForDockerSpace(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"CreateVolume", "StartContainer", "StartJob"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, withShortNoProgress, func(w *world) {
				w.policy.Starting = lenient(time.Second)
			})
			failed := w.watchErrors()
			c, _ := w.leads()
			var id, other workspace.ID
			var refused atomic.Int32
			full := func() {
				w.fake.SetBefore(func(_ context.Context, at string, ws workspace.ID) error {
					if at == op && ws != other {
						refused.Add(1)
						return fmt.Errorf("x: %w", runtime.ErrNoSpace)
					}
					return nil
				})
			}
			if op == "StartJob" {
				id, other = w.filled("one", "work"), w.filled("other", "work")
				full()
				w.want(id, workspace.DesiredArchived, false)
			} else {
				other = w.create("other", workspace.DesiredStandby)
				w.awaitPhase(other, workspace.PhaseStandby)
				full()
				id = w.create("one", workspace.DesiredRunning)
			}
			w.awaitCalls(op, w.fake.Calls(op)+3)
			w.awaitStatus(c, "no space left on Docker's disk", diskOf)
			w.want(other, workspace.DesiredRunning, false)
			w.awaitPhase(other, workspace.PhaseRunning)
			if ws := w.row(id); ws.ErrorCount != 0 || ws.Operation == workspace.OpNone || refused.Load() < 3 {
				t.Errorf("%s, %s, %d errors: %s", ws.Phase, ws.Operation, ws.ErrorCount, ws.ErrorMessage)
			}
			w.fake.SetBefore(nil)
			if op == "StartJob" {
				w.isArchived(w.awaitPhase(id, workspace.PhaseArchived))
			} else {
				w.awaitPhase(id, workspace.PhaseRunning)
			}
			w.awaitStatus(c, "", diskOf)
			if messages := failed(); len(messages) != 0 {
				t.Errorf("failures: %q", messages)
			}
		})
	}
}

func diskOf(s reconcile.Status) string { return s.Disk }

func TestExitedContainerReportsOutput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.create("one", workspace.DesiredRunning)
	w.fake.ExitOnStart(id, true)
	w.lead()
	ws := w.awaitPhase(id, workspace.PhaseError)
	if ws.ErrorReason != workspace.ErrRetryExceeded || !strings.Contains(ws.ErrorMessage, "exited before the IDE responded") {
		t.Errorf("%q %q", ws.ErrorReason, ws.ErrorMessage)
	}
	w.fake.ExitOnStart(id, false)
	w.recovered(id, workspace.RecoverAfresh)
	w.awaitPhase(id, workspace.PhaseRunning)
}

func TestRefusedPullReportsDockerMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.AddRefusedImage("example/none:1", "manifest unknown")
	w.lead()
	id := w.create("one", workspace.DesiredRunning, func(n *postgres.NewWorkspace) { n.ImageRef = "example/none:1" })
	ws := w.awaitPhase(id, workspace.PhaseError)
	if ws.ErrorReason != workspace.ErrImagePullFailed || !strings.Contains(ws.ErrorMessage, "manifest unknown") {
		t.Errorf("%q %q", ws.ErrorReason, ws.ErrorMessage)
	}
}

// After an error of the image, another image starts the workspace: at once, and at the running
// limit as soon as that allows it.
func TestAnotherImageStartsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Change(`UPDATE users SET max_running = 1`)
	w.fake.AddRefusedImage("example/none:1", "manifest unknown")
	w.lead()
	image := func(id workspace.ID, ref string) workspace.Workspace {
		t.Helper()
		ws, err := w.DB.PatchWorkspace(t.Context(), w.owner, id, postgres.Patch{Image: &ref})
		if err != nil {
			t.Fatal(err)
		}
		return ws
	}
	first := w.create("first", workspace.DesiredRunning, func(n *postgres.NewWorkspace) { n.ImageRef = "example/none:1" })
	w.awaitPhase(first, workspace.PhaseError)
	second := w.create("second", workspace.DesiredRunning, func(n *postgres.NewWorkspace) { n.ImageRef = "example/none:1" })
	w.awaitPhase(second, workspace.PhaseError)
	image(first, runtimetest.DefaultImage)
	w.awaitPhase(first, workspace.PhaseRunning)

	if ws := image(second, runtimetest.DefaultImage); ws.NextDesired != workspace.DesiredRunning {
		t.Errorf("at the limit: desired %s, then %q", ws.DesiredState, ws.NextDesired)
	}
	w.await(second, "recovered, and waiting", func(ws workspace.Workspace) bool {
		return ws.Phase != workspace.PhaseError && ws.NextDesired == workspace.DesiredRunning
	})
	w.want(first, workspace.DesiredStandby, false)
	w.awaitPhase(second, workspace.PhaseRunning)
}

func TestStartTimesOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.create("one", workspace.DesiredStandby)
	stop := w.lead()
	w.awaitPhase(id, workspace.PhaseStandby)
	stop()
	w.policy.Starting = 200 * time.Millisecond // of the start alone
	w.fake.NeverHealthy(id, true)
	w.want(id, workspace.DesiredRunning, false)
	w.lead()
	ws := w.awaitPhase(id, workspace.PhaseError)
	if ws.ErrorReason != workspace.ErrTimeout {
		t.Errorf("%q %q", ws.ErrorReason, ws.ErrorMessage)
	}
	// The owner can force a stop, fix the cause and recover.
	if _, err := w.DB.RequestForceStop(t.Context(), w.owner, id); err != nil {
		t.Fatal(err)
	}
	w.await(id, "without a container", func(ws workspace.Workspace) bool {
		return ws.ForceStopRequestedAt == nil && !ws.Conditions.HasContainer()
	})
	w.fake.NeverHealthy(id, false)
	w.recovered(id, workspace.RecoverAfresh)
	w.awaitPhase(id, workspace.PhaseStandby)
}

// A deletion ends an operation that takes any time, and an archiving that has removed nothing yet.
func TestDeletionEndsOperation(t *testing.T) {
	t.Parallel()
	archiving := func(w *world, state workspace.HomeState) workspace.ID {
		id := w.filled("one", "work")
		w.want(id, workspace.DesiredArchived, false)
		w.await(id, "home "+string(state), func(ws workspace.Workspace) bool {
			return ws.Operation == workspace.OpArchiving && ws.Home.State == state && ws.Progress != nil && ws.Progress.Step == runtime.StepWaitingBucket
		})
		return id
	}
	for name, begin := range map[string]func(*world) workspace.ID{
		"ARCHIVING, not stored": func(w *world) workspace.ID {
			w.archives.setBefore(func(_ context.Context, op string, _ workspace.ID) error {
				if op == "ReadBack" {
					return store.ErrUnavailable
				}
				return nil
			})
			return archiving(w, workspace.HomeLive)
		},
		"ARCHIVING, removal not begun": func(w *world) workspace.ID {
			w.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
				if op == "RemoveVolume" {
					return store.ErrUnavailable
				}
				return nil
			})
			return archiving(w, workspace.HomeArchived)
		},
		string(workspace.OpStarting): func(w *world) workspace.ID {
			id := w.create("one", workspace.DesiredStandby)
			w.fake.NeverHealthy(id, true)
			w.awaitPhase(id, workspace.PhaseStandby)
			w.want(id, workspace.DesiredRunning, false)
			return id
		},
		string(workspace.OpProvisioning): func(w *world) workspace.ID {
			w.Cleanup(w.fake.AddHangingImage("example/slow:1", nil))
			return w.create("one", workspace.DesiredRunning, func(n *postgres.NewWorkspace) { n.ImageRef = "example/slow:1" })
		},
		string(workspace.OpRestoring): func(w *world) workspace.ID {
			id := w.filled("one", "work")
			w.archived(id)
			w.fake.SetNoRoom("no node has the memory")
			w.want(id, workspace.DesiredRunning, false)
			return id
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(w *world) { w.policy.DeleteGrace = time.Hour })
			w.lead()
			id := begin(w)
			op, _, _ := strings.Cut(name, ",")
			w.await(id, "busy", func(ws workspace.Workspace) bool { return string(ws.Operation) == op })
			w.delete(id)
			w.awaitTrue("deleted", func() bool {
				ws, err := w.DB.Workspace(t.Context(), w.owner, id)
				return workspace.CodeOf(err) == workspace.CodeNotFound || err == nil && ws.DeletedAt != nil
			})
			if op == string(workspace.OpArchiving) {
				w.fake.SetBefore(nil)
				w.archives.setBefore(nil)
				w.undelete(id)
				w.want(id, workspace.DesiredRunning, true)
				w.awaitPhase(id, workspace.PhaseRunning)
				w.expect(id, "work")
			}
		})
	}
}

func TestCancelStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.create("one", workspace.DesiredRunning)
	w.fake.NeverHealthy(id, true)
	w.lead()
	w.await(id, "starting", func(ws workspace.Workspace) bool { return ws.Operation == workspace.OpStarting })
	w.cancel(id)
	w.await(id, "stopped", func(ws workspace.Workspace) bool {
		return ws.Phase == workspace.PhaseStandby && ws.Operation == workspace.OpNone && !ws.Conditions.HasContainer()
	})
}

// Removing and seeding a volume and changing the owner of a home may exceed the deadlines
// of their operations as long as they make progress.
func TestSlowDiskCausesNoTimeout(t *testing.T) {
	t.Parallel()
	bound, startBound := lenient(500*time.Millisecond), lenient(time.Second) // the rest of a start needs some of it
	w := newWorld(t, func(w *world) {
		w.policy.Deleting, w.policy.Starting, w.uids = bound, startBound, someUIDs
	})
	takes := map[string]time.Duration{"RemoveVolume/half": 2 * bound, "CreateVolume/slow": startBound + bound, "OwnHome/half": startBound + bound}
	slow := make(chan struct{}, 3)
	w.fake.SetBefore(func(ctx context.Context, op string, _ workspace.ID) error {
		if takes[op] == 0 {
			return nil
		}
		slow <- struct{}{}
		// The controller has observed several times since the deadline.
		for began, calls := time.Now(), w.fake.Calls("Volumes"); ; time.Sleep(time.Millisecond) {
			if time.Since(began) > takes[op] && w.fake.Calls("Volumes") > calls+10 || ctx.Err() != nil {
				return ctx.Err()
			}
		}
	})
	w.lead()
	id := w.create("one", workspace.DesiredStandby)
	ws := w.await(id, "made", func(ws workspace.Workspace) bool {
		return ws.Phase == workspace.PhaseStandby || ws.Phase == workspace.PhaseError
	})
	if ws.ErrorReason != "" {
		t.Fatalf("the seeding failed: %s: %s", ws.ErrorReason, ws.ErrorMessage)
	}
	w.want(id, workspace.DesiredRunning, false)
	ws = w.await(id, "started", func(ws workspace.Workspace) bool {
		return ws.Phase == workspace.PhaseRunning || ws.Phase == workspace.PhaseError
	})
	if ws.ErrorReason != "" {
		t.Fatalf("the start failed: %s: %s", ws.ErrorReason, ws.ErrorMessage)
	}
	w.delete(id)
	for range 3 {
		<-slow
	}
	w.awaitGone(id)
}
