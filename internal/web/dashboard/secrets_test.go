package dashboard

import (
	"net/http"
	"net/url"
	"testing"

	"codehub/internal/postgres"
)

// A secret is created, changed and deleted on the page, which never shows its value again.
func TestSecretsPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boss := w.loggedIn()
	id := w.add("shop", running)
	refused := boss.htmx("/settings/secrets", url.Values{"name": {"npm"}, "value": {"hunter2"}, "env": {"PATH"}}).body
	contains(t, "a reserved name", refused, "PATH is reserved for codehub.", `name="env"`)
	lacks(t, "a reserved name", refused, "hunter2")
	contains(t, "mistakes", boss.htmx("/settings/secrets", url.Values{"name": {"a b"}, "value": {"x"}, "env": {"A"}}).body, `id="e-name"`)
	contains(t, "no variable and no file", boss.htmx("/settings/secrets", url.Values{"name": {"a"}, "value": {"x"}}).body, "Enter a variable, a file or both.")
	contains(t, "no value", boss.htmx("/settings/secrets", url.Values{"name": {"a"}, "env": {"A"}}).body, `id="e-value"`)
	contains(t, "a file elsewhere", boss.htmx("/settings/secrets", url.Values{"name": {"a"}, "value": {"x"}, "file": {"/etc/passwd"}}).body, `id="e-file"`)
	made := boss.post("/settings/secrets", url.Values{"name": {"npm"}, "value": {"hunter2\r\n"}, "env": {"NPM_TOKEN"}, "file": {"~/.npmrc"}, "for": {string(id)}})
	if made.status != http.StatusSeeOther || made.header.Get("Location") != "/settings/secrets?note=secret_saved" {
		t.Fatalf("%d %s", made.status, made.body)
	}
	contains(t, "the same name again", boss.htmx("/settings/secrets", url.Values{"name": {"npm"}, "value": {"x"}, "env": {"A"}}).body, "A secret with this name exists.")
	list, err := w.dash.Secrets.List(t.Context(), w.caller("admin"))
	if err != nil || len(list.Secrets) != 1 || list.Secrets[0].Size != len("hunter2\n") {
		t.Fatalf("%+v, %v", list, err)
	}
	page := boss.get("/settings/secrets").body
	contains(t, "the page", page, "npm", "NPM_TOKEN", "~/.npmrc", "only shop", "These running workspaces get them at their next start", ">shop</a>")
	at := "/settings/secrets/" + list.Secrets[0].ID
	edit := boss.get(at + "/edit").body
	contains(t, "the form", edit, `value="NPM_TOKEN"`, `value="~/.npmrc"`, "Leave it empty to keep the present value.")
	contains(t, "the deletion", boss.get(at+"/delete").body, "Delete secret npm?")
	lacks(t, "every page", page+edit, "hunter2")
	if a := w.person("ann").get(at + "/edit"); a.status != http.StatusNotFound {
		t.Errorf("another user's secret: %d", a.status)
	}

	boss.post(at+"/edit", url.Values{"env": {"NPM_TOKEN"}, "file": {""}, "for": {""}})
	if list, err = w.dash.Secrets.List(t.Context(), w.caller("admin")); err != nil || list.Secrets[0].File != "" || list.Secrets[0].WorkspaceID != nil || list.Secrets[0].Size != len("hunter2\n") {
		t.Errorf("%+v, %v", list, err)
	}
	boss.post(at+"/delete", nil)
	contains(t, "after the deletion", boss.get("/settings/secrets").body, "There are no secrets.")
	contains(t, "the audit log", boss.get("/admin/audit?action=secret.").body, "Created a secret", "Changed a secret", "Deleted a secret")
}

// Administrators manage the secrets of a group, and its members see them without values.
func TestGroupSecretsPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gina, ann := w.person("gina"), w.person("ann")
	g, err := w.DB.CreateGroup(t.Context(), w.caller("admin"), postgres.Group{Name: "Team"})
	if err != nil {
		t.Fatal(err)
	}
	for name, admin := range map[string]bool{"gina": true, "ann": false} {
		if _, err := w.DB.SetMember(t.Context(), w.caller("admin"), g.ID, name, &admin); err != nil {
			t.Fatal(err)
		}
	}
	at := "/groups/" + g.ID
	if a := ann.post(at+"/secrets", url.Values{"name": {"shared"}, "value": {"hunter2"}, "env": {"SHARED"}}); a.status != http.StatusForbidden {
		t.Errorf("by a member: %d", a.status)
	}
	if a := gina.post(at+"/secrets", url.Values{"name": {"shared"}, "value": {"hunter2"}, "env": {"SHARED"}}); a.status != http.StatusForbidden {
		t.Errorf("by the group's administrator, who adds members without asking them: %d", a.status)
	}
	boss := w.loggedIn()
	if a := boss.post(at+"/secrets", url.Values{"name": {"shared"}, "value": {"hunter2"}, "env": {"SHARED"}}); a.status != http.StatusSeeOther || a.header.Get("Location") != at+"?note=secret_saved" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	contains(t, "for an administrator", boss.get(at).body, "SHARED", `id="new-secret"`, "/edit")
	member := ann.get(at).body
	contains(t, "for a member", member, "SHARED")
	lacks(t, "for a member", member, `id="new-secret"`, "hunter2", "/settings/secrets/0")
	contains(t, "a member's secrets", ann.get("/settings/secrets").body, "SHARED", "Team")
}
