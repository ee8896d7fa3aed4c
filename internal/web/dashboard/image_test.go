package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

func TestChangeImage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", running)
	w.want(id, "desired_state", "RUNNING")
	w.want(id, "image_ref", "old:1")
	w.want(id, "running_image_ref", "old:1")
	path := "/workspaces/" + string(id)
	page := b.get(path).body
	contains(t, "its page", page, "<code>old:1</code>", path+"/image", "Change image")
	lacks(t, "its page", page, "next start", "Switch back")
	contains(t, "the dialog", b.get(path+"/image?from=detail", "HX-Request", "true").body, "Image of project", `value="old:1"`, "Takes effect at the next start.")

	for _, bad := range []string{"", "Old:1", "a b"} {
		if a := b.htmx(path+"/image", url.Values{"from": {"detail"}, "image": {bad}}); a.status != http.StatusUnprocessableEntity {
			t.Errorf("%q: %d", bad, a.status)
		}
	}
	contains(t, "changed", b.htmx(path+"/image", url.Values{"from": {"detail"}, "image": {"new:1"}}).body, "The image of “project” was changed. It takes effect at the next start.")
	page = b.get(path).body
	contains(t, "changed", page, "<code>new:1</code>", "Takes effect at the next start. The workspace is running old:1.", "Switch back to old:1")
	contains(t, "in Korean", b.get(path, "Accept-Language", "ko").body, "다음에 시작할 때부터 적용됩니다.")

	// One click restores the previous image.
	b.htmx(path+"/image", url.Values{"from": {"detail"}, "image": {"old:1"}})
	if ws := w.row(id); ws.ImageRef != "old:1" || ws.PreviousImage != "new:1" || ws.Phase != workspace.PhaseRunning {
		t.Errorf("%+v", ws)
	}
	lacks(t, "back", b.get(path).body, "Takes effect")
}

// A workspace that its image keeps from starting offers to change it, on its page, in its menu and
// on the page that waits for it, and the change starts it again.
func TestChangeImageAfterError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", failed(workspace.ErrImagePullFailed, "no such image"))
	w.want(id, "desired_state", "RUNNING")
	path := "/workspaces/" + string(id)
	button := ` href="` + path + `/image?from=`
	for _, where := range []string{"/", path, "/w/" + string(id) + "/"} {
		page := b.get(where, "Accept", "text/html").body
		contains(t, where, page, `id="`+string(id)+`-recover_image"`, button)
		if menu := strings.Contains(page, `id="`+string(id)+`-image"`); menu == strings.HasPrefix(where, "/w/") { // it has no menu
			t.Errorf("%s: in the menu: %v", where, menu)
		}
	}
	contains(t, "in Korean", b.get(path, "Accept-Language", "ko").body, "이미지 변경")
	contains(t, "the dialog", b.get(path+"/image?from=detail", "HX-Request", "true").body, "The workspace tries again with this image immediately.")
	contains(t, "changed", b.htmx(path+"/image", url.Values{"from": {"detail"}, "image": {"new:1"}}).body, "The image of “project” was changed. Trying again.")
	if ws := w.row(id); ws.ImageRef != "new:1" || ws.RecoverRequestedAt == nil {
		t.Errorf("%+v", ws)
	}

	// One whose first start waits for an image that could not be built.
	waits := w.add("waits", func(ws *workspace.Workspace) {
		ws.Phase, ws.Operation = workspace.PhasePending, workspace.OpProvisioning
		ws.Progress = &workspace.Progress{Step: "build-failed"}
	})
	path = "/workspaces/" + string(waits)
	contains(t, "its menu", b.get("/").body, ` href="`+path+`/image?from=list"`)
	b.htmx(path+"/image", url.Values{"from": {"list"}, "image": {"new:1"}})
	if ws := w.row(waits); ws.ImageRef != "new:1" || ws.CancelRequestedAt == nil {
		t.Errorf("%+v", ws)
	}
}

func TestUpdateImageOnPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", running)
	w.want(id, "desired_state", "RUNNING")
	w.want(id, "image_ref", "tool:1")
	w.want(id, "image_pin", `{"ref": "tool:1", "id": "sha256:1d", "digest": "sha256:d1", "generation": 0, "note": "replaced"}`)
	path := "/workspaces/" + string(id)
	page := b.get(path).body
	contains(t, "its page", page, "sha256:d1", "is no longer available")
	lacks(t, "its page", page, "Update available", path+"/update-image")
	lacks(t, "the list", b.get("/").body, "Image update available")

	w.want(id, "image_newer", "sha256:d2")
	contains(t, "with a newer image", b.get(path).body, "Update available", path+"/update-image")
	contains(t, "the list", b.get("/").body, "Image update available")
	contains(t, "in Korean", b.get(path, "Accept-Language", "ko").body, "업데이트 있음")
	contains(t, "updated", b.htmx(path+"/update-image", url.Values{"from": {"detail"}}).body, "The image of “project” will be updated at the next start.")
	page = b.get(path).body
	contains(t, "updated", page, "takes effect at the next start", "sha256:d1")
	lacks(t, "updated", page, "Update available")
	if ws := w.row(id); !ws.ImagePull || ws.ImageGeneration != 1 || ws.Phase != workspace.PhaseRunning {
		t.Errorf("%+v", ws)
	}
}

// The dialogs show which images are allowed, and the page says that a workspace cannot
// start again.
func TestAllowedImagesOnPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var err error
	if w.dash.Images, err = imageref.ParseAllowed("company/*,registry.example.com/**", w.dash.DefaultImage); err != nil {
		t.Fatal(err)
	}
	b := w.loggedIn()
	for _, address := range []string{"/workspaces/new", "/workspaces/" + string(w.add("project", running)) + "/image?from=detail"} {
		contains(t, address, b.get(address, "HX-Request", "true").body, "Allowed images:", "<code>company/*</code>", "<code>registry.example.com/**</code>")
	}
	a := b.htmx("/workspaces", url.Values{"name": {"two"}, "image": {"python"}})
	if a.status != http.StatusUnprocessableEntity {
		t.Errorf("status %d", a.status)
	}
	contains(t, "refused", a.body, "does not allow this image", "company/*")
	id := w.add("old", running)
	w.want(id, "image_ref", "python:3")
	contains(t, "its page", b.get("/workspaces/"+string(id)).body, "The image is not allowed", "Your files are safe")
}
