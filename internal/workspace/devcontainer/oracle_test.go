package devcontainer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"codehub/internal/testing/harness"
)

// TestShapesMatchCLI compares what is read of published shapes with what the reference
// implementation reads: the npm package @devcontainers/cli, which scripts/setup.sh installs.
func TestShapesMatchCLI(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(root, "internal/workspace/devcontainer/testdata/node_modules/@devcontainers/cli/devcontainer.js")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("no devcontainer CLI for tests: run scripts/setup.sh verify (%v)", err)
	}
	for name, content := range shapes {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "api")
			if err := os.MkdirAll(filepath.Join(dir, ".devcontainer"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, ".devcontainer", "devcontainer.json"), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
			// It asks Docker whether there is a container: there is none.
			out, err := exec.Command("node", program, "read-configuration", "--workspace-folder", dir, "--docker-path", "true").CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			var theirs struct {
				Configuration map[string]any `json:"configuration"`
				Workspace     struct {
					Folder string `json:"workspaceFolder"`
				} `json:"workspace"`
			}
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &theirs); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			compare(t, content, dir, theirs.Workspace.Folder, theirs.Configuration, false)
			compare(t, content, dir, theirs.Workspace.Folder, theirs.Configuration, true)
		})
	}
}

// compare compares what is read of a file with the configuration that the CLI has read.
func compare(t *testing.T, content, dir, folder string, theirs map[string]any, builds bool) {
	t.Helper()
	e, err := parse(".devcontainer", []byte(content), Place{Repository: dir, ID: "the-id", User: "vscode", Builds: builds}, func(string, string) (string, bool) { return folder, true })
	if err != nil {
		t.Fatal(err)
	}
	ours := map[string]any{}
	put := func(name string, value any) {
		var plain any
		b, err := json.Marshal(value)
		if err == nil {
			err = json.Unmarshal(b, &plain)
		}
		if err != nil {
			t.Fatal(err)
		}
		ours[name] = plain
	}
	put("name", e.Name)
	put("image", e.Image)
	put("containerEnv", e.Env)
	put("remoteEnv", e.RemoteEnv)
	for _, h := range hooks {
		put(string(h), nil)
	}
	for _, s := range e.Scripts {
		form := func(c Command) any {
			if c.Args != nil {
				return c.Args
			}
			return c.Shell
		}
		if s.Commands[0].Name == "" {
			put(string(s.Hook), form(s.Commands[0]))
			continue
		}
		all := map[string]any{}
		for _, c := range s.Commands {
			all[c.Name] = form(c)
		}
		put(string(s.Hook), all)
	}
	put("vscode.extensions", e.Extensions)
	put("vscode.settings", e.Settings)
	put("secrets", names(e.Secrets))
	put("cpus", e.Needs.CPUs)
	build, features := cmp.Or(e.Build, &Build{}), map[string]any{}
	put("dockerfile", build.Dockerfile)
	put("args", build.Args)
	put("target", build.Target)
	for _, f := range e.Features {
		options := map[string]any{}
		for name, value := range f.Options {
			options[name] = value
		}
		features[f.Reference] = options
	}
	put("features", features)
	var order []string
	for _, name := range e.FeatureOrder {
		order = append(order, strings.TrimPrefix(name, "./"))
	}
	put("overrideFeatureInstallOrder", order)

	vscode, _ := member(theirs, "customizations", "vscode").(map[string]any)
	want := map[string]any{
		"name": theirs["name"], "image": theirs["image"], "containerEnv": theirs["containerEnv"], "remoteEnv": theirs["remoteEnv"],
		"vscode.settings": vscode["settings"], "cpus": member(theirs, "hostRequirements", "cpus"),
	}
	if env, ok := theirs["remoteEnv"].(map[string]any); ok {
		for name, value := range env {
			if value == nil {
				delete(env, name) // listed: ReasonUnset
			}
		}
	}
	var extensions []any
	list, _ := vscode["extensions"].([]any)
	for _, x := range list {
		if !strings.HasPrefix(x.(string), "-") { // listed: ReasonNoRemoval
			extensions = append(extensions, x)
		}
	}
	want["vscode.extensions"] = extensions
	secrets, _ := theirs["secrets"].(map[string]any)
	var asked []any
	for name := range secrets {
		asked = append(asked, name)
	}
	slices.SortFunc(asked, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
	want["secrets"] = asked
	if builds {
		file, _ := cmp.Or(theirs["dockerFile"], member(theirs, "build", "dockerfile")).(string)
		if file != "" {
			want["dockerfile"] = path.Join(".devcontainer", file)
		}
		want["args"], want["target"] = member(theirs, "build", "args"), member(theirs, "build", "target")
		all, order := map[string]any{}, []any{}
		named := func(id string) string { // a path from the repository, without capitals
			if strings.HasPrefix(id, "./") {
				return path.Join(".devcontainer", id)
			}
			return strings.ToLower(id)
		}
		given, _ := theirs["features"].(map[string]any)
		for id, value := range given {
			options := map[string]any{}
			switch value := value.(type) {
			case string:
				options["version"] = value
			case map[string]any:
				for name, v := range value {
					options[name] = fmt.Sprint(v)
				}
			}
			all[named(id)] = options
		}
		list, _ := theirs["overrideFeatureInstallOrder"].([]any)
		for _, id := range list {
			order = append(order, named(id.(string)))
		}
		want["features"], want["overrideFeatureInstallOrder"] = all, order
	}
	for _, h := range hooks {
		want[string(h)] = theirs[string(h)]
	}
	for name, value := range ours {
		if empty(value) && empty(want[name]) {
			continue
		}
		if d := gocmp.Diff(want[name], value); d != "" {
			t.Errorf("%s: the CLI reads (-), codehub (+):\n%s", name, d)
		}
	}
	// Nothing that they read is dropped silently.
	for key, value := range theirs {
		_, read := ours[key]
		if key == "features" || key == "overrideFeatureInstallOrder" {
			read = builds
		}
		read = read || builds && slices.Contains([]string{"build", "dockerFile", "context"}, key)
		read = read || slices.Contains([]string{"$schema", "configFilePath", "customizations", "hostRequirements", "init", "workspaceFolder", "forwardPorts", "appPort", "portsAttributes", "remoteUser", "containerUser", "secrets"}, key)
		if !read && !empty(value) && value != true && !slices.ContainsFunc(e.Ignored, func(i Ignored) bool { return i.Property == key || strings.HasPrefix(i.Property, key+".") }) {
			t.Errorf("%s is neither honoured nor listed", key)
		}
	}
	for _, port := range e.Ports {
		if a, _ := member(theirs, "portsAttributes", itoa(port.Port)).(map[string]any); a != nil && a["label"] != port.Label {
			t.Errorf("port %d: %v, want %v", port.Port, port.Label, a["label"])
		}
	}
	if user, _ := theirs["remoteUser"].(string); user != "" && user != e.User {
		t.Errorf("user %q, want %q", e.User, user)
	}
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

func member(of map[string]any, names ...string) any {
	var v any = of
	for _, name := range names {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case float64:
		return v == 0
	case bool:
		return !v
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

func names(list []Secret) []string {
	var out []string
	for _, s := range list {
		out = append(out, s.Name)
	}
	return out
}
