package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"testing"

	"codehub/internal/running/attach"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// applied is a workspace to which dotfiles are applied.
type applied struct {
	*setups
	times int
	err   error
}

func (a *applied) Apply(context.Context, workspace.ID) (agent.SetupStatus, error) {
	a.times++
	a.set(agent.StepStatus{Name: "https://git.example.com/ann/dotfiles", Kind: agent.KindDotfiles, State: agent.StepRunning})
	return a.status, a.err
}

// The account page sets dotfiles, and the page of a workspace applies them again.
func TestDotfilesOnPages(t *testing.T) {
	t.Parallel()
	s := &applied{setups: &setups{}}
	w := newWorld(t, func(c *Config) { c.Setups, c.Dotfiles = s, s })
	b := w.loggedIn()
	id := w.add("api", running)
	at := "/workspaces/" + string(id)
	contains(t, "the account page", b.get("/settings/account").body, "You have no dotfiles.", `id="set-dotfiles"`)
	contains(t, "in Korean", b.get("/settings/account", "Accept-Language", "ko").body, "등록한 dotfiles가 없습니다.")
	lacks(t, "without dotfiles", b.get(at+"/setup", "HX-Request", "true").body, "apply-dotfiles")
	for repo, text := range map[string]string{"": "e-repo", "--upload-pack=x": "This is not the address of a repository.", "https://ann:secret@git.example.com/x": "has a password or a token"} {
		a := b.htmx("/settings/dotfiles", url.Values{"repo": {repo}})
		contains(t, repo, a.body, text)
		if a.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d", repo, a.status)
		}
	}
	contains(t, "a branch", b.htmx("/settings/dotfiles", url.Values{"repo": {"https://git.example.com/ann/dotfiles"}, "branch": {"--x"}}).body, "e-branch")
	if a := b.post("/settings/dotfiles", url.Values{"repo": {"https://git.example.com/ann/dotfiles"}, "branch": {"next"}}); a.status != http.StatusSeeOther || a.header.Get("Location") != "/settings/account?note=dotfiles_saved" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	contains(t, "the account page", b.get("/settings/account").body, "<code>https://git.example.com/ann/dotfiles</code>", "<code>next</code>")
	contains(t, "the dialog", b.get("/settings/dotfiles").body, `value="https://git.example.com/ann/dotfiles"`, `value="next"`)
	contains(t, "the audit log", b.get("/admin/audit?action=user.").body, "Changed the dotfiles")

	contains(t, "the workspace's page", b.get(at).body, `hx-get="`+at+`/setup"`)
	contains(t, "its setup", b.get(at+"/setup", "HX-Request", "true").body, "Setup", `id="apply-dotfiles"`)
	after := b.htmx(at+"/dotfiles", url.Values{"from": {"detail"}}).body
	contains(t, "after it was applied", after, `data-step="dotfiles" data-state="running"`, "Dotfiles", "https://git.example.com/ann/dotfiles")
	lacks(t, "after it was applied", after, "apply-dotfiles")
	s.set(agent.StepStatus{Name: "x", Kind: agent.KindDotfiles, State: agent.StepSkipped, Reason: agent.ReasonFailedBefore})
	contains(t, "a failure at an earlier start", b.get(at+"/setup", "HX-Request", "true").body, "It failed at an earlier start", `id="setup-retry"`)
	s.err = attach.ErrSetupRuns
	if a := b.htmx(at+"/dotfiles", url.Values{"from": {"detail"}}); a.status != http.StatusOK || s.times != 2 {
		t.Errorf("%d, %d times", a.status, s.times)
	}
	if a := w.person("eve").post(at+"/dotfiles", nil); a.status == http.StatusOK || a.status == http.StatusSeeOther || s.times != 2 {
		t.Errorf("another user: %d", a.status)
	}
	b.post("/settings/dotfiles/remove", nil)
	contains(t, "after they were removed", b.get("/settings/account").body, "You have no dotfiles.")
}

// The page that waits for a workspace waits for its repository, but not for scripts and dotfiles.
func TestWaitSkipsScripts(t *testing.T) {
	t.Parallel()
	s := &setups{}
	w := newWorld(t, func(c *Config) { c.Setups = s })
	b := w.loggedIn()
	id := w.add("api", running)
	w.want(id, "desired_state", "RUNNING")
	w.want(id, "project", `{"repositories":[{"url":"`+someRepo+`"}]}`)
	for kind, state := range map[string]agent.StepState{agent.KindScript: agent.StepRunning, agent.KindDotfiles: agent.StepFailed} {
		s.set(agent.StepStatus{Name: "x", Kind: kind, State: state})
		if a := b.get("/workspaces/" + string(id) + "/wait"); a.status != http.StatusSeeOther {
			t.Errorf("%s: %d %s", kind, a.status, a.body)
		}
	}
}
