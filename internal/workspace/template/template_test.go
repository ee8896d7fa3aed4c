package template_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
	"codehub/internal/workspace/template"
)

const whole = `# The team's API
name: api
title: {en: Backend API, ko: 백엔드 API}
description:
  en: |
    The API of the team.
    Ask the platform group.
icon: server
image: registry.example.com/dev/go:1.26
size: large
parameters:
  - {name: branch, default: main, pattern: '[\w./${}-]+'}
  - name: region
    title: Region
    type: choice
    options: [eu, us, "3"]
    default: eu
  - {name: debug, type: boolean}
  - {name: team}
env:
  GOFLAGS: -mod=readonly
  API_PORT: 3000
  TARGET: "${param.branch}@${param.region}/${param.team}"
  DEBUG: ${param.debug}
idle: {stop: 3h, archive: never}
backup: {interval: 30m, keep: "24h,7d"}
repositories:
  - {url: "https://git.example.com/${param.team}/api.git", branch: "${param.branch}", submodules: true}
  - url: git@git.example.com:team/web.git
    path: project/site
    depth: 5
scripts:
  create: |
    npm ci
    npm test
  start: npm start &
  timeout: 90s
ports: [{port: 3000, label: Web site, open: true}, {port: 5432}]
secrets: {required: [NPM_TOKEN]}
extensions: [golang.go, ms-python.python@2026.1.0]
groups: [platform, Data Team]
hidden: false
`

