package postgres_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// Every request that leads to a start with an image that is not allowed is refused, and
// changes nothing; everything else works.
func TestImageNotAllowed(t *testing.T) {
	t.Parallel()
	allowed := must(imageref.ParseAllowed("registry.example.com/team/*", "codehub/default"))(t)
	e := open(t, postgres.Options{Images: allowed})
	ann := e.user("ann")
	refused := func(what string, err error) {
		t.Helper()
		wantCode(t, err, workspace.CodeImageNotAllowed)
		var coded *workspace.Error
		if !errors.As(err, &coded) || cmp.Diff([]string{"registry.example.com/team/*"}, coded.Details["allowed_images"]) != "" {
			t.Errorf("%s: %+v", what, coded)
		}
	}
	n := newWorkspace("one", workspace.DesiredStandby)
	for image, ok := range map[string]bool{"registry.example.com/team/a": true, "codehub/default:latest": true, "docker.io/registry.example.com/team/a": false, "python": false} {
		n.Name, n.ImageRef = image, image
		_, err := e.CreateWorkspace(t.Context(), ann, n)
		if ok {
			wantCode(t, err, "")
		} else {
			refused("create "+image, err)
		}
	}
	n.Name, n.ImageRef = "two", "codehub/default"
	w := must(e.CreateWorkspace(t.Context(), ann, n))(t)
	_, err := e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Image: ptr("python")})
	refused("change", err)

	e.set(w.ID, state{"phase": "STANDBY", "image_ref": "python", "previous_image_ref": "registry.example.com/team/a"})
	before := e.row(w.ID)
	running, archived := workspace.DesiredRunning, workspace.DesiredArchived
	_, err = e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Desired: &running})
	refused("start", err)
	_, err = e.Wake(t.Context(), ann, w.ID)
	refused("open", err)
	_, err = e.UpdateImage(t.Context(), ann, w.ID)
	refused("update", err)
	if after := e.row(w.ID); after != before {
		t.Errorf("a refused request changed the workspace: %s", after)
	}
	must(e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Image: ptr("python"), Edit: workspace.Edit{Memo: ptr("x")}}))(t) // the same image
	must(e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Desired: &archived}))(t)

	e.set(w.ID, state{"phase": "RUNNING", "desired_state": "RUNNING"})
	_, err = e.Restart(t.Context(), ann, w.ID)
	refused("restart", err)
	must(e.Stay(t.Context(), ann, w.ID))(t)
	must(e.Wake(t.Context(), ann, w.ID))(t) // it runs
	must(e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Image: ptr("registry.example.com/team/a"), Desired: &running}))(t)

	e.set(w.ID, state{"phase": "ERROR", "error_reason": "ImageNotAllowed", "image_ref": "python", "home_ctx": `{"state": "live", "claim": "c"}`})
	if got := must(e.RequestRecover(t.Context(), ann, w.ID, workspace.RecoverAfresh))(t); got.DesiredState != workspace.DesiredStandby {
		t.Errorf("recovered to %s", got.DesiredState)
	}
	e.set(w.ID, state{"desired_state": "RUNNING", "recover_requested_at": nil, "recover_action": nil, "image_ref": "registry.example.com/team/a"})
	if got := must(e.RequestRecover(t.Context(), ann, w.ID, workspace.RecoverAfresh))(t); got.DesiredState != workspace.DesiredRunning {
		t.Errorf("with an allowed image recovered to %s", got.DesiredState)
	}
}

// An image that was built from a devcontainer.json is its owner's, also on a server that allows every
// image: another user cannot choose it, and a workspace that was handed over starts with it.
func TestBuiltImageOfAnotherUser(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann, bob := e.user("ann"), e.user("bob")
	image := imageref.BuiltPrefix + ann.UserID + ":1"
	n := newWorkspace("one", workspace.DesiredStandby)
	n.ImageRef = image
	w := must(e.CreateWorkspace(t.Context(), ann, n))(t)
	_, err := e.CreateWorkspace(t.Context(), bob, n)
	wantCode(t, err, workspace.CodeImageNotAllowed)
	n.ImageRef = "python"
	other := must(e.CreateWorkspace(t.Context(), bob, n))(t)
	_, err = e.PatchWorkspace(t.Context(), bob, other.ID, postgres.Patch{Image: &image})
	wantCode(t, err, workspace.CodeImageNotAllowed)
	running := workspace.DesiredRunning
	for _, id := range []workspace.ID{w.ID, other.ID} {
		e.set(id, state{"phase": "STANDBY", "image_ref": image})
	}
	must(e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Desired: &running}))(t)
	must(e.PatchWorkspace(t.Context(), bob, other.ID, postgres.Patch{Desired: &running}))(t)
}

func TestUpdateImage(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann, bob := e.user("ann"), e.user("bob")
	w := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING", "image_pin": `{"ref": "codehub/workspace:latest", "id": "i", "digest": "d", "generation": 0}`})
	if _, err := e.UpdateImage(t.Context(), bob, w.ID); err == nil {
		t.Error("another user updated the image")
	}
	got := must(e.UpdateImage(t.Context(), ann, w.ID))(t)
	if got.ImageGeneration != 1 || !got.ImagePull || got.ImagePin == nil || got.ImagePin.Digest != "d" {
		t.Errorf("%+v", got)
	}
	must(e.UpdateImage(t.Context(), ann, w.ID))(t)
	if d := cmp.Diff([]string{"ann workspace.create", "ann workspace.image_update"}, e.audited(string(w.ID))); d != "" {
		t.Error(d)
	}
	c := postgres.NewController(postgres.NewSession(e.conn()))
	if d := cmp.Diff([]postgres.UsedImage{{Ref: "codehub/workspace:latest", Remote: true}}, must(c.UsedImages(t.Context()))(t)); d != "" {
		t.Error(d)
	}
}
