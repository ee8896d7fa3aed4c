package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"codehub/internal/runtime/agent"
)

// A token is stored and removed on the account page, which never shows it again.
func TestGitOnAccountPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	boss := w.loggedIn()
	contains(t, "without tokens", boss.get("/settings/account").body, "There are no tokens.", `id="new-git"`)
	contains(t, "the form of a link", boss.get("/settings/git/new?host=git.example.com%22%3E").body, `value="git.example.com&#34;&gt;"`, `type="password"`)
	token := func(host, login, token string) url.Values {
		return url.Values{"host": {host}, "login": {login}, "token": {token}}
	}
	for id, values := range map[string]url.Values{"e-host": token("github.com/team", "octocat", "hunter2"), "e-login": token("github.com", "", "hunter2"), "e-token": token("github.com", "octocat", "hunter2\nx")} {
		a := boss.htmx("/settings/git", values)
		contains(t, id, a.body, `id="`+id+`"`)
		lacks(t, id, a.body, "hunter2")
	}
	a := boss.post("/settings/git", token("GitHub.com", "octocat", "hunter2"))
	if a.status != http.StatusSeeOther || a.header.Get("Location") != "/settings/account?note=git_connected" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	page := boss.get("/settings/account").body
	contains(t, "the page", page, `data-git="github.com"`, "octocat", "token")
	contains(t, "in Korean", boss.get("/settings/account", "Accept-Language", "ko").body, "토큰 추가", "연결 해제")
	lacks(t, "the page", page, "hunter2")
	lacks(t, "another user's page", w.person("ann").get("/settings/account").body, "octocat")
	list, err := w.dash.Git.List(t.Context(), w.caller("admin"))
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	w.person("eve").post("/settings/git/"+list[0].ID+"/disconnect", nil)
	contains(t, "after another user's request", boss.get("/settings/account").body, "octocat")
	boss.post("/settings/git/"+list[0].ID+"/disconnect", nil)
	contains(t, "after the removal", boss.get("/settings/account").body, "There are no tokens.")
	contains(t, "the audit log", boss.get("/admin/audit?action=git.").body, "Connected a Git server", "Disconnected a Git server", "github.com")
}

// A clone that needs a login offers to connect the host of the repository, and no other one. The
// clone is tried again with the token.
func TestConnectFromFailedClone(t *testing.T) {
	t.Parallel()
	s := &setups{}
	w := newWorld(t, func(c *Config) { c.Setups = s })
	b := w.loggedIn()
	id := w.add("api", running)
	w.want(id, "desired_state", "RUNNING")
	w.want(id, "project", `{"repositories":[{"url":"`+someRepo+`"}]}`)
	at := "/workspaces/" + string(id)
	step := agent.StepStatus{Name: someRepo, Kind: agent.KindClone, State: agent.StepFailed, Reason: "login"}
	for words, offered := range map[string]bool{
		"fatal: could not read Username for 'https://git.example.com': terminal prompts disabled": true,
		"fatal: Authentication failed for 'https://git.example.com/team/api.git/'":                true,
		"fatal: could not read Username for 'https://evil.example.com': terminal prompts":         false,
		"fatal: Authentication failed for 'http://git.example.com/team/api.git/'":                 false,
		"": true,
	} {
		step.Error = words
		s.set(step)
		link := `href="/settings/git/new?host=git.example.com&amp;workspace=` + string(id) + `&amp;from=detail"`
		if got := strings.Contains(b.get(at+"/setup", "HX-Request", "true").body, link); got != offered {
			t.Errorf("%q: offered: %v", words, got)
		}
	}
	step.Error = ""
	s.set(step)
	contains(t, "the page that waits", b.get(at+"/wait").body, "Connect git.example.com", "from=wait", "The Git server refused the login")
	step.Name = "https://evil.example.com/x"
	s.set(step)
	lacks(t, "another repository", b.get(at+"/setup", "HX-Request", "true").body, "git-connect")

	from := url.Values{"host": {"git.example.com"}, "login": {"ann"}, "token": {"hunter2"}, "workspace": {string(id)}, "from": {"wait"}}
	contains(t, "the form", b.get("/settings/git/new?host=git.example.com&from=wait&workspace="+string(id)).body, `name="workspace" value="`+string(id)+`"`, `name="from" value="wait"`)
	if a := w.person("eve").post("/settings/git", from); a.status == http.StatusSeeOther || s.retried != 0 {
		t.Errorf("another user: %d, tried again %d times", a.status, s.retried)
	}
	if a := b.post("/settings/git", from); a.status != http.StatusSeeOther || a.header.Get("Location") != at+"/wait" || s.retried != 1 {
		t.Errorf("%d %s, tried again %d times", a.status, a.header.Get("Location"), s.retried)
	}
}

// The owner allows guests to use the Git connections with a share, and the pages say who may.
func TestShareWithGit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ann, uma := w.person("ann"), w.person("uma")
	w.person("vic")
	id := w.AddWorkspace(w.caller("ann"), "shop").ID
	at := "/workspaces/" + string(id)
	contains(t, "the form", ann.get(at+"/shares").body, `name="git"`)
	lacks(t, "without guests", ann.get(at+"/shares").body, `id="shares-no-git"`)
	ann.post(at+"/share", url.Values{"user": {"uma"}, "access": {"use"}})
	contains(t, "a guest without Git", ann.get(at+"/shares").body, `id="shares-no-git"`)
	contains(t, "the workspace's page", ann.get(at+"/shares", "HX-Request", "true").body, `id="shares-no-git"`)
	ann.post(at+"/share", url.Values{"user": {"uma"}, "access": {"use"}, "git": {"on"}})
	ann.post(at+"/share", url.Values{"user": {"vic"}, "access": {"view"}, "git": {"on"}})
	page := ann.get(at + "/shares").body
	contains(t, "a guest with Git", page, "Use, Git")
	lacks(t, "a guest with Git", page, `id="shares-no-git"`, "View, Git")
	contains(t, "the guest's page", uma.get("/shared/"+string(id)).body, "Use, Git")
}
