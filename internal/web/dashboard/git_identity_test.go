package dashboard

import (
	"html"
	"net/http"
	"net/url"
	"testing"
)

// A user enters the author of commits, has a key made, and replaces it after a confirmation. No page
// has the private key.
func TestGitIdentityOnAccountPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ann := w.person("ann")
	contains(t, "at first", ann.get("/settings/account").body, `id="edit-git-identity"`, "Create key", "none: git asks for it at the first commit")
	contains(t, "an address that is none", ann.htmx("/settings/git-identity", url.Values{"git_name": {"Ann"}, "git_email": {"ann"}}).body, `id="e-git_email"`, "This is not an e-mail address.")
	contains(t, "a name that is none", ann.htmx("/settings/git-identity", url.Values{"git_name": {"<Ann>"}}).body, `id="e-git_name"`)
	if a := ann.post("/settings/git-identity", url.Values{"git_name": {"Ann Lee"}, "git_email": {"ann@example.com"}}); a.status != http.StatusSeeOther || a.header.Get("Location") != "/settings/account?note=git_identity_saved" {
		t.Errorf("saved: %d %s", a.status, a.header)
	}
	page := ann.get("/settings/account?note=git_identity_saved").body
	contains(t, "saved", page, "Ann Lee", "ann@example.com", "Running workspaces get it within seconds.")
	lacks(t, "without a key", page, "ssh-ed25519")
	contains(t, "the dialog", ann.get("/settings/git-identity").body, `value="Ann Lee"`, `value="ann@example.com"`)
	if a := ann.post("/settings/git-identity", url.Values{"git_name": {"Ann Lee"}, "sign": {"on"}}); a.status != http.StatusSeeOther {
		t.Errorf("signs: %d %s", a.status, a.body)
	}
	g, err := w.dash.GitIdentities.Get(t.Context(), w.caller("ann"))
	if err != nil || g.PublicKey == "" || !g.SignCommits || g.Email != "" {
		t.Fatalf("%+v, %v", g, err)
	}
	contains(t, "with a key", html.UnescapeString(ann.get("/settings/account").body), g.PublicKey, "yes, with the SSH key", `href="/settings/git-identity/key"`)
	contains(t, "before it is replaced", ann.get("/settings/git-identity/key").body, "The present key ends at once")
	if a := ann.post("/settings/git-identity/key", nil); a.status != http.StatusSeeOther || a.header.Get("Location") != "/settings/account?note=git_key_made" {
		t.Errorf("a new key: %d %s", a.status, a.header)
	}
	page = html.UnescapeString(ann.get("/settings/account").body) // keys have plus signs
	contains(t, "with a new key", page, "ssh-ed25519 ")
	lacks(t, "with a new key", page, g.PublicKey, "PRIVATE KEY")
}
