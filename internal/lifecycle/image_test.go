package lifecycle_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/lifecycle"
	"codehub/internal/workspace"
)

// TestSetImage: an image is changed in any state in which the workspace exists,
// also while its container could not be started with the old one.
func TestSetImage(t *testing.T) {
	t.Parallel()
	everyWorkspace(func(w workspace.Workspace) {
		w.ImageRef, w.RunningImage, w.PreviousImage = "a", "a", "0"
		out, err := lifecycle.SetImage(w, "b")
		if lifecycle.Present(w) != nil {
			if workspace.CodeOf(err) != workspace.CodeNotFound {
				t.Fatalf("a deleted workspace: %v", err)
			}
			return
		}
		want := w
		want.ImageRef, want.PreviousImage, want.ImageGeneration = "b", "a", 1
		if d := cmp.Diff(want, out.Workspace); err != nil || !out.Changed || out.NeedsSlot || d != "" {
			t.Fatalf("%v %s", err, d)
		}
		if d := cmp.Diff(lifecycle.Entry{Action: "workspace.image", Details: map[string]any{"from": "a", "to": "b"}}, out.Audit); d != "" {
			t.Fatal(d)
		}
		if same, err := lifecycle.SetImage(w, "a"); err != nil || same.Changed || same.Audit.Action != "" {
			t.Fatalf("the same image: %+v (%v)", same, err)
		}
	})
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
