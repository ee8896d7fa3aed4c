package httpapi

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/running/attach"
	"codehub/internal/running/devcontainers"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// described has the files of all workspaces.
type described struct {
	mu    sync.Mutex
	files agent.Descriptions
	err   error
}

func (d *described) set(err error, files ...agent.Description) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files, d.err = agent.Descriptions{Files: files}, err
}

func (d *described) Descriptions(context.Context, workspace.ID) (agent.Descriptions, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.files, d.err
}

const devcontainerJSON = `{
	"name": "API", "image": "registry.example.com/go:1", "build": {"dockerfile": "x"},
	"containerEnv": {"A": "${localWorkspaceFolder}", "PATH": "/x", "LONG": "LONGVALUE"},
	"remoteEnv": {"PATH": "${containerEnv:PATH}:/opt/bin", "B": "${containerEnv:A}b"},
	"workspaceFolder": "/workspaces/api/cmd", "remoteUser": "vscode", "forwardPorts": [3000, 8080],
	"portsAttributes": {"3000": {"label": "Web", "onAutoForward": "openBrowser"}},
	"postCreateCommand": {"a": "make", "b": ["x", "y"]}, "postStartCommand": "start",
	"customizations": {"vscode": {"extensions": ["golang.go"], "settings": {"editor.tabSize": 2}}},
	"hostRequirements": {"cpus": 4}, "secrets": {"TOKEN": {"description": "d"}, "OTHER": {}}
}`