func parse(t *testing.T, name, text string) template.Template {
	t.Helper()
	out, err := template.Parse(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestParse(t *testing.T) {
	t.Parallel()
	stop, never, half := 3*3600, 0, 1800
	want := template.Template{
		Name: "api", Title: template.Text{"en": "Backend API", "ko": "백엔드 API"},
		Description: template.Text{"en": "The API of the team.\nAsk the platform group."},
		Icon:        "server", Image: "registry.example.com/dev/go:1.26", Size: "large",
		Env: map[string]string{"GOFLAGS": "-mod=readonly", "API_PORT": "3000", "TARGET": "${param.branch}@${param.region}/${param.team}", "DEBUG": "${param.debug}"},
		Parameters: []template.Parameter{
			{Name: "branch", Type: "string", Default: "main", Pattern: `[\w./${}-]+`},
			{Name: "region", Title: template.Text{"en": "Region"}, Type: "choice", Options: []string{"eu", "us", "3"}, Default: "eu"},
			{Name: "debug", Type: "boolean", Default: "false"},
			{Name: "team", Type: "string", Required: true},
		},
		Project: workspace.Project{Repositories: []workspace.Repository{
			{URL: "https://git.example.com/${param.team}/api.git", Branch: "${param.branch}", Submodules: true},
			{URL: "git@git.example.com:team/web.git", Path: "project/site", Depth: 5},
		}, Scripts: &workspace.Scripts{Create: "npm ci\nnpm test\n", Start: "npm start &", Timeout: 90}, Extensions: []string{"golang.go", "ms-python.python@2026.1.0"}, Ports: []workspace.ProjectPort{{Port: 3000, Label: "Web site", Open: true}, {Port: 5432}}, Secrets: []string{"NPM_TOKEN"}},
		Stop: &stop, Archive: &never, BackupInterval: &half, BackupKeep: "24h,7d", Groups: []string{"platform", "Data Team"},
	}
	got := parse(t, "api", whole)
	if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(template.Template{})); d != "" {
		t.Error(d)
	}
	if got.Line("size") != 10 || got.Line("env.API_PORT") != 22 || got.Line("repositories[1].depth") != 31 || got.Line("devcontainer") != 0 {
		t.Errorf("lines %d, %d, %d", got.Line("size"), got.Line("env.API_PORT"), got.Line("repositories[1].depth"))
	}
	if again := parse(t, "api", template.Format(got)); !same(got, again) {
		t.Errorf("written and read again: %s", cmp.Diff(got, again, cmpopts.IgnoreUnexported(template.Template{})))
	}
	// Fields without a value are as if they were absent.
	if got := parse(t, "empty", "title:\nenv:\nparameters: ~\ngroups:\nidle:\n"); !same(got, template.Template{Name: "empty"}) {
		t.Errorf("%+v", got)
	}
}

func same(a, b template.Template) bool {
	return cmp.Equal(a, b, cmpopts.IgnoreUnexported(template.Template{}), cmpopts.EquateEmpty())
}

// TestProblemsNameLineAndField: each mistake is reported with its line and its field, several
// at once.
func TestProblemsNameLineAndField(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                  "line 1: The template is empty",
		"# nothing\n":                       "line 1: The template is empty",
		"- go\n":                            "line 1: has to be fields",
		"title: a\n  b: c\n":                "line 2: This is not YAML",
		"title: [\n":                        "This is not YAML",
		"title: \xff":                       "line 1: The text is not valid UTF-8",
		"title: a\n---\ntitle: b\n":         "line 2: A template is one document",
		"title: go\nsize: a\nsize: b\n":     "line 3: size is given twice",
		"title: go\nrepos: []\n":            "line 2: repos is unknown; the fields are: backup, description, env, extensions, groups",
		"a: &x 1\nb: *x\n":                  "line 1: a is unknown",
		"title: &x go\n":                    "line 1: title has an anchor",
		"env: &x {A: b}\n":                  "line 1: env has an anchor",
		"name: other\n":                     `line 1: name is "other", but the file or address has the name "x"`,
		"title: {de: Leer}\n":               "line 1: title.de is unknown; the fields are: en, ko",
		"title: [a]\n":                      "line 1: title has to be fields",
		"title: " + strings.Repeat("a", 81): "title is longer than 80 characters",
		"title: \"a\\u202eb\"\n":            "title has a control character",
		"icon: rocket\n":                    `line 1: icon "rocket" is unknown; use one of: box, cpp`,
		"image: UPPER\n":                    `line 1: image "UPPER" is not an image reference`,
		"image: !!binary aGk=\n":            "line 1: image has to be text",
		"hidden: maybe\n":                   "line 1: hidden has to be true or false",
		"\nenv:\n  A: b\n  PATH: /bin\n":    "line 4: env.PATH is refused: the name PATH is reserved",
		"env:\n  A: [b]\n":                  "line 2: env.A has to be one value",
		"env:\n  A: ${param.b}\n":           `line 2: env.A names a parameter "b" that the template does not have`,
		"repositories: {url: a}\n":          "line 1: repositories has to be a list of repositories",
		"repositories: [~]\n":               "line 1: repositories[0] is empty",
		"repositories: [a]\n":               "line 1: repositories[0] has to be fields",
		"repositories: [{branch: a}]\n":     "line 1: repositories[0].url is required",
		"repositories:\n- url: ext::sh\n":   "line 2: repositories[0].url begins with https://",
		"repositories: [{uri: a}]\n":        "line 1: repositories[0].uri is unknown; the fields are: branch, depth, path, submodules, url",
		"repositories: [{url: 'git@h:a/b', depth: -1}]\n":                "repositories[0].depth has to be a number from 0 to 1000000",
		"repositories: [{url: 'git@h:a/b', branch: -c}]\n":               "repositories[0].branch is not the name of a branch or a tag",
		"repositories: [{url: 'git@h:a/b', path: .ssh}]\n":               "repositories[0].path is not a folder below the home",
		"repositories: [{url: 'https://u:p@h/a'}]\n":                     "repositories[0].url has a password or a token in it",
		"repositories:\n- url: git@h:a/b\n- {url: 'git@h:c/b'}\n":        "line 3: repositories[1].path is the folder of another repository",
		"repositories:\n- url: git@h:a/b\n- url: https://${param.h}/b\n": `line 3: repositories[1].url names a parameter "h"`,
		"repositories:\n- url: git@h:a/b\n  branch: ${param.h}\n":        `line 3: repositories[0].branch names a parameter "h"`,
		"scripts: npm ci\n":                     "line 1: scripts has to be fields",
		"scripts: {run: a}\n":                   "line 1: scripts.run is unknown; the fields are: create, start, timeout",
		"scripts: {create: [a]}\n":              "line 1: scripts.create has to be one value",
		"scripts: {create: \"a\\x00\"}\n":       "line 1: scripts.create has a control character",
		"scripts: {timeout: 1m}\n":              "line 1: scripts have a timeout, but neither create nor start",
		"scripts:\n  start: a\n  timeout: 2h\n": "line 3: scripts.timeout has to be a time from 1s to 1h",
		"scripts: {start: a, timeout: never}\n": "line 1: scripts.timeout has to be a time",
		"scripts: {create: " + strings.Repeat("a", workspace.MaxScript+1) + "}": "scripts.create is longer than 32768 bytes",
		"extensions: a.b\n":                          "line 1: extensions has to be a list",
		"extensions:\n- a.b\n- go\n":                 `line 3: extensions "go" is not the name of an extension`,
		"extensions: [--force]\n":                    `extensions "--force" is not the name of an extension`,
		"extensions: [/tmp/a.vsix]\n":                "is not the name of an extension",
		"extensions: [a.b, a.b]\n":                   `extensions has "a.b" twice`,
		"ports: [3000]\n":                            "line 1: ports[0] has to be fields",
		"ports: [{label: a}]\n":                      "line 1: ports[0].port must be between 1 and 65535",
		"ports: [{port: 70000}]\n":                   "line 1: ports[0].port has to be a number from 1 to 65535",
		"ports: [{port: 8080}]\n":                    "line 1: ports[0].port cannot be 8080, which is codehub's own",
		"ports:\n- port: 1\n- label: a\n  port: 1\n": "line 4: ports[1].port is given twice",
		"ports: [{port: 1, open: x}]\n":              "line 1: ports[0].open has to be true or false",
		"secrets: [A]\n":                             "line 1: secrets has to be fields",
		"secrets: {needed: [A]}\n":                   "line 1: secrets.needed is unknown; the fields are: required",
		"secrets:\n  required:\n  - A\n  - PATH\n":   "line 4: secrets.required is refused: the name PATH is reserved",
		"env: [A=b]\n":                               "line 1: env has to be fields",
		"idle: {stop: 3}\n":                          "line 1: idle.stop has to be a time like 30m",
		"idle: {stop: -3h}\n":                        "idle.stop has to be a time",
		"idle: {archive: 99999d}\n":                  "idle.archive has to be a time",
		"backup: {interval: 5m}\n":                   "line 1: backup.interval has to be at least 10m",
		"backup: {interval: often}\n":                "backup.interval has to be a time",
		"backup: {keep: 24}\n":                       "backup.keep has to be a rule like 24h",
		"idle: {sleep: 3h}\n":                        "line 1: idle.sleep is unknown; the fields are: archive, stop",
		"groups: platform\n":                         "line 1: groups has to be a list",
		"groups:\n- a\n- a\n":                        `line 3: groups has "a" twice`,
		"parameters: {name: a}\n":                    "line 1: parameters has to be a list",
		"parameters: [a]\n":                          "line 1: parameters[0] has to be fields",
		"parameters: [~]\n":                          "line 1: parameters[0] is empty",
		"parameters: [{name: A}]\n":                  "line 1: parameters[0].name has to be of lowercase",
		"parameters: [{name: a},{name: a}]":          `parameters[1].name "a" is given twice`,
		"parameters: [{name: a, type: int}]":         `parameters[0].type "int" is unknown; use one of: string, choice, boolean`,
		"parameters: [{name: a, type: choice}]\n":    "parameters[0].options has no entry",
		"parameters: [{name: a, options: [b]}]\n":    "parameters[0].options is only for parameters of type choice",
		"parameters: [{name: a, type: choice, options: [b], default: c}]": "parameters[0].default is refused: the parameter a is one of: b",
		"parameters: [{name: a, pattern: '('}]\n":                         "parameters[0].pattern is not a regular expression",
		"parameters: [{name: a, pattern: '[)(]', default: b}]\n":          "parameters[0].default is refused: the value of the parameter a does not match",
		"parameters:\n- name: a\n  pattern: ')|('\n":                      "line 3: parameters[0].pattern is not a regular expression",
		"parameters: [{name: a, type: boolean, pattern: b}]\n":            "parameters[0].pattern is only for parameters of type string",
		"parameters: [{name: a, type: boolean, default: yes}]\n":          "parameters[0].default is refused: the parameter a is true or false",
	} {
		_, err := template.Parse("x", []byte(text))
		var list template.Problems
		if !errors.As(err, &list) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q\n is %v\nwant %s", text, err, want)
		}
	}
	_, err := template.Parse("x", []byte("size: [a]\nicon: b\nhidden: c\n"))
	var list template.Problems
	if !errors.As(err, &list) || len(list) != 3 || list[0].Line != 1 || list[2].Field != "hidden" {
		t.Errorf("%v", err)
	}
	if _, err := template.Parse("Not A Name", []byte("title: a")); err == nil || !strings.Contains(err.Error(), "name has to be") {
		t.Errorf("%v", err)
	}
	if _, err := template.Parse("x", []byte("title: a # "+strings.Repeat("a", template.MaxBytes))); err == nil || !strings.Contains(err.Error(), "longer than 65536 bytes") {
		t.Errorf("%v", err)
	}
}

