package lifecycle_test

import (
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

func movable() workspace.Workspace {
	return workspace.Workspace{
		ID: "019a0000-0000-7000-8000-000000000001", Phase: workspace.PhaseArchived, Operation: workspace.OpNone,
		DesiredState: workspace.DesiredArchived, ArchiveKey: "key", ArchiveDigest: "digest", ArchiveSize: 1, Env: map[string]string{"A": "1"},
	}
}

func TestMovableOnlyArchived(t *testing.T) {
	t.Parallel()
	if !lifecycle.Movable(movable()) {
		t.Error("an archived workspace is not movable")
	}
	now := time.Now()
	for name, change := range map[string]func(*workspace.Workspace){
		"running":            func(w *workspace.Workspace) { w.Phase = workspace.PhaseRunning },
		"being restored":     func(w *workspace.Workspace) { w.Operation = workspace.OpRestoring },
		"to be started":      func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredRunning },
		"a queued start":     func(w *workspace.Workspace) { w.NextDesired = workspace.DesiredRunning },
		"deleted":            func(w *workspace.Workspace) { w.DeletedAt = &now },
		"a requested cancel": func(w *workspace.Workspace) { w.CancelRequestedAt = &now },
		"a backup":           func(w *workspace.Workspace) { w.ArchiveKey = "backups/b.manifest.zst" },
		"no archive":         func(w *workspace.Workspace) { w.ArchiveKey = "" },
	} {
		w := movable()
		if change(&w); lifecycle.Movable(w) {
			t.Errorf("%s: movable", name)
		}
	}
}

// A home that is only in a backup is unpacked before it is archived. Neither counts as its owner's activity.
func TestArchiveToMoveUnpacksBackup(t *testing.T) {
	t.Parallel()
	before := time.Now().Add(-time.Hour)
	w := movable()
	w.ArchiveKey, w.LastAccessAt = "backups/b.manifest.zst", &before
	for _, want := range []workspace.DesiredState{workspace.DesiredStandby, workspace.DesiredArchived} {
		out, err := lifecycle.ArchiveToMove(w, time.Now())
		if err != nil || !out.Changed || out.Workspace.DesiredState != want || !out.Workspace.LastAccessAt.Equal(before) {
			t.Errorf("want %s: %+v, %v", want, out, err)
		}
		w.DesiredState, w.Phase, w.Home.State = want, workspace.PhaseStandby, workspace.HomeLive
	}
}

func TestMoveVersionNamesWhatMoves(t *testing.T) {
	t.Parallel()
	first := lifecycle.MoveVersion(movable())
	same := movable()
	now := time.Now()
	same.LastAccessAt, same.UpdatedAt, same.Env = &now, now, map[string]string{"A": "1"}
	if lifecycle.MoveVersion(same) != first {
		t.Error("a use of the workspace changes the version")
	}
	seconds := 60
	changes := map[string]func(*workspace.Workspace){
		"owner":     func(w *workspace.Workspace) { w.OwnerID = "other" },
		"image":     func(w *workspace.Workspace) { w.ImageRef = "other" },
		"variables": func(w *workspace.Workspace) { w.Env = map[string]string{"A": "2"} },
		"stop":      func(w *workspace.Workspace) { w.StandbyTTL = &seconds },
		"archiving": func(w *workspace.Workspace) { w.ArchiveTTL = &seconds },
		"awake":     func(w *workspace.Workspace) { w.AwakeWhileWorking = !w.AwakeWhileWorking },
		"time zone": func(w *workspace.Workspace) { w.TimeZone = "Asia/Seoul" },
		"size":      func(w *workspace.Workspace) { w.Size = "other" },
		"archive":   func(w *workspace.Workspace) { w.ArchiveKey = "other" },
	}
	for _, d := range workspace.Texts {
		changes[d.Name] = func(w *workspace.Workspace) { *d.Current(w) = "other" }
	}
	for name, change := range changes {
		w := movable()
		if change(&w); lifecycle.MoveVersion(w) == first {
			t.Errorf("%s: the version stays", name)
		}
	}
}
