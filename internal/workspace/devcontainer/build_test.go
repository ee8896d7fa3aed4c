package devcontainer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var builder = Place{Repository: here.Repository, ID: here.ID, User: here.User, Builds: true}

func listed(ignored []Ignored) string {
	var lines strings.Builder
	for _, i := range ignored {
		fmt.Fprintf(&lines, "%d %s: %s\n", i.Line, i.Property, i.Reason)
	}
	return lines.String()
}

func TestBuild(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, file, content string
		want                *Build
		image, ignored      string
	}{
		{"build", ".devcontainer/devcontainer.json", `{"image": "x", "build": {"dockerfile": "Dockerfile", "context": "..", "target": "dev", "args": {"A": "${localWorkspaceFolderBasename}", "N": 1, "B": true, "C": "${containerEnv:X}", "D": null, "E": {}}, "options": ["--network=host"], "cacheFrom": "y", "more": 1}}`,
			&Build{Dockerfile: ".devcontainer/Dockerfile", Context: ".", Target: "dev", Args: map[string]string{"A": "api", "N": "1", "B": "true", "C": "${containerEnv:X}"}}, "",
			"1 build.args.C: ${containerEnv:X}: variable\n1 build.args.D: unset\n1 build.args.E: type\n1 build.options: build_options\n1 build.cacheFrom: build_cache\n1 build.more: unknown\n1 image: build_image\n"},
		{"context of the Dockerfile", ".devcontainer/go/devcontainer.json", `{"build": {"dockerfile": "../../docker/Dockerfile"}}`, &Build{Dockerfile: "docker/Dockerfile", Context: "docker"}, "", ""},
		{"absolute", ".devcontainer/devcontainer.json", `{"build": {"dockerfile": "${localWorkspaceFolder}/Dockerfile", "context": "${localWorkspaceFolder}"}}`, &Build{Dockerfile: "Dockerfile", Context: "."}, "", ""},
		{"older", ".devcontainer.json", `{"context": "docker", "build": {"args": {"A": "1"}, "context": "other"}, "dockerFile": "Dockerfile"}`, &Build{Dockerfile: "Dockerfile", Context: "docker", Args: map[string]string{"A": "1"}}, "", ""},
		{"outside", ".devcontainer/devcontainer.json", `{"image": "x", "build": {"dockerfile": "../../Dockerfile"}}`, nil, "x", "1 build.dockerfile: build_path\n"},
		{"context outside", ".devcontainer.json", `{"build": {"dockerfile": "Dockerfile", "context": ".."}}`, nil, "", "1 build.context: build_path\n"},
		{"absolute outside", ".devcontainer.json", `{"dockerFile": "/etc/Dockerfile"}`, nil, "", "1 dockerFile: build_path\n"},
		{"no Dockerfile", "devcontainer.json", `{"image": "x", "build": {"args": {}}, "context": ".."}`, nil, "x", "1 context: type\n1 build: type\n"},
		{"context without older Dockerfile", "devcontainer.json", `{"build": {"dockerfile": "D"}, "context": "x"}`, &Build{Dockerfile: "D", Context: "."}, "", "1 context: type\n"},
		{"nothing", "devcontainer.json", `{"image": "x", "build": {}, "dockerFile": "", "context": null, "features": {}}`, nil, "x", ""},
		{"form", "devcontainer.json", `{"build": "Dockerfile", "features": []}`, nil, "", "1 features: type\n1 build: type\n"},
		{"Gitpod", GitpodFile, "image:\n  file: docker/Dockerfile\n  context: .\n", &Build{Dockerfile: "docker/Dockerfile", Context: "."}, "", ""},
		{"Gitpod outside", GitpodFile, "image:\n  file: ../Dockerfile\n", nil, "", "2 image.file: build_path\n"},
	} {
		e, err := Parse(test.file, []byte(test.content), builder)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if d := cmp.Diff(test.want, e.Build); d != "" || e.Image != test.image {
			t.Errorf("%s: %s %s", test.name, e.Image, d)
		}
		if d := cmp.Diff(test.ignored, listed(e.Ignored)); d != "" {
			t.Errorf("%s: %s", test.name, d)
		}
		if without, err := Parse(test.file, []byte(test.content), here); err != nil || without.Build != nil || len(without.Features) > 0 {
			t.Errorf("%s: %+v, %v", test.name, without, err)
		}
	}
}

