package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"codehub/internal/gateway/origin"
	"codehub/internal/testing/harness/web"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

func TestSizesOnPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", running)
	path := "/workspaces/" + string(id)
	lacks(t, "the dialog with one size", b.get("/workspaces/new", "HX-Request", "true").body, `name="size"`)
	contains(t, "its page", b.get(path).body, "Default: 2 cores, 4\u00a0GiB memory")
	lacks(t, "its page with one size", b.get(path).body, "Change size")

	w.dash.Sizes.Offered = []workspace.Size{{Name: "small", NanoCPUs: 1e9, Memory: 1 << 30}, {Name: "large", NanoCPUs: 8e9}}
	w.want(id, "desired_state", "RUNNING")
	w.want(id, "running_size", "default")
	contains(t, "the dialog", b.get("/workspaces/new", "HX-Request", "true").body, `name="size"`, "Default: 2 cores, 4\u00a0GiB memory", "small: 1 core, 1\u00a0GiB memory", "large: 8 cores, unlimited memory")
	contains(t, "its page", b.get(path).body, "Change size")
	lacks(t, "its page", b.get(path).body, "another size")
	if a := b.htmx(path+"/size", url.Values{"from": {"detail"}, "size": {"huge"}}); a.status != http.StatusUnprocessableEntity {
		t.Errorf("an unknown size: %d", a.status)
	} else {
		contains(t, "an unknown size", a.body, "Choose one of these sizes.")
	}

	w.want(id, "size", "gone")
	contains(t, "a size that is gone", b.get(path).body, "The size gone is no longer offered.", "Default: 2 cores")
	contains(t, "in Korean", b.get(path, "Accept-Language", "ko").body, "gone 크기는 더 이상 제공되지 않습니다.", "기본: 코어 2개, 메모리 4\u00a0GiB")
	contains(t, "reset", b.htmx(path+"/size", url.Values{"from": {"detail"}, "size": {""}}).body, "The size of “project” was changed.")
	lacks(t, "reset", b.get(path).body, "no longer offered", "another size")
}

// An administrator changes the size of a workspace of another user, from its next start on, and
// the owner gets a notice.
func TestSizeByAdministrator(t *testing.T) {
	t.Parallel()
	w := makeSizedWorld(t, workspace.Sizes{
		Default: workspace.Size{Name: workspace.DefaultSize, NanoCPUs: 2e9, Memory: 4 << 30},
		Offered: []workspace.Size{{Name: "large", NanoCPUs: 8e9, Memory: 8 << 30}, {Name: "tiny", Disk: 1 << 30}},
	}, origin.PathMode, func(*web.Server) {})
	w.AddAccount(auth.AdminUsername, adminPassword, true)
	ann, boss := w.person("ann"), w.loggedIn()
	id := w.AddWorkspace(w.caller("ann"), "shop").ID
	w.observe(id, running)
	w.want(id, "running_size", "default")
	at := "/admin/workspaces/" + string(id)
	contains(t, "its page", boss.get(at).body, at+"/size", "Default: 2 cores")
	contains(t, "the form", boss.get(at+"/size", "HX-Request", "true").body, "Size of shop", "ann, the owner, gets a notice", "large: 8 cores", `name="message"`)
	if a := boss.htmx(at+"/size", url.Values{"size": {"huge"}}); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "Choose one of these sizes.") {
		t.Errorf("an unknown size: %d %s", a.status, a.body)
	}
	if a := ann.htmx(at+"/size", url.Values{"size": {"large"}}); a.status != http.StatusForbidden {
		t.Errorf("by the owner, on the administrators' page: %d", a.status)
	}
	contains(t, "a change", boss.htmx(at+"/size", url.Values{"size": {"large"}, "message": {"You ran out of memory."}}).body, "The size of “shop” was changed.")
	contains(t, "its page", boss.get(at).body, "large: 8 cores", "running with another size")
	contains(t, "the owner's page", ann.get("/notices").body, "admin changed the size of your workspace “shop”.", "You ran out of memory.")
	contains(t, "the audit log", boss.get("/admin/audit?target="+string(id)).body, "workspace.size", "You ran out of memory.")
	w.Exec(`UPDATE workspaces SET home_bytes = 2147483648 WHERE id = $1`, string(id))
	contains(t, "too small", boss.htmx(at+"/size", url.Values{"size": {"tiny"}}).body, "The home uses 2 GiB, and this size has 1 GiB of disk space.")
	w.dash.Sizes.Offered = nil
	w.want(id, "size", nil)
	lacks(t, "with one size", boss.get(at).body, at+"/size")
}
