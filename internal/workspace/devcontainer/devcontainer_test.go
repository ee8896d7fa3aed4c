package devcontainer

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var here = Place{Repository: "/home/coder/project/api", ID: "w1", User: "coder"}

// What a file describes, with the variables of a workspace, and what is not honoured.
func TestParse(t *testing.T) {
	t.Parallel()
	got, err := Parse(".devcontainer/devcontainer.json", []byte(`{
	// The image of the team.
	"name": "${localWorkspaceFolderBasename}",
	"image": "x/go:1",
	"containerEnv": {"ROOT": "${containerWorkspaceFolder}", "N": 3, "B": true, "PATH": "/x", "L": "${localEnv:HOME}"},
	"remoteEnv": {"PATH": "${containerEnv:PATH}:/opt/bin", "TERM": null},
	"remoteUser": "vscode",
	"workspaceMount": "source=${localWorkspaceFolder},target=/src,type=bind",
	"workspaceFolder": "/src/cmd",
	"forwardPorts": [3000, "db:5432"],
	"portsAttributes": {"3000": {"label": "Web", "onAutoForward": "openBrowser", "protocol": "https"}, "8000-8010": {}},
	"postAttachCommand": "attach",
	"postCreateCommand": {"a": "make ${devcontainerId} ${containerEnv:X}${containerEnv:Y:d}", "b": ["x", "y z"]},
	"customizations": {"vscode": {"extensions": ["golang.go", "-a.b", "not one"], "settings": {"a": 1}}},
	"hostRequirements": {"cpus": 2, "memory": "4gb", "gpu": true},
	"secrets": {"TOKEN": {"description": "d", "documentationUrl": "https://example.com"}},
	"runArgs": ["--privileged"], "privileged": true, "waitFor": "postCreateCommand", "extra": {},
	"onCreateCommand": 3
}`), here)
	if err != nil {
		t.Fatal(err)
	}
	folder := "/home/coder/project/api/cmd"
	want := Environment{
		Name: "api", Image: "x/go:1", User: "vscode", Folder: folder,
		Env:       map[string]string{"ROOT": folder, "N": "3", "B": "true", "PATH": "/x", "L": ""},
		RemoteEnv: map[string]string{"PATH": "${containerEnv:PATH}:/opt/bin"},
		Ports:     []Port{{Port: 3000, Label: "Web", Open: true}},
		Scripts: []Script{
			{PostCreate, []Command{{Name: "a", Shell: "make w1 ${X}${Y:-d}"}, {Name: "b", Args: []string{"x", "y z"}}}},
			{PostAttach, []Command{{Shell: "attach"}}},
		},
		Extensions: []string{"golang.go"}, Needs: Needs{CPUs: 2, Memory: 4 << 30},
		Secrets: []Secret{{"TOKEN", "d", "https://example.com"}},
	}
	ignored := ""
	for _, i := range got.Ignored {
		ignored += fmt.Sprintf("%d %s: %s\n", i.Line, i.Property, i.Reason)
	}
	if fmt.Sprint(got.Settings) != "map[a:1]" {
		t.Errorf("%v", got.Settings)
	}
	if got.Line("image") != 4 || got.Line("containerEnv.N") != 5 || got.Line("build") != 0 {
		t.Errorf("%v", got.lines)
	}
	got.Ignored, got.Settings, got.lines = nil, nil, nil
	if d := cmp.Diff(want, got, cmp.AllowUnexported(Environment{})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(`5 containerEnv.L.${localEnv:HOME}: local_env
5 containerEnv.PATH: env_name
6 remoteEnv.TERM: unset
7 remoteUser: user
8 workspaceMount: workspace_mount
10 forwardPorts: db:5432: port_host
11 portsAttributes.3000.protocol: port_attribute
11 portsAttributes.8000-8010: port_range
14 customizations.vscode.extensions: -a.b: no_removal
14 customizations.vscode.extensions: not one: extension
15 hostRequirements.gpu: gpu
17 runArgs: run_args
17 privileged: rights
17 waitFor: wait_for
17 extra: unknown
18 onCreateCommand: type
`, ignored); d != "" {
		t.Error(d)
	}
}

// Everything of a shape has a known reason, and none fails.
func TestShapes(t *testing.T) {
	t.Parallel()
	for name, content := range shapes {
		e, err := Parse("devcontainer.json", []byte(content), here)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, i := range e.Ignored {
			if i.Line < 1 || i.Property == "" {
				t.Errorf("%s: %+v", name, i)
			}
		}
	}
	if e, _ := Parse("devcontainer.json", []byte(shapes["unused"]), here); len(e.Ignored) > 0 {
		t.Errorf("what asks for nothing is listed: %+v", e.Ignored)
	}
}

func TestHostileFiles(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, file, content, reason string
		line                        int
	}{
		{"10 MB", "devcontainer.json", `{"image": "` + strings.Repeat("x", 10<<20) + `"}`, TooLong, 1},
		{"deep objects", "devcontainer.json", "{\n" + strings.Repeat(`{"a":`, 100_000), BadSyntax, 2},
		{"deep values", "devcontainer.json", "{\n\"a\":" + strings.Repeat(`{"a":`, 100_000) + strings.Repeat("}", 100_001), TooDeep, 2},
		{"deep lists", "devcontainer.json", `{"a": ` + strings.Repeat("[", 500_000), TooDeep, 1},
		{"many values", "devcontainer.json", `{"a": [` + strings.Repeat("0,", 100_000) + `]}`, TooMany, 1},
		{"missing comma", "devcontainer.json", "{\n\"image\": \"x\"\n\"name\": \"y\"\n}", BadSyntax, 3},
		{"unclosed", "devcontainer.json", "{\n\"image\": \"x\"\n", BadSyntax, 3},
		{"unclosed comment", "devcontainer.json", "{ /* ", BadSyntax, 1},
		{"unclosed text", "devcontainer.json", "{ \"", BadSyntax, 1},
		{"empty", "devcontainer.json", "", BadSyntax, 1},
		{"list", "devcontainer.json", "[]", NoObject, 1},
		{"two", "devcontainer.json", "{}\n{}", BadSyntax, 2},
		{"bytes", "devcontainer.json", "{\"image\": \"\xff\"}", BadSyntax, 1},
		{"no name", "devcontainer.json", "{\n\"image\": \"${localEnv}\"}", NoName, 2},
		{"YAML", ".gitpod.yml", "image: x\n\tports: y", BadSyntax, 2},
		{"YAML list", ".gitpod.yml", "- a", NoObject, 1},
		{"empty YAML", ".gitpod.yml", "", NoObject, 1},
		{"deep YAML", ".gitpod.yml", "a: " + strings.Repeat("[", 5_000) + strings.Repeat("]", 5_000), TooDeep, 1},
		{"laughs", ".gitpod.yml", "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n", TooMany, 0},
		{"recursion", ".gitpod.yml", "a: &a\n  b: *a\n", BadSyntax, 0},
	} {
		_, err := Parse(test.file, []byte(test.content), here)
		var e *Error
		if !errors.As(err, &e) || e.Reason != test.reason && !(test.name == "recursion" && e.Reason == TooDeep) || test.line > 0 && e.Line != test.line {
			t.Errorf("%s: %+v", test.name, err)
		}
	}
	// What is not honoured is listed up to a bound.
	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, "\"k%d\": %d,\n", i, i)
	}
	e, err := Parse("devcontainer.json", []byte("{"+many.String()+"}"), here)
	if err != nil || len(e.Ignored) != maxListed+1 || e.Ignored[maxListed].Reason != ReasonMore {
		t.Errorf("%v, %d", err, len(e.Ignored))
	}
}

