package dashboard

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/running/devcontainers"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/harness"
	"codehub/internal/users/auth"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
	"codehub/internal/workspace/devcontainer"
)

type descriptions agent.Descriptions

func (d *descriptions) Descriptions(context.Context, workspace.ID) (agent.Descriptions, error) {
	return agent.Descriptions(*d), nil
}

// describedFiles are those of a repository.
var describedFiles = []agent.Description{
	{Folder: "project/api", Name: ".devcontainer/devcontainer.json", Content: []byte(`{"name": "<b>API", "image": "x:1", "containerEnv": {"A": "</code><script>"},
		"privileged": true, "runArgs": ["-x"], "x-own": 1, "postCreateCommand": ["make", "all"], "forwardPorts": [3000], "secrets": {"TOKEN": {"documentationUrl": "https://example.com"}},
		"customizations": {"vscode": {"extensions": ["golang.go"], "settings": {"editor.tabSize": 2}}}}`)},
	{Folder: "project/api", Name: ".devcontainer.json", Content: []byte("{\n!}")},
	{Folder: "project/api", Name: ".devcontainer/x/devcontainer.json", Problem: agent.ProblemKind},
}

// The page of a workspace says that its repository describes its environment. Another page shows
// what would be used and what not, and uses it.
func TestDevcontainerPage(t *testing.T) {
	t.Parallel()
	s, files := &setups{}, &descriptions{Files: slices.Clone(describedFiles)}
	w := newWorld(t, func(c *Config) {
		c.Setups = s
		c.Devcontainers = devcontainers.New(devcontainers.Config{Store: c.Store, Agents: files, Sizes: c.Sizes})
	})
	b := w.loggedIn()
	id := w.add("api", running)
	w.want(id, "project", `{"repositories":[{"url":"`+someRepo+`"}]}`)
	at, part := "/workspaces/"+string(id)+"/devcontainer", "/workspaces/"+string(id)+"/setup"
	step := agent.StepStatus{Name: someRepo, Kind: agent.KindClone, State: agent.StepDone}
	s.set(step)
	lacks(t, "a repository without a description", b.get(part, "HX-Request", "true").body, "devcontainer")
	step.Described = true
	s.set(step)
	contains(t, "its part", b.get(part, "HX-Request", "true").body, "This repository describes its environment.", `href="`+at+`"`)

	page := b.get(at).body
	contains(t, "the page", page, "<code>x:1</code>", "&lt;b&gt;API", "A=&lt;/code&gt;&lt;script&gt;", `[&#34;make&#34;,&#34;all&#34;]`, "3000", "golang.go", "editor.tabSize: 2", "Add secret",
		"<code>privileged</code>", "Workspaces run without additional privileges.", "<code>runArgs</code>", "<code>x-own</code>", "codehub does not know this property.",
		`name="file" value="project/api/.devcontainer/devcontainer.json"`, "The file has a syntax error.", "line 2", "This is not a regular file.")
	lacks(t, "the page", page, "<script>alert", `id="devcontainer-used"`, `value="project/api/.devcontainer.json"`)
	contains(t, "in Korean", b.get(at, "Accept-Language", "ko").body, "저장소의 환경", "워크스페이스는 추가 권한 없이 실행합니다.", "사용하지 않는 항목")

	if a := w.person("eve").post(at, url.Values{"file": {"project/api/.devcontainer/devcontainer.json"}}); a.status == http.StatusSeeOther {
		t.Error("another user uses it")
	}
	a := b.post(at, url.Values{"file": {"project/api/.devcontainer/devcontainer.json"}, "do": {"use"}})
	if a.status != http.StatusSeeOther {
		t.Fatalf("%d %.300s", a.status, a.body)
	}
	if row := w.row(id); row.ImageRef != "x:1" || row.Project.Devcontainer == nil || row.Env["A"] != "</code><script>" {
		t.Errorf("%+v", row.Project)
	}
	contains(t, "after the use", b.get(a.header.Get("Location")).body, `id="devcontainer-used"`, `id="devcontainer-restart"`, "from the next start on")
	contains(t, "its part", b.get(part, "HX-Request", "true").body, `id="devcontainer-uses"`)
	files.Files[0].Content = []byte(`{}`)
	contains(t, "after a change", b.get(at).body, "The file has changed.", `id="devcontainer-use-0"`)
	w.observe(id, standby)
	contains(t, "while it is stopped", b.get(at).body, "Start the workspace", `id="devcontainer-stop"`)
	if a := b.post(at, url.Values{"do": {"stop"}}); a.status != http.StatusSeeOther || w.row(id).Project.Devcontainer != nil {
		t.Errorf("%d", a.status)
	}
}

// Everything that keeps a part of a file from being used has a text.
func TestDevcontainerReasonsHaveTexts(t *testing.T) {
	t.Parallel()
	for _, r := range devcontainers.Reasons {
		if !catalogue.English.Has("devcontainer.reason." + string(r)) {
			t.Errorf("no text for the reason %s", r)
		}
	}
	for _, p := range []string{agent.ProblemLong, agent.ProblemKind, agent.ProblemUnreadable, devcontainer.BadSyntax, devcontainer.TooLong, devcontainer.TooDeep, devcontainer.TooMany, devcontainer.NoObject, devcontainer.NoName} {
		if !catalogue.English.Has("devcontainer.problem." + p) {
			t.Errorf("no text for the problem %s", p)
		}
	}
}