func TestFeatures(t *testing.T) {
	t.Parallel()
	e, err := Parse(".devcontainer/devcontainer.json", []byte(`{"image": "x", "features": {
		"ghcr.io/Devcontainers/features/go:1": {"version": "1.26", "tools": false, "n": 1, "x": []},
		"ghcr.io/a/b/node": "22",
		"r.example.com:5000/a/c@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef": true,
		"ghcr.io/a/off:1": false,
		"./local": {},
		"../tools/x": null,
		"../tools/y": {"p": "${containerEnv:P}"},
		"../../out": {},
		"https://example.com/devcontainer-feature-x.tgz": {},
		"node": {}, "a/b/c": {}, "ghcr.io/A b": {},
		"ghcr.io/a/form": [1]
	},
	"overrideFeatureInstallOrder": ["ghcr.io/a/b/node", "./local", "ghcr.io/devcontainers/features/go:1", "java", 3]}`), builder)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]Feature{
		{Reference: "ghcr.io/devcontainers/features/go:1", Options: map[string]string{"version": "1.26", "tools": "false", "n": "1"}},
		{Reference: "ghcr.io/a/b/node", Options: map[string]string{"version": "22"}},
		{Reference: "r.example.com:5000/a/c@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
		{Reference: ".devcontainer/local", Local: true},
		{Reference: "tools/y", Local: true, Options: map[string]string{"p": "${containerEnv:P}"}},
	}, e.Features); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"ghcr.io/a/b/node", "./.devcontainer/local", "ghcr.io/devcontainers/features/go"}, e.FeatureOrder); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(`2 features.ghcr.io/Devcontainers/features/go:1.x: type
8 features.../tools/y.p: ${containerEnv:P}: variable
9 features.../../out: build_path
10 features.https://example.com/devcontainer-feature-x.tgz: feature_archive
11 features.node: feature_name
11 features.a/b/c: feature_name
11 features.ghcr.io/A b: feature_name
12 features.ghcr.io/a/form: type
14 overrideFeatureInstallOrder: type
14 overrideFeatureInstallOrder: java: feature_name
`, listed(e.Ignored)); d != "" {
		t.Error(d)
	}
}

func TestParseFeature(t *testing.T) {
	t.Parallel()
	got, err := ParseFeature([]byte(`{
	// A Feature.
	"id": "go", "version": "1.2.3", "name": "Go ${x}", "description": "d", "documentationURL": "u", "keywords": ["k"], "deprecated": true, "init": true,
	"options": {"version": {"type": "string", "default": "latest", "proposals": ["1"]}, "tools": {"type": "boolean", "default": true}, "mode": {"type": "string", "enum": ["a", "b"], "default": "a"}},
	"containerEnv": {"GOROOT": "/usr/local/go", "PATH": "/usr/local/go/bin:${PATH}", "A": "\"${GOROOT}\" \\ $x", "1": "x", "L": "a\nb"},
	"dependsOn": {"ghcr.io/a/b:1": {"x": true}, "./c": {}},
	"installsAfter": ["ghcr.io/a/common", "common"],
	"legacyIds": ["golang"], "currentId": "go2",
	"onCreateCommand": "make ${containerWorkspaceFolder}",
	"postStartCommand": {"a": "x", "b": ["y", "z"]},
	"postAttachCommand": ["v"],
	"customizations": {"vscode": {"extensions": ["golang.go"], "settings": {"a": "${devcontainerId}"}}, "other": {"x": 1}},
	"mounts": [{"source": "a", "target": "/a", "type": "volume"}], "privileged": true, "capAdd": ["SYS_PTRACE"], "securityOpt": ["seccomp=unconfined"],
	"entrypoint": "/init.sh", "extra": 1
}`), ".devcontainer/devcontainer.json", here, "/home/coder/project/api/cmd")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(`5 features.go.containerEnv.1: env_name
5 features.go.containerEnv.L: type
7 features.go.installsAfter: common: feature_name
12 features.go.customizations.other: other_tool
13 features.go.mounts: mounts
13 features.go.privileged: rights
13 features.go.capAdd: rights
13 features.go.securityOpt: rights
14 features.go.entrypoint: override_command
14 features.go.extra: unknown
`, listed(got.Ignored)); d != "" {
		t.Error(d)
	}
	got.Ignored = nil
	if d := cmp.Diff(Metadata{
		ID:        "go",
		Options:   map[string]Option{"version": {Default: "latest"}, "tools": {Default: "true"}, "mode": {Default: "a", Enum: []string{"a", "b"}}},
		Env:       []Variable{{"GOROOT", "/usr/local/go"}, {"PATH", "/usr/local/go/bin:${PATH}"}, {"A", `"${GOROOT}" \ $x`}},
		DependsOn: []Feature{{Reference: "ghcr.io/a/b:1", Options: map[string]string{"x": "true"}}, {Reference: ".devcontainer/c", Local: true}},
		// A name without a registry is not valid.
		InstallsAfter: []string{"ghcr.io/a/common"}, OtherIDs: []string{"golang", "go2"},
		Scripts: []Script{
			{OnCreate, []Command{{Name: "go", Shell: "make /home/coder/project/api/cmd"}}},
			{PostStart, []Command{{Name: "go.a", Shell: "x"}, {Name: "go.b", Args: []string{"y", "z"}}}},
			{PostAttach, []Command{{Name: "go", Args: []string{"v"}}}},
		},
		Extensions: []string{"golang.go"}, Settings: map[string]any{"a": "w1"},
	}, got); d != "" {
		t.Error(d)
	}
}