func TestFolder(t *testing.T) {
	t.Parallel()
	const repo = "/home/coder/project/api"
	for _, test := range []struct {
		folder, mounted, want string
		ok                    bool
	}{
		{"", "", repo, true},
		{"/workspaces/api", "", repo, true},
		{"/workspaces/other-name/sub/dir", "", repo + "/sub/dir", true},
		{"/workspaces", "", repo, false},
		{"/workspace", "", repo, false},
		{"/workspace", "/workspace", repo, true},
		{"/workspace/a", "/workspace/", repo + "/a", true},
		{"/work", "/workspace", repo, false},
		{repo + "/a", "", repo + "/a", true},
		{"services/a", "", repo + "/services/a", true},
		{"../other", "", repo, false},
		{"/workspaces/api/../../etc", "", repo, false},
		{"/", "/", repo, true},
		{"/etc", "/", repo + "/etc", true},
	} {
		if got, ok := here.opened(test.folder, test.mounted); got != test.want || ok != test.ok {
			t.Errorf("%+v: %s, %v", test, got, ok)
		}
	}
}

func TestGitpod(t *testing.T) {
	t.Parallel()
	got, err := Parse(".gitpod.yml", []byte(`image: x/full
workspaceLocation: api/sub
tasks:
  - name: Web
    before: nvm use
    init: |
      npm ci
    command: npm run dev -- --name='a'
    env: {A: "it's"}
  - init: make
    prebuild: make all
  - before: date
ports:
  - {port: 3000, onOpen: open-preview, name: Web, visibility: public}
  - {port: 4000-4010}
vscode:
  extensions: [golang.go, "https://example.com/x.vsix"]
github: {prebuilds: {master: true}}
additionalRepositories: []
`), here)
	if err != nil {
		t.Fatal(err)
	}
	ignored := ""
	for _, i := range got.Ignored {
		ignored += fmt.Sprintf("%d %s: %s\n", i.Line, i.Property, i.Reason)
	}
	got.Ignored, got.lines = nil, nil
	env := "export A='it'\\''s'\n"
	if d := cmp.Diff(Environment{
		Image: "x/full", Folder: "/home/coder/project/api/sub", Ports: []Port{{Port: 3000, Label: "Web", Open: true}}, Extensions: []string{"golang.go"},
		Scripts: []Script{
			{PostCreate, []Command{{Name: "Web", Shell: env + "nvm use\nnpm ci\n"}, {Name: "2", Shell: "make"}}},
			{PostStart, []Command{
				{Name: "Web", Shell: "mkdir -p \"${HOME}/.local/state/codehub\"\nnohup \"$(command -v bash || command -v sh)\" -c " + ShellWord(env+"nvm use\nnpm run dev -- --name='a'") +
					" >\"$HOME/.local/state/codehub/gitpod-1.log\" 2>&1 </dev/null &"},
				{Name: "3", Shell: "date"},
			}},
		},
	}, got, cmp.AllowUnexported(Environment{})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(`11 tasks[1].prebuild: prebuild
14 ports[0].visibility: port_attribute
15 ports[1]: port_range
17 vscode.extensions: https://example.com/x.vsix: extension
18 github: prebuild
19 additionalRepositories: unknown
`, ignored); d != "" {
		t.Error(d)
	}
	if e, err := Parse(".gitpod.yml", []byte("image:\n  file: .gitpod.Dockerfile\n"), here); err != nil || len(e.Ignored) != 1 || e.Ignored[0].Reason != ReasonBuild {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	files := []string{"project/api/.devcontainer/devcontainer.json", "project/api/.devcontainer/go/devcontainer.json", "project/web/.devcontainer/devcontainer.json"}
	for name, want := range map[string]int{"": 0, ".devcontainer/go/devcontainer.json": 1, files[2]: 2, "go/devcontainer.json": 1, ".devcontainer/devcontainer.json": -1, "json": -1, "x": -1} {
		if i, ok := Choose(files, name); ok != (want >= 0) || ok && i != want {
			t.Errorf("%q: %d, %v", name, i, ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, content := range shapes {
		f.Add("devcontainer.json", []byte(content))
	}
	f.Add(GitpodFile, []byte("image: x\ntasks: [{init: a, command: b}]\nports: [{port: 1}]\n"))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		e, err := Parse(name, content, builder)
		if b := e.Build; b != nil {
			for _, p := range []string{b.Dockerfile, b.Context} {
				if p == "" || p == ".." || strings.HasPrefix(p, "../") || strings.HasPrefix(p, "/") {
					t.Errorf("%q is not in the repository", p)
				}
			}
		}
		if err == nil && e.Folder != here.Repository && !strings.HasPrefix(e.Folder, here.Repository+"/") {
			t.Errorf("the folder %q is not in the repository", e.Folder)
		}
	})
}
