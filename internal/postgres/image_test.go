package postgres_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

func TestPatchImage(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	w := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING", "running_image_ref": "old", "image_ref": "old"})
	desired := workspace.DesiredStandby
	got := must(e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Image: ptr("new"), Desired: &desired}))(t)
	if got.ImageRef != "new" || got.PreviousImage != "old" || got.RunningImage != "old" || got.DesiredState != desired {
		t.Errorf("%+v", got)
	}
	before := e.row(w.ID)
	must(e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Image: ptr("new")}))(t)
	if after := e.row(w.ID); after != before {
		t.Errorf("the same image again: %s, was %s", after, before)
	}
	must(e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Image: ptr("old")}))(t)
	want := []string{"ann workspace.create", "ann workspace.image", "ann workspace.desired_state", "ann workspace.image"}
	if d := cmp.Diff(want, e.audited(string(w.ID))); d != "" {
		t.Error(d)
	}
	// A refused change of the state leaves the image unchanged as well.
	e.set(w.ID, state{"phase": "ERROR", "error_reason": "Timeout"})
	before = e.row(w.ID)
	running := workspace.DesiredRunning
	_, err := e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Image: ptr("other"), Desired: &running})
	wantCode(t, err, workspace.CodeRecoveryRequired)
	if after := e.row(w.ID); after != before || len(e.audited(string(w.ID))) != len(want) {
		t.Errorf("a refused change was saved: %s", after)
	}
}
