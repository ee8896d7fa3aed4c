package lifecycle_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

var firstPin = workspace.ImagePin{Ref: "a", ID: "id-1", Digest: "d-1"}

// pinnedRow is a running workspace that was started with firstPin.
func pinnedRow() lifecycle.Input {
	in := look(workspace.PhaseRunning).Input
	in.Row.ImageRef = "a"
	in.Obs.Container.Image, in.Obs.Container.Pin = "a", firstPin
	in.Row = lifecycle.Judge(in).Row
	return in
}

func TestStartedImageIsPinned(t *testing.T) {
	t.Parallel()
	in := pinnedRow()
	if d := cmp.Diff(&firstPin, lifecycle.PinOf(in.Row)); d != "" {
		t.Fatal(d)
	}
	for name, change := range map[string]func(*lifecycle.Container){
		"another reference": func(c *lifecycle.Container) { c.Pin.Ref = "b" },
		"no ID":             func(c *lifecycle.Container) { c.Pin.ID = "" },
		"a later request":   func(c *lifecycle.Container) { c.Pin.Generation = 1 },
		"not started":       func(c *lifecycle.Container) { c.State = lifecycle.Created },
	} {
		in := pinnedRow()
		c := *in.Obs.Container
		c.Pin.ID = "id-2"
		change(&c)
		in.Obs.Container = &c
		if got := lifecycle.Judge(in).Row.ImagePin; got == nil || *got != firstPin {
			t.Errorf("%s: pinned %+v", name, got)
		}
	}
	in.Obs.Container = nil
	if got := lifecycle.Judge(in).Row.ImagePin; got == nil || *got != firstPin {
		t.Errorf("without a container: %+v", got)
	}
}

// A change of the image drops the pin, also if it is changed back before a start.
func TestChangeOfImageDropsThePin(t *testing.T) {
	t.Parallel()
	in := pinnedRow()
	row := in.Row
	for _, image := range []string{"b", "a"} {
		out, err := lifecycle.SetImage(row, epoch, image)
		if err != nil || lifecycle.PinOf(out.Workspace) != nil || out.Workspace.ImagePull {
			t.Fatalf("%s: %+v (%v)", image, out, err)
		}
		row = out.Workspace
	}
	in.Row = row // the container is still that of the earlier generation
	if got := lifecycle.PinOf(lifecycle.Judge(in).Row); got != nil {
		t.Errorf("pinned %+v again", got)
	}
}

func TestUpdateImage(t *testing.T) {
	t.Parallel()
	in := pinnedRow()
	in.Newest = lifecycle.Newest{Digest: "d-2"}
	in.Row = lifecycle.Judge(in).Row
	if in.Row.ImageNewer != "d-2" || !lifecycle.UpdateAvailable(in.Row) || lifecycle.UpdateWaits(in.Row) {
		t.Fatalf("%+v", in.Row)
	}
	out, err := lifecycle.UpdateImage(in.Row)
	if err != nil || !out.Changed || !out.Workspace.ImagePull || !lifecycle.UpdateWaits(out.Workspace) || lifecycle.UpdateAvailable(out.Workspace) {
		t.Fatalf("%+v (%v)", out, err)
	}
	if d := cmp.Diff(lifecycle.Entry{Action: "workspace.image_update", Details: map[string]any{"image": "a", "from_id": "id-1", "from_digest": "d-1"}}, out.Audit); d != "" {
		t.Error(d)
	}
	if again, err := lifecycle.UpdateImage(out.Workspace); err != nil || again.Changed {
		t.Errorf("a second request: %+v (%v)", again, err)
	}
	in.Row = out.Workspace
	if waits := lifecycle.Judge(in).Row; !lifecycle.UpdateWaits(waits) || waits.ImageNewer != "" {
		t.Errorf("before the start: %+v", waits)
	}
	in.Obs.Container.Pin = workspace.ImagePin{Ref: "a", ID: "id-2", Digest: "d-2", Generation: 1}
	if done := lifecycle.Judge(in).Row; lifecycle.UpdateWaits(done) || lifecycle.UpdateAvailable(done) || lifecycle.PinOf(done) == nil {
		t.Errorf("after the start: %+v", done)
	}
	everyWorkspace(func(w workspace.Workspace) {
		if _, err := lifecycle.UpdateImage(w); (lifecycle.Present(w) != nil) != (workspace.CodeOf(err) == workspace.CodeNotFound) {
			t.Fatalf("%+v: %v", w, err)
		}
	})
}

func TestNewerImage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		id, digest  string // of the pin
		now         lifecycle.Newest
		before, got string
	}{
		{"nothing known", "1", "d", lifecycle.Newest{}, "d-2", "d-2"},
		{"the same image", "1", "d", lifecycle.Newest{ID: "1", Digest: "d"}, "d-2", ""},
		{"the same image under another digest", "1", "d", lifecycle.Newest{ID: "1", Digest: "d-2"}, "", ""},
		{"the same digest, image not here", "1", "d", lifecycle.Newest{Digest: "d"}, "d-2", ""},
		{"newer in the registry", "1", "d", lifecycle.Newest{Digest: "d-2"}, "", "d-2"},
		{"newer here and in the registry", "1", "d", lifecycle.Newest{ID: "2", Digest: "d-2"}, "", "d-2"},
		{"built here again", "1", "", lifecycle.Newest{ID: "2"}, "", "2"},
		{"built here, unknown in the registry", "1", "", lifecycle.Newest{Digest: "d-2"}, "", ""},
	} {
		in := pinnedRow()
		in.Obs.Container.Pin.ID, in.Obs.Container.Pin.Digest = c.id, c.digest
		in.Row = lifecycle.Judge(in).Row
		in.Row.ImageNewer, in.Newest = c.before, c.now
		if got := lifecycle.Judge(in).Row.ImageNewer; got != c.got {
			t.Errorf("%s: %q, want %q", c.name, got, c.got)
		}
	}
}

// A recovery without a start leads to a state from which everything else is possible.
func TestRecoverWithoutStart(t *testing.T) {
	t.Parallel()
	for home, want := range map[workspace.HomeState]workspace.DesiredState{
		workspace.HomeLive: workspace.DesiredStandby, workspace.HomeAbsent: workspace.DesiredArchived, workspace.HomeFilling: workspace.DesiredArchived,
	} {
		w := workspace.Workspace{Phase: workspace.PhaseError, DesiredState: workspace.DesiredRunning, ErrorReason: workspace.ErrImageNotAllowed, Home: workspace.Home{State: home}}
		out, err := lifecycle.RequestRecover(w, epoch, workspace.RecoverAfresh)
		if err != nil {
			t.Fatal(err)
		}
		if out = lifecycle.WithoutStart(out); out.Workspace.DesiredState != want || out.NeedsSlot || out.Workspace.RecoverRequestedAt == nil {
			t.Errorf("%s: %+v", home, out.Workspace)
		}
	}
}
