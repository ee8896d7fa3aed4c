package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
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
		list, page := b.get("/shared").body, b.get("/shared/"+string(id)).body
		contains(t, "the list of "+name, list, "&lt;b&gt;shop&lt;/b&gt;", "Owner: ann")
		contains(t, "the page of "+name, page, "&lt;b&gt;shop&lt;/b&gt;", "Stopped", "uma", "vic")
		lacks(t, "the page of "+name, page+list, "under the mat", at+"/")
		if enters := strings.Contains(list, `href="/w/`+string(id)); enters != (name == "use") {
			t.Errorf("%s: a way in: %v", name, enters)
		}
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
	w.dash.PathMode = true
	lacks(t, "without separate origins", ann.get(at).body, `id="shares"`)
}
