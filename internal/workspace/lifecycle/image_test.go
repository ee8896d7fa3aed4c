package lifecycle_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// TestSetImage: an image is changed in any state in which the workspace exists,
// also while its container could not be started with the old one. Only then it is
// started again.
func TestSetImage(t *testing.T) {
	t.Parallel()
	everyWorkspace(func(w workspace.Workspace) {
		w.ImageRef, w.RunningImage, w.PreviousImage = "a", "a", "0"
		out, err := lifecycle.SetImage(w, epoch, "b")
		if lifecycle.Present(w) != nil {
			if workspace.CodeOf(err) != workspace.CodeNotFound {
				t.Fatalf("a deleted workspace: %v", err)
			}
			return
		}
		want := w
		want.ImageRef, want.PreviousImage, want.ImageGeneration = "b", "a", 1
		details := map[string]any{"from": "a", "to": "b"}
		blocks := lifecycle.ImageBlocks(w)
		if blocks {
			at := epoch
			want.RecoverRequestedAt, want.RecoverAction = &at, workspace.RecoverAfresh
			details["error_reason"] = w.ErrorReason
		}
		starts := blocks && w.DesiredState == workspace.DesiredRunning
		if d := cmp.Diff(want, out.Workspace); err != nil || !out.Changed || out.NeedsSlot != starts || d != "" {
			t.Fatalf("%v %s", err, d)
		}
		if d := cmp.Diff(lifecycle.Entry{Action: "workspace.image", Details: details}, out.Audit); d != "" {
			t.Fatal(d)
		}
		if same, err := lifecycle.SetImage(w, epoch, "a"); err != nil || same.Changed || same.Audit.Action != "" {
			t.Fatalf("the same image: %+v (%v)", same, err)
		}
	})
}

// TestImageBlocks: the errors and the steps after which a change of the image starts the
// workspace again.
func TestImageBlocks(t *testing.T) {
	t.Parallel()
	whole := workspace.Conditions{}.With(workspace.VolumeReady, true, workspace.ReasonVolumeReady, "", epoch)
	failed := func(r workspace.ErrorReason, desired workspace.DesiredState, c workspace.Conditions) workspace.Workspace {
		return workspace.Workspace{Phase: workspace.PhaseError, Operation: workspace.OpNone, ErrorReason: r, DesiredState: desired, Conditions: c}
	}
	at := epoch
	waits := func(op workspace.Operation, step string) workspace.Workspace {
		return workspace.Workspace{Phase: workspace.PhasePending, Operation: op, DesiredState: workspace.DesiredRunning, Progress: &workspace.Progress{Step: step}}
	}
	cancelled := waits(workspace.OpStarting, "pulling")
	cancelled.CancelRequestedAt = &at
	for name, c := range map[string]struct {
		w    workspace.Workspace
		want bool
	}{
		"pull failed":                {failed(workspace.ErrImagePullFailed, workspace.DesiredRunning, nil), true},
		"pull failed, only prepared": {failed(workspace.ErrImagePullFailed, workspace.DesiredStandby, nil), true},
		"pull too slow":              {failed(workspace.ErrImagePullTooSlow, workspace.DesiredRunning, nil), true},
		"not allowed":                {failed(workspace.ErrImageNotAllowed, workspace.DesiredRunning, whole), true},
		"the IDE never listened":     {failed(workspace.ErrTimeout, workspace.DesiredRunning, whole), true},
		"a program is missing":       {failed(workspace.ErrRetryExceeded, workspace.DesiredRunning, whole), true},
		"a stop failed":              {failed(workspace.ErrRetryExceeded, workspace.DesiredStandby, whole), false},
		"a restore failed":           {failed(workspace.ErrTimeout, workspace.DesiredRunning, nil), false},
		"data lost":                  {failed(workspace.ErrDataLost, workspace.DesiredRunning, nil), false},
		"a first start pulls":        {waits(workspace.OpProvisioning, "pulling"), true},
		"a start waits for a build":  {waits(workspace.OpStarting, "build-failed"), true},
		"a start creates":            {waits(workspace.OpStarting, "creating"), false},
		"a start is cancelled":       {cancelled, false},
		"a restore":                  {waits(workspace.OpRestoring, "pulling"), false},
		"at rest":                    {workspace.Workspace{Phase: workspace.PhaseStandby, Operation: workspace.OpNone}, false},
	} {
		if got := lifecycle.ImageBlocks(c.w); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	// The operation ends, and is claimed again for the same desired state.
	out, err := lifecycle.SetImage(waits(workspace.OpProvisioning, "pulling"), epoch, "b")
	if err != nil || out.NeedsSlot || out.Workspace.CancelRequestedAt == nil || out.Workspace.DesiredState != workspace.DesiredRunning {
		t.Errorf("%+v (%v)", out, err)
	}
	in := look(workspace.PhasePending).Input
	in.Row = out.Workspace
	if r := lifecycle.Judge(in); r.Action.Kind != lifecycle.Cancel || !r.ClearCancel || r.Row.DesiredState != workspace.DesiredRunning {
		t.Errorf("%+v", r)
	}
}

// TestImageChangeRestartsNothing: what is decided does not depend on whether the
// container was made from the configured image.
func TestImageChangeRestartsNothing(t *testing.T) {
	t.Parallel()
	for _, phase := range []workspace.Phase{workspace.PhaseStandby, workspace.PhaseRunning} {
		in := look(phase).Input
		in.Row.ImageRef = "a"
		if in.Obs.Container != nil {
			in.Obs.Container.Image = "a"
		}
		before := lifecycle.Judge(in)
		in.Row.ImageRef = "b"
		after := lifecycle.Judge(in)
		if d := cmp.Diff(before.Action, after.Action); d != "" {
			t.Errorf("%s: %s", phase, d)
		}
		runs := phase == workspace.PhaseRunning
		if after.Row.ImageRef != "b" || runs != (after.Row.RunningImage == "a") || runs != lifecycle.ImageWaits(after.Row) {
			t.Errorf("%s: the image is %q, that of the container %q", phase, after.Row.ImageRef, after.Row.RunningImage)
		}
	}
}
