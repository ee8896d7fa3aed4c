package postgres_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// A workspace keeps the repositories that it was created with, its container gets them, and the
// owner finds it by them.
func TestWorkspaceOfRepository(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann, bob := e.user("ann"), e.user("bob")
	made := func(owner workspace.Caller, name string, r ...workspace.Repository) workspace.Workspace {
		t.Helper()
		return must(e.CreateWorkspace(t.Context(), owner, postgres.NewWorkspace{
			Name: name, ImageRef: "x", StorageBackend: workspace.StorageDockerVolume, Desired: workspace.DesiredStandby, Project: &workspace.Project{Repositories: r},
		}))(t)
	}
	api := workspace.Repository{URL: "https://git.example/x/api.git", Branch: "next", Path: "src", Depth: 3, Submodules: true}
	w := made(ann, "api", api)
	if d := cmp.Diff(&workspace.Project{Repositories: []workspace.Repository{api}}, w.Project); d != "" {
		t.Error(d)
	}
	if none := made(ann, "none"); none.Project != nil {
		t.Errorf("%+v", none.Project)
	}
	made(ann, "main", workspace.Repository{URL: "https://git.example/x/api"})
	made(ann, "both", api, workspace.Repository{URL: "https://git.example/x/web"})
	made(bob, "api", api)
	c := postgres.NewController(postgres.NewSession(e.conn()))
	if launch := must(c.Launch(t.Context(), w.ID))(t); !cmp.Equal(launch.Project, w.Project) {
		t.Errorf("%+v", launch.Project)
	}
	for want, r := range map[string]workspace.Repository{
		"api":  {URL: "https://git.example/x/api/", Branch: "next"},
		"main": {URL: "https://git.example/x/api.git"},
		"":     {URL: "https://git.example/x/api", Branch: "other"},
	} {
		list, _, err := e.ListWorkspaces(t.Context(), ann, postgres.Filter{Repository: &r})
		var names []string
		for _, found := range list {
			names = append(names, found.Name)
		}
		if err != nil || strings.Join(names, " ") != want {
			t.Errorf("%+v: %v, %v", r, names, err)
		}
	}
}

// An update of the template changes the repositories that it gave, and is taken back.
func TestTemplateChangesProject(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	use := func(version string, urls ...string) workspace.TemplateUse {
		p := &workspace.Project{}
		for _, u := range urls {
			p.Repositories = append(p.Repositories, workspace.Repository{URL: u})
		}
		return workspace.TemplateUse{Name: "api", Version: version, Settings: workspace.TemplateSettings{Image: "x", Project: p.Over(nil)}}
	}
	first, second := use("1"), use("2", "https://h/a", "https://h/b")
	w := must(e.CreateWorkspace(t.Context(), ann, postgres.NewWorkspace{Name: "a", ImageRef: "x", StorageBackend: workspace.StorageDockerVolume, Desired: workspace.DesiredStandby, Template: &first}))(t)
	for _, to := range []workspace.TemplateUse{second, first, second} {
		w = must(e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Template: &to}))(t)
		if got := must(e.Workspace(t.Context(), ann, w.ID))(t); !cmp.Equal(got.Project, to.Settings.Project) || got.Template.Version != to.Version {
			t.Errorf("%+v", got.Project)
		}
	}
}
