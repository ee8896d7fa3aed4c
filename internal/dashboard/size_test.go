package dashboard

import (
	"net/http"
	"net/url"
	"testing"

	"codehub/internal/workspace"
)

func TestSizesOnPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", running)
	path := "/workspaces/" + string(id)
	lacks(t, "the dialog with one size", b.get("/workspaces/new", "HX-Request", "true").body, `name="size"`)
	contains(t, "its page", b.get(path).body, "Default: 2 cores, 4.3 GB of memory")
	lacks(t, "its page with one size", b.get(path).body, "Change size")

	w.dash.Sizes.Offered = []workspace.Size{{Name: "small", NanoCPUs: 1e9, Memory: 1e9}, {Name: "large", NanoCPUs: 8e9}}
	w.want(id, "desired_state", "RUNNING")
	w.want(id, "running_size", "default")
	contains(t, "the dialog", b.get("/workspaces/new", "HX-Request", "true").body, `name="size"`, "Default: 2 cores, 4.3 GB of memory", "small: 1 core, 1.0 GB of memory", "large: 8 cores, no limit of memory")
	contains(t, "its page", b.get(path).body, "Change size")
	lacks(t, "its page", b.get(path).body, "another size")
	if a := b.htmx(path+"/size", url.Values{"from": {"detail"}, "size": {"huge"}}); a.status != http.StatusUnprocessableEntity {
		t.Errorf("an unknown size: %d", a.status)
	} else {
		contains(t, "an unknown size", a.body, "Choose one of these sizes.")
	}

	w.want(id, "size", "gone")
	contains(t, "a size that is gone", b.get(path).body, "The size gone is no longer offered.", "Default: 2 cores")
	contains(t, "in Korean", b.get(path, "Accept-Language", "ko").body, "gone 크기는 더 이상 제공되지 않습니다.", "기본: 코어 2개, 메모리 4.3 GB")
	contains(t, "reset", b.htmx(path+"/size", url.Values{"from": {"detail"}, "size": {""}}).body, "The size of “project” was changed.")
	lacks(t, "reset", b.get(path).body, "no longer offered", "another size")
}
