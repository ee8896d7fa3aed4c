package reconcile

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// The steps of a project come in the order in which they need each other.
func TestProjectSteps(t *testing.T) {
	t.Parallel()
	if steps := projectSteps(nil); steps != nil {
		t.Errorf("%+v", steps)
	}
	repo := workspace.Repository{URL: "https://h/a"}
	shell := func(text string) *agent.Script {
		return &agent.Script{Commands: []agent.ScriptCommand{{Shell: text}}}
	}
	want := []agent.Step{
		{Name: "https://h/a", Clone: &repo},
		{Name: "extensions", Once: "extensions-0509ba0a837c", Timeout: 300, Script: &agent.Script{Dir: ".", Commands: []agent.ScriptCommand{{
			Args: []string{"/opt/codehub-ide/bin/code-server", "--user-data-dir", "/home/coder/.local/share/code-server", "--install-extension", "golang.go", "--install-extension", "a.b@1"},
		}}}},
		{Name: "create", Once: "script-create", Timeout: 90, Script: shell("npm ci")},
		{Name: "start", Timeout: 90, Script: shell("npm start &")},
	}
	p := workspace.Project{Repositories: []workspace.Repository{repo}, Extensions: []string{"golang.go", "a.b@1"}, Scripts: &workspace.Scripts{Create: "npm ci", Start: "npm start &", Timeout: 90}}
	if d := cmp.Diff(want, projectSteps(&p)); d != "" {
		t.Error(d)
	}
}