func TestUse(t *testing.T) {
	t.Parallel()
	api := parse(t, "api", whole)
	use, err := api.Use(map[string]string{"team": "core", "debug": "true", "branch": "a/${param.team}"}, "default/image")
	if err != nil {
		t.Fatal(err)
	}
	stop, never := 3*3600, 0
	want := workspace.TemplateUse{
		Name: "api", Version: api.Version(), Parameters: map[string]string{"branch": "a/${param.team}", "region": "eu", "debug": "true", "team": "core"},
		Settings: workspace.TemplateSettings{Image: "registry.example.com/dev/go:1.26", Size: "large", StandbyTTL: &stop, ArchiveTTL: &never, BackupInterval: new(1800), BackupKeep: "24h,7d",
			// A value is never replaced again.
			Env: map[string]string{"GOFLAGS": "-mod=readonly", "API_PORT": "3000", "TARGET": "a/${param.team}@eu/core", "DEBUG": "true"},
			Project: &workspace.Project{Repositories: []workspace.Repository{
				{URL: "https://git.example.com/core/api.git", Branch: "a/${param.team}", Submodules: true},
				{URL: "git@git.example.com:team/web.git", Path: "project/site", Depth: 5},
			}, Scripts: &workspace.Scripts{Create: "npm ci\nnpm test\n", Start: "npm start &", Timeout: 90}, Extensions: []string{"golang.go", "ms-python.python@2026.1.0"}, Ports: []workspace.ProjectPort{{Port: 3000, Label: "Web site", Open: true}, {Port: 5432}}, Secrets: []string{"NPM_TOKEN"}}},
	}
	if d := cmp.Diff(want, use); d != "" {
		t.Error(d)
	}
	for reason, values := range map[string]map[string]string{
		template.Missing:   {},
		template.Unknown:   {"team": "a", "other": "b"},
		template.NoOption:  {"team": "a", "region": "4"},
		template.NoBoolean: {"team": "a", "debug": "yes"},
		template.Mismatch:  {"team": "a", "branch": "a b"},
		template.TooLong:   {"team": strings.Repeat("a", template.MaxValue+1)},
		template.BadText:   {"team": "a\nb"},

		template.NoRepository: {"team": "a b"},
		template.NoBranch:     {"team": "a", "branch": "..a"},
	} {
		var e *template.ValueError
		if _, err := api.Use(values, ""); !errors.As(err, &e) || e.Reason != reason || e.Error() == "" {
			t.Errorf("%s: %v", reason, err)
		}
	}
	if _, err := api.Use(map[string]string{"team": ""}, ""); err == nil {
		t.Error("a required parameter is empty")
	}
	// Each reference is short; their values are not.
	long := parse(t, "long", "parameters: [{name: a}]\nenv: {A: '"+strings.Repeat("${param.a}", 20)+"'}\n")
	var e *environ.Error
	if _, err := long.Use(map[string]string{"a": strings.Repeat("x", 1000)}, ""); !errors.As(err, &e) || e.Reason != environ.Long {
		t.Errorf("a long value: %v", err)
	}
	if d := cmp.Diff(map[string]string{"branch": "a", "team": "b"}, api.Kept(map[string]string{"branch": "a", "team": "b", "region": "4", "gone": "c"})); d != "" {
		t.Error(d)
	}
}

