package dashboard

import (
	"net/http"
	"net/url"
	"testing"

	"codehub/internal/workspace"
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