func TestHostileFeatures(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ content, want string }{
		"large":           {`{"id": "` + strings.Repeat("x", MaxBytes) + `"}`, "has more than 1048576 bytes"},
		"deep":            {`{"id": "a", "options": ` + strings.Repeat("[", 40), "levels deep"},
		"many":            {`{"id": "a", "keywords": [` + strings.Repeat("0,", maxValues) + `]}`, "more than 20000 values"},
		"no id":           {`{}`, "no valid id"},
		"id with a path":  {`{"id": "../x"}`, "no valid id"},
		"long id":         {`{"id": "` + strings.Repeat("x", 200) + `"}`, "no valid id"},
		"id with a line":  {`{"id": "a\nRUN"}`, "no valid id"},
		"list":            {`[]`, "no properties"},
		"archive":         {`{"id": "a", "dependsOn": {"https://example.com/x.tgz": {}}}`, "neither in a registry nor in the repository"},
		"out of the repo": {`{"id": "a", "dependsOn": {"../../x": {}}}`, "neither in a registry nor in the repository"},
	} {
		if _, err := ParseFeature([]byte(test.content), ".devcontainer/devcontainer.json", here, here.Repository); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m, err := ParseFeature([]byte(`{"id": "a", "containerEnv": {"A": "`+strings.Repeat("x", maxVariable+1)+`"}}`), "devcontainer.json", here, here.Repository)
	if err != nil || len(m.Env) > 0 || listed(m.Ignored) != "1 features.a.containerEnv.A: type\n" {
		t.Errorf("%v, %+v", err, m.Ignored)
	}
}

func FuzzParseFeature(f *testing.F) {
	f.Add([]byte(`{"id": "a", "options": {"v": {"default": true, "enum": ["x"]}}, "containerEnv": {"A": "${B}"}, "dependsOn": {"ghcr.io/a/b:1": "1", "./x": {}}, "postStartCommand": {"a": ["b"]}}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		m, err := ParseFeature(content, ".devcontainer/devcontainer.json", here, here.Repository)
		if err != nil {
			return
		}
		for _, d := range m.DependsOn {
			if d.Local && (strings.HasPrefix(d.Reference, "..") || strings.HasPrefix(d.Reference, "/")) {
				t.Errorf("%q is not in the repository", d.Reference)
			}
		}
		for _, v := range m.Env {
			if strings.Contains(v.Value, "\n") || !validVariable(v.Name) {
				t.Errorf("%+v is no line of a Dockerfile", v)
			}
		}
	})
}