// TestDevcontainer: the owner sees what a workspace would use of a file and what not, uses it, sees
// that it has changed, and stops using it.
func TestDevcontainer(t *testing.T) {
	t.Parallel()
	files := &described{}
	e := newEnv(t, func(c *Config) {
		allowed, err := imageref.ParseAllowed("registry.example.com/*,test", "")
		if err != nil {
			t.Fatal(err)
		}
		c.Devcontainers = devcontainers.New(devcontainers.Config{Store: c.Store, Agents: files, Secrets: c.Secrets, Sizes: testSizes, Images: allowed})
	})
	ws := e.AddWorkspace(e.ann.Caller, "api", func(n *postgres.NewWorkspace) {
		n.ImageRef, n.Env = "test", map[string]string{"A": "own", "OWN": "1"}
		n.Project = &workspace.Project{Repositories: []workspace.Repository{{URL: "https://git.example.com/team/api.git"}}}
	})
	path := "/workspaces/" + string(ws.ID) + "/devcontainer"
	e.want(409, "not_running", "GET", path, "", as(e.ann))
	e.want(409, "not_running", "POST", path, "", as(e.ann))
	e.Change(`UPDATE workspaces SET phase = 'RUNNING', desired_state = 'RUNNING' WHERE id = $1`, ws.ID)
	e.want(201, "", "POST", "/secrets", `{"name":"t","env":"TOKEN","value":"x"}`, as(e.ann))
	e.want(201, "", "POST", "/secrets", `{"name":"o","env":"OTHER","value":"x","template":"another"}`, as(e.ann))

	text := strings.ReplaceAll(devcontainerJSON, "LONGVALUE", strings.Repeat("x", 9000))
	first := agent.Description{Folder: "project/api", Name: ".devcontainer/devcontainer.json", Content: []byte(text)}
	files.set(nil, first, agent.Description{Folder: "project/api", Name: ".devcontainer/b/devcontainer.json", Content: []byte("{\n\"image\": }")},
		agent.Description{Folder: "project/api", Name: ".devcontainer/c/devcontainer.json", Problem: agent.ProblemLong},
		agent.Description{Folder: "project/api", Name: ".devcontainer/d/devcontainer.json", Content: []byte(`{"image": "other.example.com/x", "hostRequirements": {"memory": "64gb", "storage": "1tb", "cpus": 64}}`)},
		agent.Description{Folder: "elsewhere", Name: ".devcontainer.json", Content: []byte(`{}`)})
	list := read[api.DevcontainerList](t, e.want(200, "", "GET", path, "", as(e.ann)))
	if len(list.Files) != 4 {
		t.Fatalf("%+v", list)
	}
	e.want(400, "invalid_request", "POST", path, `{"digest":"another"}`, as(e.ann))
	got, shown := list.Files[0], list.Files[0].Digest
	got.Digest = ""
	reasons := map[string]string{}
	for _, i := range got.Ignored {
		reasons[i.Property] = i.Reason
	}
	if d := cmp.Diff(map[string]string{
		"build": "build", "containerEnv.PATH": "env_name", "containerEnv.LONG": "env_value", "remoteUser": "user", "forwardPorts: 8080": "port_own",
	}, reasons); d != "" {
		t.Error(d)
	}
	got.Ignored = nil
	if d := cmp.Diff(api.Devcontainer{
		File: "project/api/.devcontainer/devcontainer.json", Name: "API", Image: "registry.example.com/go:1", Size: "large", Folder: "project/api/cmd",
		Env:   map[string]string{"A": "/home/coder/project/api", "B": "${containerEnv:A}b", "PATH": "${containerEnv:PATH}:/opt/bin"},
		Ports: []api.ProjectPort{{Port: 3000, Label: "Web", Open: true}}, Features: []string{},
		Scripts: []api.DevcontainerScript{
			{Name: "postCreateCommand", Once: true, Commands: []api.DevcontainerCommand{{Name: "a", Shell: "make", Args: []string{}}, {Name: "b", Args: []string{"x", "y"}}}},
			{Name: "postStartCommand", Commands: []api.DevcontainerCommand{{Shell: "start", Args: []string{}}}},
		},
		Extensions: []string{"golang.go"}, Settings: map[string]any{"editor.tabSize": 2.0},
		Secrets: []api.DevcontainerSecret{{Name: "OTHER"}, {Name: "TOKEN", Description: "d", Present: true}},
	}, got); d != "" {
		t.Error(d)
	}
	if f := list.Files[1]; f.Problem != "syntax" || f.Line != 2 || !strings.Contains(f.Message, "line 2") {
		t.Errorf("%+v", f)
	}
	if f := list.Files[2]; f.Problem != "long" {
		t.Errorf("%+v", f)
	}
	if f := list.Files[3]; f.Image != "" || f.Size != "" || len(f.Ignored) != 2 || f.Ignored[0].Reason != "image_not_allowed" || f.Ignored[1].Reason != "size" {
		t.Errorf("%+v", f)
	}

	e.want(404, "not_found", "POST", path, `{"file":"x"}`, as(e.ann))
	e.want(404, "not_found", "POST", path, `{"file":"devcontainer.json"}`, as(e.ann)) // of several
	e.want(400, "invalid_request", "POST", path, `{"file":"b/devcontainer.json"}`, as(e.ann))
	e.want(403, "forbidden", "POST", path, "", as(e.eve))
	e.want(403, "forbidden", "GET", path, "", as(e.eve))

	used := read[api.Workspace](t, e.want(200, "", "POST", path, `{"file":".devcontainer/devcontainer.json","digest":"`+shown+`"}`, as(e.ann)))
	if used.Devcontainer == nil || used.Devcontainer.File != got.File || used.ImageRef != got.Image || used.Size != "large" || len(used.Ports) != 1 || len(used.Extensions) != 1 {
		t.Errorf("%+v", used)
	}
	if missing := read[api.SecretList](t, e.want(200, "", "GET", "/secrets", "", as(e.ann))).Missing; len(missing) != 1 || missing[0].Env != "OTHER" {
		t.Errorf("%+v", missing)
	}
	launch, err := e.Controller().Launch(t.Context(), ws.ID)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"A": "/home/coder/project/api", "OWN": "1"}, launch.Env); d != "" || launch.Project.Folder() != "project/api/cmd" {
		t.Error(d, launch.Project.Folder())
	}
	list = read[api.DevcontainerList](t, e.want(200, "", "GET", path, "", as(e.ann)))
	if !list.Files[0].Used || list.Files[0].Changed || list.Files[3].Used {
		t.Errorf("%+v", list.Files)
	}
	first.Content = []byte(`{"image": "registry.example.com/go:2"}`)
	files.set(nil, first)
	list = read[api.DevcontainerList](t, e.want(200, "", "GET", path, "", as(e.ann)))
	if !list.Files[0].Used || !list.Files[0].Changed {
		t.Errorf("%+v", list.Files)
	}
	used = read[api.Workspace](t, e.want(200, "", "POST", path, "", as(e.ann)))
	if used.ImageRef != "registry.example.com/go:2" || used.Size != "default" || len(used.Ports) != 0 {
		t.Errorf("%+v", used)
	}
	e.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY' WHERE id = $1`, ws.ID)
	used = read[api.Workspace](t, e.want(200, "", "DELETE", path, "", as(e.ann)))
	if used.Devcontainer != nil || used.ImageRef != "test" {
		t.Errorf("%+v", used)
	}
	e.want(200, "", "DELETE", path, "", as(e.ann))
	if row, err := e.DB.Workspace(t.Context(), e.ann.Caller, ws.ID); err != nil || !cmp.Equal(row.Env, map[string]string{"A": "own", "OWN": "1"}) {
		t.Errorf("%v, %v", row.Env, err)
	}

	e.Change(`UPDATE workspaces SET phase = 'RUNNING', desired_state = 'RUNNING' WHERE id = $1`, ws.ID)
	files.set(attach.ErrNoAgent)
	e.want(http.StatusServiceUnavailable, "unavailable", "GET", path, "", as(e.ann))
	files.set(agent.ErrUnreachable)
	e.want(http.StatusServiceUnavailable, "unavailable", "GET", path, "", as(e.ann))
	// What a workspace uses is bounded.
	first.Content = []byte(`{"postStartCommand": "` + strings.Repeat("x", 70<<10) + `"}`)
	files.set(nil, first)
	e.want(400, "invalid_request", "POST", path, "", as(e.ann))
}

