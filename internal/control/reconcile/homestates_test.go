package reconcile_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/workspace"
)

// refuseRemoval makes every removal of a home volume fail while it is set.
func (w *world) refuseRemoval() *atomic.Bool {
	var refuse atomic.Bool
	refuse.Store(true)
	w.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
		if op == "RemoveVolume" && refuse.Load() {
			return errors.New("Docker refuses")
		}
		return nil
	})
	return &refuse
}

// cancelledRestore returns an archived workspace whose restore was cancelled with
// the volume half filled.
func (w *world) cancelledRestore(content string) workspace.ID {
	w.Helper()
	g := w.gate("restore.volume-created")
	w.step = g.hold
	w.lead()
	id := w.filled("one", content)
	w.archived(id)
	w.want(id, workspace.DesiredRunning, false)
	w.reached(g)
	w.cancel(id)
	w.await(id, "cancelled", func(ws workspace.Workspace) bool { return ws.Operation != workspace.OpRestoring })
	return id
}

// awaitAbsent waits until the workspace is archived and has no volume.
func (w *world) awaitAbsent(id workspace.ID) workspace.Workspace {
	w.Helper()
	return w.await(id, "ARCHIVED without a volume", func(ws workspace.Workspace) bool {
		return ws.Phase == workspace.PhaseArchived && ws.Operation == workspace.OpNone && ws.Home.State == workspace.HomeAbsent
	})
}

func (w *world) delete(id workspace.ID) {
	w.Helper()
	if _, err := w.DB.DeleteWorkspace(w.Context(), w.owner, id, true); err != nil {
		w.Fatal(err)
	}
}

func (w *world) cancel(id workspace.ID) {
	w.Helper()
	if _, err := w.DB.RequestCancel(w.Context(), w.owner, id); err != nil {
		w.Fatal(err)
	}
}

func (w *world) undelete(id workspace.ID) {
	w.Helper()
	if _, err := w.DB.UndeleteWorkspace(w.Context(), w.owner, id); err != nil {
		w.Fatalf("undelete: %v", err)
	}
}

// The archive is lost between its storing and the removal of the volume: Recover
// continues with the volume, and starting empty is refused.
func TestRecoverUsesVolumeIfArchiveIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var taken atomic.Bool
	w.step = func(id workspace.ID, step string) {
		if step == "archive.job-removed" && taken.CompareAndSwap(false, true) {
			w.archives.take(t, w.row(id).ArchiveKey)
		}
	}
	w.lead()
	id := w.filled("one", "work")
	w.want(id, workspace.DesiredArchived, false)
	lost := w.awaitPhase(id, workspace.PhaseError)
	if lost.ErrorReason != workspace.ErrDataLost || lost.Home.State != workspace.HomeArchived {
		t.Errorf("%s, home %s: %s", lost.ErrorReason, lost.Home.State, lost.ErrorMessage)
	}
	w.expect(id, "work")
	if _, err := w.DB.RequestRecover(t.Context(), w.owner, id, workspace.RecoverEmpty); workspace.CodeOf(err) != workspace.CodeNotLost {
		t.Errorf("start empty: %v", err)
	}
	w.recovered(id, workspace.RecoverAfresh)
	ws := w.awaitPhase(id, workspace.PhaseArchived) // it is archived again
	w.isArchived(ws)
	if ws.ArchiveKey == lost.ArchiveKey {
		t.Error("the lost archive became the current one again")
	}
	w.opened(id, "work")
}

// A cancelled restore whose volume cannot be removed counts as archived and never
// shows a ready volume.
func TestCancelledRestoreIsNeverReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.cancelledRestore("work")
	refuse := w.refuseRemoval()
	removals := w.fake.Calls("RemoveVolume")
	for _, g := range w.gates {
		g.letGo()
	}
	ws := w.await(id, "given up on the removal", func(ws workspace.Workspace) bool {
		if ws.Phase == workspace.PhaseStandby || ws.Conditions.Is(workspace.VolumeReady) {
			w.Fatalf("a half-filled volume is shown: phase %s, %v", ws.Phase, ws.Conditions)
		}
		return ws.ErrorReason == workspace.ErrRetryExceeded
	})
	if n := w.fake.Calls("RemoveVolume"); n < removals+3 || ws.Home.Claim == "" {
		t.Errorf("%d removals were tried, home %+v", n-removals, ws.Home)
	}
	refuse.Store(false)
	w.recovered(id, workspace.RecoverAfresh)
	w.isArchived(w.awaitAbsent(id))
	w.opened(id, "work")
}

