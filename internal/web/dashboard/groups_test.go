package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"codehub/internal/postgres"
)

// An administrator makes a group with limits and an administrator of its own, who adds and
// removes members and does nothing else.
func TestGroupsPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boss, gina, ann := w.loggedIn(), w.person("gina"), w.person("ann")
	contains(t, "a form with mistakes", boss.htmx("/groups", url.Values{"name": {""}, "max_running": {"-1"}, "max_bytes": {"much"}, "issuer": {"https://a"}}).body,
		`id="e-name"`, `id="e-max_running"`, `id="e-max_bytes"`, `id="e-claim"`)
	made := boss.post("/groups", url.Values{"name": {"Team <b>"}, "max_running": {"7"}, "max_workspaces": {"0"}, "max_bytes": {"2g"}, "claim": {"developers"}})
	if made.status != http.StatusSeeOther {
		t.Fatalf("create: %d %s", made.status, made.body)
	}
	at, _, _ := strings.Cut(made.header.Get("Location"), "?")
	contains(t, "the same name again", boss.htmx("/groups", url.Values{"name": {"TEAM <B>"}}).body, "A group with this name exists.")
	page := boss.get(at).body
	contains(t, "the group", page, "Team &lt;b&gt;", "Running limit: 7", "Workspaces: no limit", "2 GiB", "Members of developers at the identity provider", "The group has no members.")
	contains(t, "an unknown user", boss.htmx(at+"/member", url.Values{"user": {"nobody"}}).body, "There is no user with this name.")
	if a := boss.post(at+"/member", url.Values{"user": {"GINA"}, "admin": {"on"}}); a.status != http.StatusSeeOther {
		t.Fatalf("add: %d %s", a.status, a.body)
	}

	contains(t, "her limits", boss.get("/admin").body, "0 of 7", "0, no limit", "0 B of 2 GiB", "group Team &lt;b&gt;")

	page = gina.get(at).body
	contains(t, "for its administrator", page, "gina", "Group administrator", "Add member")
	lacks(t, "for its administrator", page, `id="group-edit"`, `id="group-delete"`)
	lacks(t, "its administrator's form", gina.get(at+"/member").body, `name="admin"`)
	if a := gina.post(at+"/member", url.Values{"user": {"ann"}, "admin": {"on"}}); a.status != http.StatusSeeOther {
		t.Fatalf("add by the group's administrator: %d %s", a.status, a.body)
	}
	if admins := w.admins(at); admins != "gina" {
		t.Errorf("administrators of the group: %s", admins)
	}
	for _, path := range []string{"/edit", "/delete"} {
		if a := gina.post(at+path, url.Values{"name": {"mine"}}); a.status != http.StatusForbidden {
			t.Errorf("%s by the group's administrator: %d", path, a.status)
		}
	}
	if a := gina.post("/groups", url.Values{"name": {"mine"}}); a.status != http.StatusForbidden {
		t.Errorf("create by the group's administrator: %d", a.status)
	}
	page = ann.get(at).body
	contains(t, "for a member", page, "Team &lt;b&gt;", "2 members")
	lacks(t, "for a member", page, "gina", "Add member")
	contains(t, "a member's groups", ann.get("/groups").body, "Team &lt;b&gt;")
	w.Exec(`INSERT INTO user_identities (id, user_id, issuer, subject) SELECT gen_random_uuid(), id, 'https://a', 'ann' FROM users WHERE username = 'ann'`)
	w.Exec(`INSERT INTO user_claim_groups SELECT id, 'developers' FROM user_identities`)
	remove := at + "/members/" + w.userID("ann") + "/remove"
	claimed := gina.post(remove, nil).header.Get("Location")
	contains(t, "after the removal of a member by the claim", gina.get(claimed).body, "is still a member by the identity provider&#39;s groups", ">ann<")
	w.Exec(`DELETE FROM user_identities`)
	gina.post(at+"/member", url.Values{"user": {"ann"}})
	if a := gina.post(remove, nil); a.status != http.StatusSeeOther || a.header.Get("Location") != at+"?note=group_saved" {
		t.Errorf("remove: %d %s", a.status, a.body)
	}
	if a := ann.get(at); a.status != http.StatusForbidden {
		t.Errorf("for a former member: %d", a.status)
	}
	if a := boss.post(at+"/delete", nil); a.status != http.StatusSeeOther || a.header.Get("Location") != "/groups?note=group_deleted" {
		t.Errorf("delete: %d %v", a.status, a.header)
	}
	contains(t, "the audit log", boss.get("/admin/audit?action=group.").body, "Created a group", "Added a member", "Removed a member", "Deleted a group")
}

// admins are the administrators of the group at this address.
func (w *world) admins(at string) string {
	w.t.Helper()
	list, _, err := w.DB.Members(w.t.Context(), w.caller("admin"), strings.TrimPrefix(at, "/groups/"), postgres.Page{})
	if err != nil {
		w.t.Fatal(err)
	}
	var names []string
	for _, m := range list {
		if m.Admin {
			names = append(names, m.Username)
		}
	}
	return strings.Join(names, " ")
}