// endless is a workspace whose build contexts do not arrive.
type endless struct{}

func (endless) BuildContext(ctx context.Context, _ workspace.ID, _, _, _ string) (io.ReadCloser, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestDevcontainerBuild: a file that needs a build changes nothing at once. Its owner alone sees the
// build, and cancels it.
func TestDevcontainerBuild(t *testing.T) {
	t.Parallel()
	files := &described{}
	files.set(nil, agent.Description{Folder: "project/api", Name: ".devcontainer.json", Content: []byte(`{"build": {"dockerfile": "Dockerfile"}}`)})
	var builder *devcontainers.Builder
	e := newEnv(t, func(c *Config) {
		builder = devcontainers.NewBuilder(devcontainers.BuilderConfig{
			Settings: devcontainers.Settings{Builds: 1, Timeout: time.Minute}, Store: c.Store, Log: c.Log, Dir: t.TempDir(), Images: devcontainers.Images{Contexts: endless{}, Sizes: testSizes},
		})
		c.Devcontainers = devcontainers.New(devcontainers.Config{Store: c.Store, Agents: files, Sizes: testSizes, Builder: builder})
	})
	var builds sync.WaitGroup
	builds.Go(func() { _ = builder.Run(t.Context()) })
	t.Cleanup(builds.Wait)
	ws := e.AddWorkspace(e.ann.Caller, "api", func(n *postgres.NewWorkspace) {
		n.ImageRef, n.Project = "test", &workspace.Project{Repositories: []workspace.Repository{{URL: "https://git.example.com/team/api.git"}}}
	})
	e.Change(`UPDATE workspaces SET phase = 'RUNNING', desired_state = 'RUNNING' WHERE id = $1`, ws.ID)
	path := "/workspaces/" + string(ws.ID) + "/devcontainer"
	build := path + "/build"
	e.want(404, "not_found", "GET", build, "", as(e.ann))
	e.want(404, "not_found", "DELETE", build, "", as(e.ann))
	if used := read[api.Workspace](t, e.want(202, "", "POST", path, "", as(e.ann))); used.Devcontainer != nil || used.ImageRef != "test" {
		t.Errorf("%+v", used)
	}
	e.want(409, "operation_in_progress", "POST", path, "", as(e.ann))
	e.want(403, "forbidden", "GET", build, "", as(e.eve))
	e.want(403, "forbidden", "DELETE", build, "", as(e.eve))
	if list := read[api.DevcontainerList](t, e.want(200, "", "GET", path, "", as(e.ann))); list.Build == nil || list.Build.EndedAt != nil || list.Files[0].Dockerfile != "Dockerfile" || list.Files[0].Used {
		t.Errorf("%+v", list)
	}
	if b := read[api.DevcontainerBuild](t, e.want(202, "", "DELETE", build, "", as(e.ann))); b.File != "project/api/.devcontainer.json" {
		t.Errorf("%+v", b)
	}
	harness.Eventually(t, "the build ends", func() bool {
		return read[api.DevcontainerBuild](t, e.want(200, "", "GET", build, "", as(e.ann))).State == "canceled"
	})
	e.want(409, "not_cancellable", "DELETE", build, "", as(e.ann))
}
