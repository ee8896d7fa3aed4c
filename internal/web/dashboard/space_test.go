package dashboard

import (
	"net/http"
	"net/url"
	"testing"

	"codehub/internal/gateway/origin"
	"codehub/internal/testing/harness/web"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// A workspace's page shows the space of its home, warns before the limit, and offers a way out
// over it.
func TestSpaceOfHomeOnPages(t *testing.T) {
	t.Parallel()
	w := makeSizedWorld(t, workspace.Sizes{
		Default: workspace.Size{Name: workspace.DefaultSize, Disk: 10 << 30},
		Offered: []workspace.Size{{Name: "small", Disk: 5 << 30}, {Name: "large", Disk: 50 << 30}, {Name: "free"}},
	}, origin.PathMode, func(*web.Server) {})
	w.AddAccount(auth.AdminUsername, adminPassword, true)
	b := w.loggedIn()
	id := w.add("project", standby)
	path := "/workspaces/" + string(id)
	use := func(bytes int64) { w.Exec(`UPDATE workspaces SET home_bytes = $1`, bytes) }
	contains(t, "not measured yet", b.get(path).body, "At most 10 GiB")
	use(3 << 30)
	w.want(id, "size", "free")
	contains(t, "without a limit", b.get(path).body, `id="home-space">3 GiB`)
	w.want(id, "size", nil)
	page := b.get(path).body
	contains(t, "far from the limit", page, "3 GiB of 10 GiB", "10\u00a0GiB disk")
	lacks(t, "far from the limit", page, `id="space-near"`, `id="space-over"`, `id="free-space"`)
	use(19 << 29)
	contains(t, "near the limit", b.get(path).body, "9.5 GiB of 10 GiB", `id="space-near"`)
	contains(t, "near the limit, in Korean", b.get(path, "Accept-Language", "ko").body, "10 GiB 중 9.5 GiB 사용", "홈 공간이 거의 찼습니다.")

	w.want(id, "home_limit", int64(5<<30))
	page = b.get(path).body
	contains(t, "a volume with a limit", page, "9.5 GiB of 5 GiB", "no file in it can be saved", `id="space-waits"`)
	lacks(t, "a volume with a limit", page, `id="space-over"`)
	w.want(id, "home_limit", int64(0))

	use(12 << 30)
	contains(t, "over the limit", b.get(path).body, `id="space-over"`, `id="free-space"`)
	const refused = "The home uses 12 GiB, and at most 10 GiB are allowed."
	contains(t, "a start", b.htmx(path+"/start", url.Values{}).body, refused, "start it to free space")
	contains(t, "a start in Korean", b.post(path+"/start", url.Values{}, "HX-Request", "true", "Accept-Language", "ko").body, "홈이 최대 10 GiB 중 12 GiB 공간을 사용하고 있습니다.")
	if a := b.htmx(path+"/size", url.Values{"from": {"detail"}, "size": {"small"}}); a.status != http.StatusUnprocessableEntity {
		t.Errorf("a size that is too small: %d", a.status)
	} else {
		contains(t, "a size that is too small", a.body, "this size has 5 GiB of disk space")
	}
	b.htmx(path+"/start", url.Values{"free_space": {"on"}})
	if ws := w.row(id); ws.DesiredState != workspace.DesiredRunning || ws.FreeingFrom != 12<<30 {
		t.Errorf("the start to free space: %+v", ws)
	}
	w.Exec(`UPDATE workspaces SET desired_state = 'STANDBY'`)
	page = b.get(path).body
	contains(t, "started once", page, `id="space-over"`)
	lacks(t, "started once", page, `id="free-space"`)
	contains(t, "started again", b.htmx(path+"/start", url.Values{"free_space": {"on"}}).body, "It has not become smaller")
	contains(t, "a larger size", b.htmx(path+"/size", url.Values{"from": {"detail"}, "size": {"large"}}).body, "The size of “project” was changed.")
	b.htmx(path+"/start", url.Values{})
	if ws := w.row(id); ws.DesiredState != workspace.DesiredRunning {
		t.Errorf("a start within the limit: %+v", ws)
	}
}
