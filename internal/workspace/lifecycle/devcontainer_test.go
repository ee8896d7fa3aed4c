package lifecycle_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// A workspace gets what the description gives, another version replaces it, and without one it has
// what it had before, except for what its owner changed.
func TestFollowDevcontainer(t *testing.T) {
	t.Parallel()
	text := func(s string) *string { return &s }
	w := workspace.Workspace{ImageRef: "own:1", Size: "", Env: map[string]string{"A": "own", "B": "own"}, Project: &workspace.Project{}}
	use := func(d *workspace.Devcontainer, want lifecycle.TemplateChange) {
		t.Helper()
		c, used := lifecycle.FollowDevcontainer(w, d)
		if d := cmp.Diff(want, c); d != "" {
			t.Error(d)
		}
		w.Project = &workspace.Project{Devcontainer: used}
		if c.Image != nil {
			w.ImageRef = *c.Image
		}
		if c.Size != nil {
			w.Size = *c.Size
		}
		for name, value := range c.Env {
			if value == nil {
				delete(w.Env, name)
			} else {
				w.Env[name] = *value
			}
		}
	}
	none := map[string]*string{}
	first := &workspace.Devcontainer{Given: workspace.DevcontainerSettings{Image: "dev:1", Size: "large", Env: map[string]string{"A": "1", "C": "1"}}}
	use(first, lifecycle.TemplateChange{Image: text("dev:1"), Size: text("large"), Env: map[string]*string{"A": text("1"), "C": text("1")}})
	use(first, lifecycle.TemplateChange{Env: none})
	use(&workspace.Devcontainer{Given: workspace.DevcontainerSettings{Image: "dev:2", Env: map[string]string{"B": "2", "D": "2"}}},
		lifecycle.TemplateChange{Image: text("dev:2"), Size: text(""), Env: map[string]*string{"A": text("own"), "B": text("2"), "C": nil, "D": text("2")}})
	w.Env["D"] = "mine"
	use(nil, lifecycle.TemplateChange{Image: text("own:1"), Env: map[string]*string{"B": text("own")}})
	if d := cmp.Diff(map[string]string{"A": "own", "B": "own", "D": "mine"}, w.Env); d != "" {
		t.Error(d)
	}
	use(nil, lifecycle.TemplateChange{Env: none})
	use(&workspace.Devcontainer{Given: workspace.DevcontainerSettings{Size: workspace.DefaultSize}}, lifecycle.TemplateChange{Env: none})
	w.Size, w.ImageRef = "small", "other"
	use(first, lifecycle.TemplateChange{Image: text("dev:1"), Size: text("large"), Env: map[string]*string{"A": text("1"), "C": text("1")}})
	w.ImageRef = "mine"
	use(nil, lifecycle.TemplateChange{Size: text(""), Env: map[string]*string{"A": text("own"), "C": nil}})
	// "${localEnv:A}" is empty in a workspace, and replaces nothing.
	use(&workspace.Devcontainer{Given: workspace.DevcontainerSettings{Env: map[string]string{"A": "", "E": ""}}}, lifecycle.TemplateChange{Env: map[string]*string{"E": text("")}})
}