// Within the grace period only the container of a deleted workspace is removed, and
// the deletion can be undone in any state of the home.
func TestUndeleteWithinGraceKeepsHome(t *testing.T) {
	t.Parallel()
	hour := func(w *world) { w.policy.DeleteGrace = time.Hour }
	for name, begin := range map[string]func(w *world, refuse *atomic.Bool) workspace.ID{
		"live": func(w *world, refuse *atomic.Bool) workspace.ID {
			w.lead()
			return w.filled("one", "work")
		},
		"absent": func(w *world, refuse *atomic.Bool) workspace.ID {
			w.lead()
			refuse.Store(false)
			id := w.filled("one", "work")
			w.archived(id)
			return id
		},
		"archived": func(w *world, refuse *atomic.Bool) workspace.ID {
			w.lead()
			id := w.filled("one", "work")
			w.want(id, workspace.DesiredArchived, false)
			w.await(id, "given up on the removal", func(ws workspace.Workspace) bool { return ws.ErrorReason == workspace.ErrRetryExceeded })
			return id
		},
		"discarding": func(w *world, refuse *atomic.Bool) workspace.ID {
			refuse.Store(false)
			id := w.cancelledRestore("work")
			refuse.Store(true)
			for _, g := range w.gates {
				g.letGo()
			}
			w.await(id, "given up on the removal", func(ws workspace.Workspace) bool { return ws.ErrorReason == workspace.ErrRetryExceeded })
			return id
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, hour)
			// Count attempts, not successes.
			refuse := w.refuseRemoval()
			id := begin(w, refuse)
			home := w.row(id).Home
			w.delete(id)
			w.await(id, "deleted, without its container", func(ws workspace.Workspace) bool {
				return ws.Phase == workspace.PhaseDeleting && ws.Operation == workspace.OpNone && ws.ErrorReason == "" && ws.RecoverRequestedAt == nil &&
					!ws.Conditions.HasContainer()
			})
			removals := w.fake.Calls("RemoveVolume")
			w.awaitCalls("Containers", w.fake.Calls("Containers")+20)
			if n := w.fake.Calls("RemoveVolume"); n != removals {
				t.Errorf("%d removals were tried within the grace", n-removals)
			}
			refuse.Store(false)
			w.undelete(id)
			if name != "live" {
				w.isArchived(w.awaitAbsent(id))
			} else if ws := w.awaitPhase(id, workspace.PhaseStandby); !ws.Home.Equal(home) {
				t.Errorf("the home was %+v and is %+v", home, ws.Home)
			}
			w.opened(id, "work")
		})
	}
}

// A deletion that ends an operation halfway can be undone: the home, or its archive, is complete.
func TestUndeleteAfterEndedOperation(t *testing.T) {
	t.Parallel()
	for _, at := range few("archive.before-store", "restore.volume-created", "archive.job-started", "restore.before-mark") {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(w *world) { w.policy.DeleteGrace = time.Hour })
			g := w.gate(at)
			w.step = g.hold
			w.lead()
			id := w.filled("one", "work")
			if strings.HasPrefix(at, "restore") {
				w.archived(id)
				w.want(id, workspace.DesiredRunning, false)
			} else {
				w.want(id, workspace.DesiredArchived, false)
			}
			w.reached(g)
			w.delete(id)
			w.await(id, "deleted", func(ws workspace.Workspace) bool { return ws.DeletedAt != nil && ws.Operation == workspace.OpNone })
			g.letGo()
			w.awaitNoJobs(id)
			w.undelete(id)
			ws := w.await(id, "at rest", func(ws workspace.Workspace) bool {
				return (ws.Phase == workspace.PhaseStandby || ws.Phase == workspace.PhaseArchived) && ws.Operation == workspace.OpNone
			})
			if ws.ErrorCount != 0 {
				t.Errorf("%d errors", ws.ErrorCount)
			}
			w.opened(id, "work")
		})
	}
}