// TestVersion: what workspaces get is a version; how it is shown is not.
func TestVersion(t *testing.T) {
	t.Parallel()
	of := func(text string) string { return parse(t, "x", text).Version() }
	first := of("env: {A: b}")
	for _, text := range []string{"title: X\nicon: go\ngroups: [a]\nhidden: true\nenv: {A: b}", "# a comment\nenv:\n  A: \"b\"\n"} {
		if of(text) != first {
			t.Errorf("%q is another version", text)
		}
	}
	seen := map[string]bool{first: true}
	for _, text := range []string{"", "env: {A: c}", "env: {A: b}\nsize: a", "env: {A: b}\nimage: a", "env: {A: b}\nidle: {stop: 1h}", "env: {A: b}\nidle: {archive: 1h}", "env: {A: b}\nbackup: {interval: 1h}", "env: {A: b}\nbackup: {keep: 7d}", "env: {A: b}\nparameters: [{name: a}]", "env: {A: b}\nparameters: [{name: a, default: ''}]", "env: {A: b}\nscripts: {create: a}", "env: {A: b}\nsecrets: {required: [A]}", "env: {A: b}\nports: [{port: 1}]", "env: {A: b}\nports: [{port: 1, label: a}]", "env: {A: b}\nextensions: [a.b]", "env: {A: b}\nscripts: {start: a}", "env: {A: b}\nscripts: {start: a, timeout: 1m}", "env: {A: b}\nrepositories: [{url: 'git@h:a'}]", "env: {A: b}\nrepositories: [{url: 'git@h:a', depth: 1}]"} {
		v := of(text + "\ntitle: a")
		if seen[v] {
			t.Errorf("%q is no other version", text)
		}
		seen[v] = true
	}
}

