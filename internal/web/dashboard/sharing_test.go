package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"codehub/internal/postgres"

	"github.com/chromedp/chromedp"
)

// An owner shares a workspace on its page; guests see it, and what it lets them do.
func TestSharedPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ann, uma, vic := w.person("ann"), w.person("uma"), w.person("vic")
	id := w.AddWorkspace(w.caller("ann"), "<b>shop</b>").ID
	w.observe(id, standby)
	w.Exec(`UPDATE workspaces SET memo = 'the key is under the mat' WHERE id = $1`, string(id))
	at := "/workspaces/" + string(id)
	contains(t, "nobody yet", ann.get(at+"/shares").body, "Only you have access.", `name="user"`)
	for _, wrong := range []url.Values{{"user": {"nobody"}, "access": {"use"}}, {"user": {"ann"}, "access": {"use"}}, {"access": {"use"}}, {"user": {"uma"}, "access": {"all"}}} {
		if a := ann.post(at+"/share", wrong); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, `role="alert"`) {
			t.Errorf("%v: %d", wrong, a.status)
		}
	}
	for user, access := range map[string]string{"uma": "use", "vic": "view"} {
		if a := ann.post(at+"/share", url.Values{"user": {user}, "access": {access}}); a.status != http.StatusSeeOther {
			t.Fatalf("share with %s: %d %s", user, a.status, a.body)
		}
	}
	contains(t, "the owner's page", ann.get(at+"/shares", "HX-Request", "true").body, "uma", "vic", "Use", "View")
	for name, b := range map[string]*browser{"use": uma, "view": vic} {
		contains(t, "the notice of "+name, b.get("/notices").body, "ann shared the workspace “&lt;b&gt;shop&lt;/b&gt;” with you.", `href="/shared/`+string(id)+`"`, "/dismiss")
		list, page := b.get("/shared").body, b.get("/shared/"+string(id)).body
		contains(t, "the list of "+name, list, "&lt;b&gt;shop&lt;/b&gt;", "Owner: ann")
		contains(t, "the page of "+name, page, "&lt;b&gt;shop&lt;/b&gt;", "Stopped", "uma", "vic")
		lacks(t, "the page of "+name, page+list, "under the mat", at+"/s", at+"/e")
		for _, way := range []string{`href="/w/` + string(id), `href="` + at + "/terminal"} {
			if enters := strings.Contains(list+page, way); enters != (name == "use") {
				t.Errorf("%s: the way in %s: %v", name, way, enters)
			}
		}
		contains(t, "a way out of "+name, list, `action="/shared/`+string(id)+`/leave"`)
		contains(t, "a way out of "+name, page, `action="/shared/`+string(id)+`/leave"`)
	}

	// A guest who uses it starts it by opening it, for which the proxy leads here, and gets there
	// once it runs. Where workspaces share an origin, as in this world, the proxy has no guests.
	if a := uma.get("/w/" + string(id) + "/"); a.status != http.StatusForbidden {
		t.Errorf("opened in path mode: %d", a.status)
	}
	if _, err := w.DB.Wake(t.Context(), w.caller("uma"), id); err != nil {
		t.Fatal(err)
	}
	w.want(id, "desired_state", "RUNNING")
	contains(t, "while it starts", uma.get("/shared/"+string(id)+"?enter=1").body, "It opens when it is ready.", `http-equiv="refresh"`)
	w.observe(id, running)
	if to := uma.get("/shared/"+string(id)+"?enter=1", "HX-Request", "true").header.Get("HX-Redirect"); to != "/w/"+string(id)+"/" {
		t.Errorf("when it runs: %q", to)
	}
	if a := vic.get("/w/" + string(id) + "/"); a.status != http.StatusForbidden {
		t.Errorf("opened by a guest who views: %d", a.status)
	}
	list, err := w.DB.Shares(t.Context(), w.caller("ann"), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if a := ann.post(at+"/unshare", url.Values{"share": {s.ID}}); a.status != http.StatusSeeOther {
			t.Errorf("end: %d", a.status)
		}
	}
	if a := uma.get("/shared/" + string(id)); a.status != http.StatusForbidden {
		t.Errorf("a former guest: %d", a.status)
	}
	lacks(t, "the notice of a share that has ended", uma.get("/").body, "shared the workspace")
	w.dash.PathMode = true
	lacks(t, "without separate origins", ann.get(at).body, `id="shares"`)
}

