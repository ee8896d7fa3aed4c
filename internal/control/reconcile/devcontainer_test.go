package reconcile

import (
	"strings"
	"testing"

	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// A Feature with a long ID has scripts that the agent runs: their file has at most 100 characters.
func TestScriptsOfFeatures(t *testing.T) {
	t.Parallel()
	id := "A.b_" + strings.Repeat("c", 96)
	command := []workspace.DevcontainerCommand{{Shell: "true"}}
	var s agent.Setup
	addDevcontainer(&workspace.Project{Devcontainer: &workspace.Devcontainer{Scripts: []workspace.DevcontainerScript{
		{Name: "updateContentCommand." + id + "d", Once: true, Commands: command}, {Name: "updateContentCommand." + id + "e", Once: true, Commands: command},
	}}}, "image", &s)
	for _, step := range s.Steps {
		if name := step.Once; len(name) > 100 || !strings.HasPrefix(name, "devcontainer-updatecontentcommand-a-b_c") {
			t.Errorf("the file is %q", name)
		}
	}
	if s.Steps[0].Once == s.Steps[1].Once {
		t.Error("two scripts have one file")
	}
}
