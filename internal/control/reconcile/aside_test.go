package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"codehub/internal/runtime"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/workspace"
)

// leftover is the content of a volume that has lost its labels.
func leftover() []runtimetest.File {
	return []runtimetest.File{{Path: ".", Mode: 0o755}, {Path: "notes", Mode: 0o600, Content: "from before the power cut"}}
}

// obstruct creates an unlabelled volume with the name of the home, and waits until
// the workspace reports it.
func (w *world) obstruct(id workspace.ID) workspace.Workspace {
	w.Helper()
	w.fake.PutForeignVolume(id, leftover())
	w.want(id, workspace.DesiredStandby, false)
	return w.awaitObstructed(id)
}

func (w *world) awaitObstructed(id workspace.ID) workspace.Workspace {
	w.Helper()
	ws := w.await(id, "stuck", func(ws workspace.Workspace) bool { return ws.Phase == workspace.PhaseError })
	if !ws.Obstructed() || ws.ErrorReason != workspace.ErrRetryExceeded || !strings.Contains(ws.ErrorMessage, "set the volume aside") {
		w.Errorf("stuck: %s %q, volume %q", ws.ErrorReason, ws.ErrorMessage, ws.Conditions.Get(workspace.VolumeReady).Reason)
	}
	return ws
}

// wantAside waits until the set-aside volume is listed as an orphan, and checks its
// content.
func (w *world) wantAside(id workspace.ID) {
	w.Helper()
	w.awaitTrue("listed for administrators", func() bool { return w.orphansOf(id)["set-aside"].Name != "" })
	o := w.orphansOf(id)["set-aside"]
	if !o.Kept || !strings.Contains(o.Detail, "an administrator removes it") {
		w.Errorf("listed as %+v", o)
	}
	for _, f := range w.fake.AsideFiles(o.Name) {
		if f.Path == "notes" && f.Content == "from before the power cut" {
			return
		}
	}
	w.Errorf("%s holds %+v", o.Name, w.fake.AsideFiles(o.Name))
}

func TestSetAsideUnblocksProvisioning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.create("one", workspace.DesiredStandby)
	w.fake.PutForeignVolume(id, leftover())
	w.lead()
	w.awaitObstructed(id)
	w.recovered(id, workspace.RecoverSetAside)
	w.awaitPhase(id, workspace.PhaseStandby)
	w.wantAside(id)
	if files, _ := w.fake.Home(id); len(files) != len(runtimetest.DefaultHome()) {
		t.Errorf("the home holds %+v", files)
	}
}

// A home whose volume was replaced is lost. Setting the other volume aside frees
// the name, so the home can be recovered.
func TestSetAsideAllowsRecoveryOfReplacedHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lead()
	id := w.create("one", workspace.DesiredStandby)
	w.awaitPhase(id, workspace.PhaseStandby)
	w.fake.TakeVolume(id)
	w.fake.PutForeignVolume(id, leftover())
	ws := w.awaitPhase(id, workspace.PhaseError)
	if ws.ErrorReason != workspace.ErrDataLost || !strings.Contains(ws.ErrorMessage, "set the volume aside") {
		t.Errorf("%s %q", ws.ErrorReason, ws.ErrorMessage)
	}
	w.recovered(id, workspace.RecoverSetAside)
	w.wantAside(id)
	ws = w.await(id, "lost", func(ws workspace.Workspace) bool { return ws.RecoverRequestedAt == nil && !ws.Obstructed() })
	if ws.Phase != workspace.PhaseError || ws.ErrorReason != workspace.ErrDataLost {
		t.Errorf("%s %s", ws.Phase, ws.ErrorReason)
	}
	w.recovered(id, workspace.RecoverEmpty)
	w.awaitPhase(id, workspace.PhaseStandby)
}

// Any leader resumes an interrupted attempt, and no data is lost.
func TestSetAsideResumesAfterInterruption(t *testing.T) {
	t.Parallel()
	for _, at := range few("SetAside/copied", "SetAside/done", "SetAside") {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			var failed atomic.Bool
			w.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
				if op == at && failed.CompareAndSwap(false, true) {
					return fmt.Errorf("the connection broke: %w", runtime.ErrUnreachable)
				}
				return nil
			})
			w.lead()
			id := w.filled("one", "work")
			w.archived(id)
			w.awaitNoJobs(id)
			w.obstruct(id)
			w.recovered(id, workspace.RecoverSetAside)
			w.awaitPhase(id, workspace.PhaseStandby)
			w.wantAside(id)
			if !failed.Load() {
				t.Error("no call failed")
			}
		})
	}
}

// A refusal is reported with its cause, and the request can be repeated.
func TestSetAsideReportsRefusal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var inUse atomic.Bool
	inUse.Store(true)
	w.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
		if op == "SetAside" && inUse.Load() {
			return fmt.Errorf("volume is in use by container dump: %w", runtime.ErrConflict)
		}
		return nil
	})
	w.lead()
	id := w.filled("one", "work")
	w.archived(id)
	w.awaitNoJobs(id)
	w.obstruct(id)
	w.recovered(id, workspace.RecoverSetAside)
	ws := w.await(id, "refused", func(ws workspace.Workspace) bool { return ws.RecoverRequestedAt == nil })
	if ws.Phase != workspace.PhaseError || !strings.Contains(ws.ErrorMessage, "in use by container dump") {
		t.Errorf("%s %q", ws.Phase, ws.ErrorMessage)
	}
	inUse.Store(false)
	w.recovered(id, workspace.RecoverSetAside)
	w.awaitPhase(id, workspace.PhaseStandby)
	w.wantAside(id)
}

func TestSetAsideWithoutBlockingVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lead()
	id := w.filled("one", "work")
	w.archived(id)
	w.awaitNoJobs(id)
	w.obstruct(id)
	w.fake.TakeVolume(id)
	w.await(id, "seen", func(ws workspace.Workspace) bool { return !ws.Obstructed() })
	_, err := w.DB.RequestRecover(t.Context(), w.owner, id, workspace.RecoverSetAside)
	var e *workspace.Error
	if !errors.As(err, &e) || e.Code != workspace.CodeNotSupported {
		t.Errorf("without an obstruction: %v", err)
	}
}
