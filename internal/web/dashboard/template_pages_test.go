package dashboard

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"codehub/internal/testing/harness/fixture"
)

const dashTemplate = "title: {en: Backend API, ko: 백엔드}\nicon: server\nenv:\n  BRANCH: ${param.branch}\n  DEBUG: ${param.debug}\nparameters:\n  - {name: branch, title: Branch, default: main, pattern: '[a-z]+'}\n  - {name: region, type: choice, options: [eu, us]}\n  - {name: debug, type: boolean}\nrepositories:\n  - {url: 'https://git.example.com/team/api.git', branch: '${param.branch}'}\nscripts: {create: make deps}\nports:\n  - {port: 3000, label: Web site, open: true}\nsecrets: {required: [NPM_TOKEN, DEBUG]}\n"

// TestTemplatePages: administrators write templates, mistakes are shown with line and field, a preview
// says what changes, and the history leads back. Without scripts.
func TestTemplatePages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boss, ann := w.loggedIn(), w.person("ann")
	contains(t, "the list", boss.get("/admin/templates").body, "Node.js", "built in")
	if a := ann.get("/admin/templates"); a.status != http.StatusForbidden {
		t.Errorf("for a user: %d", a.status)
	}
	form := func(do, text string) url.Values { return url.Values{"name": {"api"}, "do": {do}, "text": {text}} }
	contains(t, "a bad name", boss.post("/admin/templates", url.Values{"name": {"A B"}, "text": {"title: kept"}}).body, `id="e-template-name"`, "title: kept")
	contains(t, "a mistake", boss.post("/admin/templates", form("save", "title: a\r\nsizes: <b>\r\n")).body, "Line 2:", "<code>sizes</code>", "is unknown", "sizes: &lt;b&gt;")
	contains(t, "a preview", boss.post("/admin/templates", form("preview", dashTemplate)).body, "env.BRANCH", "There is no template with this name yet.")
	if a := boss.post("/admin/templates", form("save", dashTemplate)); a.status != http.StatusSeeOther {
		t.Fatalf("save: %d %s", a.status, a.body)
	}

	// A user creates a workspace from it.
	page := ann.get("/workspaces/new").body
	contains(t, "the cards", page, "Backend API", "Python", `id="template-empty"`, `value="empty"`)
	lacks(t, "without the template", page, `name="param.branch"`)
	page = ann.get("/workspaces/new?template=api&name=mine").body
	contains(t, "the parameters", page, `name="param.branch"`, `value="main"`, "<option value=\"eu\"", `name="param.debug"`, `value="mine"`, `id="template-clones"`, "https://git.example.com/team/api.git, branch ${param.branch}", "<pre tabindex=\"0\">make deps</pre>",
		`id="template-secrets"`, `href="/settings/secrets/new?env=NPM_TOKEN&amp;for=template%3Aapi&amp;name=NPM_TOKEN"`)
	lacks(t, "a variable of the template", page, "env=DEBUG")
	contains(t, "the form of a secret", ann.get("/settings/secrets/new?env=NPM_TOKEN&for=template%3Aapi&name=NPM_TOKEN").body, `name="env" value="NPM_TOKEN"`, `<option value="template:api" selected>`)
	contains(t, "a link to a repository", ann.get(openPath+"?repo="+url.QueryEscape(someRepo)+"&template=api&param.branch=fix&param.region=us&param.debug=true").body,
		`name="template" value="api"`, `value="fix"`, `value="us" selected`, `name="param.debug" value="true" checked`, `href="/new?param.branch=fix&amp;param.debug=true&amp;param.region=us&amp;repo=`,
		"open-in-codehub.svg)]("+w.URL.String()+"/new?param.branch=fix&amp;param.debug=true&amp;param.region=us&amp;repo="+url.QueryEscape(someRepo)+"&amp;template=api)")
	lacks(t, "a badge of an unknown template", ann.get(openPath+"?repo="+url.QueryEscape(someRepo)+"&template=gone").body, "&amp;template=gone)")
	again := ann.post("/workspaces", url.Values{"page": {"1"}, "open": {"1"}, "repo": {someRepo}, "branch": {"next"}, "template": {"api"}, "param.branch": {"A"}})
	contains(t, "the page again", again.body, `href="/new?branch=next&amp;`, `template=python"`)
	in := url.Values{"name": {"mine"}, "template": {"api"}, "param.branch": {"A"}, "param.region": {"eu"}}
	contains(t, "a value that does not match", ann.htmx("/workspaces", in).body, "This does not match the pattern [a-z]&#43;.")
	in.Set("param.branch", "dev")
	in.Set("param.region", "")
	contains(t, "no choice", ann.htmx("/workspaces", in).body, `id="e-param.region"`)
	in.Set("param.region", "us")
	if a := ann.post("/workspaces", in); a.status != http.StatusSeeOther {
		t.Fatalf("create: %d %s", a.status, a.body)
	}
	id := fixture.Query[string](w, `SELECT id::text FROM workspaces WHERE name = 'mine'`)
	if env := fixture.Query[string](w, `SELECT env::text FROM workspaces WHERE id = $1`, id); env != `{"DEBUG": "false", "BRANCH": "dev"}` {
		t.Errorf("variables %s", env)
	}
	projects := func(name string) string {
		return fixture.Query[string](w, `SELECT coalesce(project ->> 'repositories', '') FROM workspaces WHERE name = $1`, name)
	}
	if got := projects("mine"); got != `[{"url": "https://git.example.com/team/api.git", "branch": "dev"}]` {
		t.Errorf("repositories %s", got)
	}
	at := "/workspaces/" + id
	page = ann.get(at).body
	contains(t, "the workspace", page, "branch: dev", `id="duplicate"`, `id="setup"`, `id="lacked-secrets"`, "Store NPM_TOKEN")
	ann.post("/settings/secrets", url.Values{"name": {"npm"}, "value": {"hunter2"}, "env": {"NPM_TOKEN"}, "for": {"template:api"}})
	if of := fixture.Query[string](w, `SELECT template FROM secrets WHERE name = 'npm'`); of != "api" {
		t.Errorf("the secret is for the template %q", of)
	}
	lacks(t, "the workspace with the secret", ann.get(at).body, `id="lacked-secrets"`)
	contains(t, "the secrets", ann.get("/settings/secrets").body, "workspaces of the template api")
	lacks(t, "the workspace", page, `id="update-template"`, `id="revert-template"`, `id="save-template"`)

	// The template changes.
	changed := strings.Replace(dashTemplate, "DEBUG: ${param.debug}", "LEVEL: high", 1)
	contains(t, "the preview of a change", boss.post("/admin/templates/api", form("preview", changed)).body, "1 workspace can be updated after that.", "env.LEVEL")
	boss.post("/admin/templates/api", form("save", changed))
	contains(t, "the list with an update", ann.get("/").body, "Template update available")
	contains(t, "the page with an update", ann.get(at).body, `id="update-template"`)
	contains(t, "the update", ann.get(at+"/update-template").body, "LEVEL", "<ins>high</ins>", "<del>false</del>", `value="dev"`)
	lacks(t, "the update", ann.get(at+"/update-template").body, "git.example.com")
	contains(t, "a wrong value in the update", ann.htmx(at+"/update-template", url.Values{"from": {"detail"}, "param.branch": {"A"}, "param.region": {"us"}}).body, "does not match")
	contains(t, "after the update", ann.htmx(at+"/update-template", url.Values{"from": {"detail"}, "param.branch": {"next"}, "param.region": {"us"}}).body, "takes effect at the next start", `id="revert-template"`)
	if got := projects("mine"); got != `[{"url": "https://git.example.com/team/api.git", "branch": "next"}]` {
		t.Errorf("repositories after the update %s", got)
	}
	if env := fixture.Query[string](w, `SELECT env::text FROM workspaces WHERE id = $1`, id); env != `{"LEVEL": "high", "BRANCH": "next"}` {
		t.Errorf("variables %s", env)
	}
	contains(t, "after the way back", ann.htmx(at+"/revert-template", url.Values{"from": {"detail"}}).body, "earlier version", `id="update-template"`)
	if env := fixture.Query[string](w, `SELECT env::text FROM workspaces WHERE id = $1`, id); env != `{"DEBUG": "false", "BRANCH": "dev"}` {
		t.Errorf("variables %s", env)
	}

	// A copy, and a template of a workspace.
	contains(t, "the form of a duplicate", ann.get(at+"/duplicate").body, "Duplicate mine", `name="like"`, `value="mine copy"`)
	if a := ann.post("/workspaces", url.Values{"name": {"twin"}, "like": {id}}); a.status != http.StatusSeeOther {
		t.Fatalf("duplicate: %d %s", a.status, a.body)
	}
	if env := fixture.Query[string](w, `SELECT env::text FROM workspaces WHERE name = 'twin'`); env != `{"DEBUG": "false", "BRANCH": "dev"}` {
		t.Errorf("variables of the duplicate: %s", env)
	}
	contains(t, "the form of a duplicate", ann.get(at+"/duplicate").body, "https://git.example.com/team/api.git, branch dev")
	if got := projects("twin"); got != `[{"url": "https://git.example.com/team/api.git", "branch": "dev"}]` {
		t.Errorf("repositories of the duplicate %s", got)
	}
	boss.post("/workspaces", url.Values{"name": {"seed"}, "template": {"go"}})
	seed := fixture.Query[string](w, `SELECT id::text FROM workspaces WHERE name = 'seed'`)
	contains(t, "the administrator's page", boss.get("/workspaces/"+seed).body, "/admin/new-template?workspace="+seed)
	contains(t, "a template of a workspace", boss.get("/admin/new-template?workspace="+seed).body, "title: seed", "GOFLAGS: -modcacherw")
	if a := boss.get("/admin/new-template?workspace=" + id); a.status != http.StatusForbidden {
		t.Errorf("a template of another user's workspace: %d", a.status)
	}

	// The history leads back.
	first := fixture.Query[int](w, `SELECT min(id)::int FROM template_versions`)
	version := url.Values{"version": {strconv.Itoa(first)}}
	contains(t, "the history", boss.get("/admin/templates/api").body, "latest", "History")
	contains(t, "an earlier version", boss.get("/admin/templates/api?"+version.Encode()).body, "The editor has an earlier version.", "DEBUG: ${param.debug}")
	if a := boss.post("/admin/templates/api/restore", version); a.status != http.StatusSeeOther {
		t.Errorf("restore: %d %s", a.status, a.body)
	}
	lacks(t, "after the way back", ann.get(at).body, `id="update-template"`)
	if a := boss.post("/admin/templates/api/delete", nil); a.status != http.StatusSeeOther {
		t.Errorf("delete: %d %s", a.status, a.body)
	}
	lacks(t, "the cards after the deletion", ann.get("/workspaces/new").body, "Backend API")
	contains(t, "the form of a deleted template", ann.post("/workspaces", in).body, "This template is no longer offered.")
	contains(t, "the deleted template", boss.get("/admin/templates/api").body, "Deleted. Restore a version", "History")
	contains(t, "the audit log", boss.get("/admin/audit?action=template.").body, "Saved a template", "Deleted a template")
}

// TestTemplateCardsInBrowser: a click on a card shows its parameters and keeps what was typed.
func TestTemplateCardsInBrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.loggedIn().post("/admin/templates", url.Values{"name": {"api"}, "do": {"save"}, "text": {dashTemplate}})
	b := w.tab()
	b.logIn()
	b.press("#new-workspace")
	b.enter("#f-name", "mine")
	b.press("#template-api")
	b.until(`document.getElementById('f-param.branch') && document.getElementById('f-name').value === 'mine'`)
	b.eval(`document.getElementById('f-param.branch').value = 'dev'`)
	b.eval(`document.getElementById('f-param.region').value = 'us'`)
	b.press(`#dialog-form button[type="submit"]`)
	b.until(`document.body.innerText.includes('mine')`)
	b.until(`!document.querySelector('dialog[open]')`)
	if branch := fixture.Query[string](w, `SELECT env ->> 'BRANCH' FROM workspaces WHERE name = 'mine'`); branch != "dev" {
		t.Errorf("the branch is %q", branch)
	}
}
