package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"codehub/internal/running/attach"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// setups are the setups of workspaces in a test.
type setups struct {
	mu      sync.Mutex
	status  agent.SetupStatus
	retried int
}

// set makes this the only step of all workspaces.
func (s *setups) set(step agent.StepStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = agent.SetupStatus{Steps: []agent.StepStatus{step}}
}

func (s *setups) Setup(context.Context, workspace.ID) (agent.SetupStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status, nil
}

func (s *setups) RetrySetup(context.Context, workspace.ID) (agent.SetupStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.Running() {
		return s.status, attach.ErrSetupRuns
	}
	s.retried++
	s.status = agent.SetupStatus{Steps: []agent.StepStatus{{Name: someRepo, Kind: agent.KindClone, State: agent.StepRunning}}}
	return s.status, nil
}

const someRepo = "https://git.example.com/team/api.git"

// A link to a repository shows all values and creates nothing. The form creates the workspace, and
// leads to the page that waits for it. The next visit offers that workspace.
func TestOpenRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	link := openPath + "?repo=" + url.QueryEscape(someRepo) + "&branch=next&folder=src/api&depth=5&submodules=true"
	if a := w.browser().get(link); a.status != http.StatusSeeOther || a.header.Get("Location") != "/login?next="+url.QueryEscape(link) {
		t.Errorf("without a login: %d %s", a.status, a.header.Get("Location"))
	}
	b := w.loggedIn()
	page := b.get(link).body
	contains(t, "the page", page, `value="`+someRepo+`"`, `value="next"`, `<code>~/src/api</code>`, `name="depth" value="5"`, `name="submodules" checked`, `name="name"`, `value="api"`, `method="post" action="/workspaces"`,
		"open-in-codehub.svg)]("+w.URL.String()+"/new?branch=next")
	lacks(t, "the page", page, `id="existing"`)
	if list := b.get("/").body; strings.Contains(list, `data-workspace`) {
		t.Error("the link has created a workspace")
	}
	a := b.post("/workspaces", url.Values{"page": {"1"}, "open": {"1"}, "name": {"api"}, "repo": {someRepo}, "branch": {"next"}, "folder": {"src/api"}, "depth": {"5"}, "submodules": {"on"}, "start": {"on"}})
	id, ok := strings.CutPrefix(a.header.Get("Location"), "/w/")
	if a.status != http.StatusSeeOther || !ok {
		t.Fatalf("%d %v %.300s", a.status, a.header, a.body)
	}
	made := w.row(workspace.ID(strings.TrimSuffix(id, "/")))
	want := workspace.Repository{URL: someRepo, Branch: "next", Path: "src/api", Depth: 5, Submodules: true}
	if made.Project == nil || made.Project.Repositories[0] != want || made.DesiredState != workspace.DesiredRunning {
		t.Errorf("%+v", made.Project)
	}
	contains(t, "the next visit", b.get(link).body, `id="existing"`, `href="/w/`+string(made.ID)+`/"`, "Open api", `value="api-2"`)
	lacks(t, "another user's visit", w.person("ann").get(link).body, `id="existing"`)
	contains(t, "its page", b.get("/workspaces/"+string(made.ID)).body, someRepo, "[![Open in codehub](")

	for query, text := range map[string]string{
		"repo=file:///etc":                          "This is not the address of a repository.",
		"repo=https://u:p@git.example.com/x":        "has a password or a token",
		"repo=--upload-pack%3Did":                   "This is not the address of a repository.",
		"repo=" + someRepo + "&branch=-c":           "This is not the name of a branch or a tag.",
		"repo=" + someRepo + "&folder=.ssh":         "its name does not begin with a dot",
		"repo=" + someRepo + "&depth=x":             "The depth is a number",
		"repo=%22%3E%3Cscript%3Ealert(1)%3C/script": "This is not the address of a repository.",
	} {
		contains(t, query, b.get(openPath+"?"+query).body, text)
		lacks(t, query, b.get(openPath+"?"+query).body, "<script>alert")
		values, _ := url.ParseQuery(query)
		values.Set("name", "bad")
		if a := b.post("/workspaces", values); a.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d", query, a.status)
		}
	}
	contains(t, "without a repository", b.get(openPath).body, `name="repo"`)
	lacks(t, "without a repository", b.get(openPath).body, "field-error")
	if a := w.browser().get(badgePath); a.status != 200 || a.header.Get("Content-Type") != "image/svg+xml" || a.header.Get("Cross-Origin-Resource-Policy") != "cross-origin" {
		t.Errorf("the badge: %d %v", a.status, a.header)
	}
}

// The page that waits for a workspace shows the clone, and enters the folder at its end. The page
// of a workspace shows why it failed, and tries it again.
func TestSetupOnPages(t *testing.T) {
	t.Parallel()
	s := &setups{}
	w := newWorld(t, func(c *Config) { c.Setups = s })
	b := w.loggedIn()
	id := w.add("api", running)
	w.want(id, "desired_state", "RUNNING")
	w.want(id, "project", `{"repositories":[{"url":"`+someRepo+`"}]}`)
	step := agent.StepStatus{Name: someRepo, Kind: agent.KindClone, State: agent.StepRunning, Percent: 42, Detail: "Receiving objects: 60% <b>", Folder: "/home/coder/project/api"}
	set := func(change func(*agent.StepStatus)) {
		change(&step)
		s.set(step)
	}
	wait, part := "/workspaces/"+string(id)+"/wait", "/workspaces/"+string(id)+"/setup"
	set(func(*agent.StepStatus) {})
	contains(t, "while it clones", b.get(wait).body, `data-kind="setup"`, "42%", "Receiving objects: 60% &lt;b&gt;", `id="setup-open" href="/w/`+string(id)+`/?folder=%2Fhome%2Fcoder%2Fproject%2Fapi"`)
	contains(t, "in Korean", b.get(wait, "Accept-Language", "ko").body, "저장소를 복제하는 중", "지금 열기")
	contains(t, "its page", b.get("/workspaces/"+string(id)).body, `hx-get="`+part+`"`)
	contains(t, "its part", b.get(part, "HX-Request", "true").body, "42%", `hx-trigger="load delay:1s"`)

	set(func(st *agent.StepStatus) {
		st.State, st.Reason, st.Error, st.Log = agent.StepFailed, "git", "fatal: repository not found", "Cloning into 'x'…\n"
	})
	contains(t, "after a failure", b.get(wait).body, `data-kind="setup_failed"`, "Git could not clone the repository.", "fatal: repository not found", `id="setup-retry"`, `id="setup-open"`)
	contains(t, "its part", b.get(part, "HX-Request", "true").body, "fatal: repository not found", "Try again", "Cloning into")
	contains(t, "another try", b.htmx(part, url.Values{"from": {"detail"}}).body, "Running")
	contains(t, "another try while it runs", b.htmx(part, url.Values{"from": {"detail"}}).body, "Running")
	if s.retried != 1 {
		t.Errorf("tried again %d times", s.retried)
	}

	set(func(st *agent.StepStatus) {
		st.State, st.File = agent.StepDone, "/home/coder/project/api/api.code-workspace"
	})
	if a := b.get(wait); a.status != http.StatusSeeOther || a.header.Get("Location") != "/w/"+string(id)+"/?workspace=%2Fhome%2Fcoder%2Fproject%2Fapi%2Fapi.code-workspace" {
		t.Errorf("at the end: %d %s", a.status, a.header.Get("Location"))
	}
	if a := w.person("eve").htmx(part, url.Values{"from": {"detail"}}); a.status == http.StatusOK || s.retried != 1 {
		t.Errorf("another user: %d", a.status)
	}
}