// A guest leaves a workspace. Where the guest has access as a member of a group, the page says how it
// ends.
func TestLeavePages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ann, uma := w.person("ann"), w.person("uma")
	id := w.AddWorkspace(w.caller("ann"), "shop").ID
	at, shared := "/workspaces/"+string(id), "/shared/"+string(id)
	group, err := w.DB.CreateGroup(t.Context(), w.caller("admin"), postgres.Group{Name: "team"})
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"ann", "uma"} {
		if _, err := w.DB.SetMember(t.Context(), w.caller("admin"), group.ID, user, new(bool)); err != nil {
			t.Fatal(err)
		}
	}
	for _, with := range []url.Values{{"user": {"uma"}, "access": {"use"}}, {"group": {"team"}, "access": {"view"}}} {
		if a := ann.post(at+"/share", with); a.status != http.StatusSeeOther {
			t.Fatalf("share with %v: %d", with, a.status)
		}
	}
	leave := func() string {
		t.Helper()
		a := uma.post(shared+"/leave", nil)
		if a.status != http.StatusSeeOther {
			t.Fatalf("leave: %d", a.status)
		}
		return a.header.Get("Location")
	}
	const byGroup = "You have access as a member of a group. To lose it"
	lacks(t, "with a share of her own", uma.get(shared).body, byGroup)
	to := leave()
	contains(t, "after leaving, with a group", uma.get(to).body, byGroup, "You still have access as a member of a group.")
	lacks(t, "after leaving, with a group", uma.get(shared).body+uma.get("/shared").body, "/leave")
	if to := leave(); to != shared {
		t.Errorf("leave again: %s", to)
	}
	if _, err := w.DB.RemoveMember(t.Context(), w.caller("admin"), group.ID, w.userID("uma")); err != nil {
		t.Fatal(err)
	}
	if a := uma.post(shared+"/leave", nil); a.status != http.StatusForbidden {
		t.Errorf("leave what is not shared: %d", a.status)
	}
	ann.post(at+"/share", url.Values{"user": {"uma"}, "access": {"view"}})
	contains(t, "after leaving", uma.get(leave()).body, "You left the workspace.", "No workspaces are shared with you.")
	lacks(t, "the owner's page", ann.get(at+"/shares").body, "uma")
	contains(t, "the audit log", w.loggedIn().get("/admin/audit?target="+string(id)).body, "Left a shared workspace", "workspace.leave")
}

// Shared workspaces and groups are in the navigation on every screen: in the bar where it has room
// for all its links, otherwise in the account menu.
func TestSharedIsInNavigationInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tab()
	b.logIn()
	for _, l := range []screen{
		{"desk", "light", "en-US,en", 1440, 900}, {"desk", "light", "ko-KR,ko", 1440, 900}, {"narrowest with a bar", "light", "en-US,en", 961, 900},
		{"tablet", "light", "en-US,en", 768, 900}, {"phone", "light", "en-US,en", 375, 812},
	} {
		b.as(l)
		for _, path := range []string{"/shared", "/groups"} {
			b.visit("/settings/account")
			link := `.nav a[href="` + path + `"]`
			if l.width <= 960 {
				b.press("#usermenu > summary")
				link = `#usermenu[open] a[href="` + path + `"]`
			} else if !value(b, chromedp.Evaluate[bool](`document.documentElement.scrollWidth <= innerWidth &&
				[...document.querySelectorAll('.nav a')].at(-1).getBoundingClientRect().right <= document.querySelector('#usermenu').getBoundingClientRect().left`)) {
				t.Errorf("%s, %s: the bar has no room for its links", l.name, l.language)
			}
			b.press(link)
			b.until("location.pathname === '" + path + "'")
			b.shown("h1")
		}
	}
}