// TestRepositoriesOfParameters: the values of parameters may lead to the same folder, and never to an
// option of git.
func TestRepositoriesOfParameters(t *testing.T) {
	t.Parallel()
	both := parse(t, "x", "parameters: [{name: a}, {name: b}]\nrepositories: [{url: '${param.a}'}, {url: 'git@h:${param.b}'}]\n")
	for want, values := range map[string]map[string]string{
		"":                    {"a": "https://h/one", "b": "two"},
		template.SameFolder:   {"a": "https://h/one", "b": "x/one.git"},
		template.NoRepository: {"a": "--upload-pack=id", "b": "two"},
	} {
		use, err := both.Use(values, "")
		var e *template.ValueError
		if errors.As(err, &e); want == "" && (err != nil || len(use.Settings.Project.Repositories) != 2) || want != "" && (e == nil || e.Reason != want || e.Name != "a" || e.Error() == "") {
			t.Errorf("%s: %+v, %v", want, use, err)
		}
	}
	d := template.Diff(both, parse(t, "x", "repositories: [{url: 'git@h:a', branch: b, depth: 2, submodules: true}]\nscripts: {create: a, timeout: 60s}"))
	want := []template.Change{
		{Field: "repositories[0]", From: "${param.a}", To: "git@h:a, branch b, depth 2, submodules"}, {Field: "repositories[1]", From: "git@h:${param.b}"},
		{Field: "scripts.create", To: "a"}, {Field: "scripts.timeout", To: "1m"},
		{Field: "parameters.a", From: "string, required"}, {Field: "parameters.b", From: "string, required"},
	}
	if d := cmp.Diff(want, d); d != "" {
		t.Error(d)
	}
}

func TestBuiltIn(t *testing.T) {
	t.Parallel()
	var names []string
	for _, b := range template.BuiltIn() {
		names = append(names, b.Name)
		if b.Title.In("ko") == "" || b.Description["en"] == "" || b.Description["ko"] == "" || b.Icon == "" || b.Image != "" {
			t.Errorf("%+v", b)
		}
		if _, err := b.Use(nil, "an/image"); err != nil {
			t.Errorf("%s: %v", b.Name, err)
		}
	}
	if want := []string{"empty", "go", "python", "node", "java", "cpp", "data"}; !cmp.Equal(names, want) {
		t.Errorf("%v", names)
	}
}

