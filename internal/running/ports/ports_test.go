package ports_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/running/ports"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// The ports that a project names have their labels, also while nothing listens on them.
func TestMergeNamesPorts(t *testing.T) {
	t.Parallel()
	w := workspace.Workspace{ID: "w", Project: &workspace.Project{Ports: []workspace.ProjectPort{{Port: 3000, Label: "Web site"}, {Port: 5432, Label: "Database"}}}}
	type named struct {
		Port      int
		Label     string
		Listening bool
	}
	var got []named
	for _, p := range ports.New(ports.Config{}).Merge(w, []agent.Port{{Port: 3000}, {Port: 4000}, {Port: workspace.IDEPort}}, []workspace.PortShare{{Port: 6000}}) {
		got = append(got, named{p.Port.Port, p.Label, p.Listening})
	}
	want := []named{{3000, "Web site", true}, {4000, "", true}, {5432, "Database", false}, {6000, "", false}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