// builtFile is a file of a repository from which an image is built.
var builtFile = agent.Description{Folder: "project/api", Name: ".devcontainer/devcontainer.json", Content: []byte(`{
	"build": {"dockerfile": "Dockerfile"}, "features": {"ghcr.io/devcontainers/features/go:1": {}}
}`)}

// endless is a workspace whose build contexts do not arrive.
type endless struct{}

func (endless) BuildContext(ctx context.Context, _ workspace.ID, _, _, _ string) (io.ReadCloser, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// The page of a file builds its image, follows the build, cancels it, and shows how it ended.
func TestDevcontainerBuildPage(t *testing.T) {
	t.Parallel()
	s := &setups{}
	var builder *devcontainers.Builder
	w := newWorld(t, func(c *Config) {
		builder = devcontainers.NewBuilder(devcontainers.BuilderConfig{
			Settings: devcontainers.Settings{Builds: 1, Timeout: time.Minute}, Store: c.Store, Log: c.Log, Dir: t.TempDir(), Images: devcontainers.Images{Contexts: endless{}, Sizes: c.Sizes},
		})
		c.Setups = s
		c.Devcontainers = devcontainers.New(devcontainers.Config{Store: c.Store, Agents: &descriptions{Files: []agent.Description{builtFile}}, Sizes: c.Sizes, Builder: builder})
	})
	var builds sync.WaitGroup
	builds.Go(func() { _ = builder.Run(t.Context()) })
	t.Cleanup(builds.Wait)
	b := w.loggedIn()
	id := w.add("api", running)
	w.want(id, "project", `{"repositories":[{"url":"`+someRepo+`"}]}`)
	s.set(agent.StepStatus{Name: someRepo, Kind: agent.KindClone, State: agent.StepDone, Described: true})
	at := "/workspaces/" + string(id) + "/devcontainer"
	setup := func() string { return b.get("/workspaces/"+string(id)+"/setup", "HX-Request", "true").body }
	use := url.Values{"file": {"project/api/.devcontainer/devcontainer.json"}, "do": {"use"}}

	page := b.get(at).body
	contains(t, "the page", page, "<code>.devcontainer/Dockerfile</code>", "<code>ghcr.io/devcontainers/features/go:1</code>", "Build and use")
	lacks(t, "the page", page, `id="devcontainer-build"`)
	contains(t, "in Korean", b.get(at, "Accept-Language", "ko").body, "빌드 후 사용")
	a := b.post(at, use)
	if a.status != http.StatusSeeOther || w.row(id).Project.Devcontainer != nil {
		t.Fatalf("%d %.300s", a.status, a.body)
	}
	page = b.get(a.header.Get("Location")).body
	contains(t, "while it is built", page, `hx-get="`+at+`/build"`, `id="devcontainer-cancel"`, "The image of “api” is being built.")
	lacks(t, "while it is built", page, "Build and use")
	contains(t, "the workspace's page", setup(), `id="devcontainer-build-building"`, `href="`+at+`"`)
	contains(t, "a second build", b.post(at, use).body, "Another image is being built for you.")
	harness.Eventually(t, "the part shows the step", func() bool {
		return strings.Contains(b.get(at+"/build", "HX-Request", "true").body, "Read .devcontainer/Dockerfile")
	})
	if eve := w.person("eve"); eve.get(at+"/build").status == http.StatusOK || eve.post(at, url.Values{"do": {"cancel"}}).status == http.StatusSeeOther {
		t.Error("another user sees or cancels it")
	}
	if a := b.post(at, url.Values{"do": {"cancel"}}); a.status != http.StatusSeeOther {
		t.Errorf("%d %.300s", a.status, a.body)
	}
	harness.Eventually(t, "the part leads to the page once the build is canceled", func() bool {
		return b.get(at+"/build", "HX-Request", "true").header.Get("HX-Redirect") == at
	})
	page = b.get(at).body
	contains(t, "after it was canceled", page, `data-build="canceled"`, "Cancelled", "Build and use")
	lacks(t, "after it was canceled", page, `hx-get="`+at+`/build"`)

	w.built(id, postgres.BuildReport{State: postgres.BuildFailed, Error: "<i>Step 2 failed.", Log: "\x1b[31m<b>no", Ignored: []api.DevcontainerIgnored{{Property: "features.go.mounts", Reason: "mounts"}}})
	contains(t, "after it failed", b.get(at).body, "Build failed", "&lt;i&gt;Step 2 failed.", "&lt;b&gt;no", "<code>features.go.mounts</code>", "A workspace mounts its home folder only.")
	contains(t, "the workspace's page", setup(), `id="devcontainer-build-failed"`)
	w.want(id, "project", `{"repositories":[{"url":"`+someRepo+`"}],"devcontainer":{"file":"project/api/.devcontainer/devcontainer.json","digest":"x"}}`)
	w.built(id, postgres.BuildReport{State: postgres.BuildDone})
	contains(t, "once it is built", b.get(at).body, "Built. Restart to use it.", `id="devcontainer-restart"`)
	lacks(t, "the workspace's page", setup(), "devcontainer-build")
	w.want(id, "phase_changed_at", time.Now().Add(time.Minute))
	lacks(t, "after the restart", b.get(at).body, "Restart to use it.")
}

// built records a build for a workspace of the administrator, and returns its id.
func (w *world) built(id workspace.ID, r postgres.BuildReport) string {
	w.t.Helper()
	build, err := w.DB.BeginBuild(w.t.Context(), w.caller(auth.AdminUsername), id, "project/api/.devcontainer/devcontainer.json")
	if err == nil {
		_, err = w.DB.ReportBuild(w.t.Context(), build, r)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return build
}