// TestOfWorkspace: a template of a workspace has no value of a variable that its owner set.
func TestOfWorkspace(t *testing.T) {
	t.Parallel()
	hour := 3600
	project := workspace.Project{Repositories: []workspace.Repository{{URL: "https://git.example.com/a.git", Depth: 3}}, Scripts: &workspace.Scripts{Create: "a\n\tb: c # d\n", Timeout: 5}}
	w := workspace.Workspace{
		Project: &project,
		Name:    "My: work", Description: "two\nlines", ImageRef: "python:3", Size: "large", StandbyTTL: &hour, BackupInterval: &hour, BackupKeep: "7d",
		Env:      map[string]string{"A": "1", "TOKEN": "hidden", "B": "changed"},
		Template: &workspace.TemplateUse{Settings: workspace.TemplateSettings{Env: map[string]string{"A": "1", "B": "2"}}},
	}
	text := template.Of("mine", w)
	got := parse(t, "mine", text)
	want := template.Template{Name: "mine", Title: template.Text{"en": "My: work"}, Description: template.Text{"en": "two\nlines"}, Image: "python:3", Size: "large", Stop: &hour, BackupInterval: &hour, BackupKeep: "7d", Env: map[string]string{"A": "1"}, Project: project}
	if !same(want, got) {
		t.Error(cmp.Diff(want, got, cmpopts.IgnoreUnexported(template.Template{})))
	}
	if strings.Contains(text, "hidden") || strings.Contains(text, "changed") || !strings.Contains(text, "#   TOKEN:") {
		t.Error(text)
	}
}

// FuzzParse: a template that is read can be written, and is the same when it is read again. Each
// problem names a line that the text has.
func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	for _, b := range template.BuiltIn() {
		f.Add([]byte(b.Text))
	}
	f.Add([]byte("title: &a [*a]\nenv: {<<: *a}"))
	f.Add([]byte("title: \"\\x85\"\nparameters: [{name: a, pattern: '\\', default: ' '}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := template.Parse("api", text)
		var list template.Problems
		switch {
		case errors.As(err, &list):
			for _, p := range list {
				if p.Line < 1 || p.Line > 2+strings.Count(string(text), "\n")+strings.Count(string(text), "\r")+strings.Count(string(text), "\u0085")+strings.Count(string(text), "\u2028")+strings.Count(string(text), "\u2029") || p.Text == "" {
					t.Errorf("%+v", p)
				}
			}
			return
		case err != nil:
			t.Fatalf("%v", err)
		}
		again, err := template.Parse("api", []byte(template.Format(got)))
		if err != nil || !same(got, again) || got.Version() != again.Version() {
			t.Errorf("%v\n%s\n%s", err, template.Format(got), cmp.Diff(got, again, cmpopts.IgnoreUnexported(template.Template{}), cmpopts.EquateEmpty()))
		}
		if use, err := got.Use(nil, "an/image"); err == nil && environ.Check(use.Settings.Env) != nil {
			t.Errorf("%v", use)
		}
	})
}

// TestHostileTemplates: a template that is nested or refers to itself is refused at once.
func TestHostileTemplates(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nested lists":   "env: " + strings.Repeat("[", 30000),
		"nested fields":  "env: " + strings.Repeat("{a: ", 15000),
		"closed nesting": "env: {A: " + strings.Repeat("[", 30000) + strings.Repeat("]", 30000) + "}",
		"keys of keys":   "env: " + strings.Repeat("? ", 30000),
		"laughs":         "a: &a [b,b]\nb: &b [*a,*a]\nc: &c [*b,*b]\nenv: *c\n",
		"merge":          "a: &a {A: b}\nenv: {<<: *a}\n",
	} {
		began := time.Now()
		if _, err := template.Parse("x", []byte(text)); err == nil {
			t.Errorf("%s is a template", name)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
}
