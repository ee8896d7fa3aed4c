package inside_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// described returns an agent whose workspace has a repository with these files.
func described(t *testing.T, files map[string]string) (a awaiting, repo string) {
	t.Helper()
	a = await(t)
	repo = filepath.Join(a.home, "project", "api")
	files["README"] = "x"
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(repo, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(repo, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return a, repo
}

// settle has the agent look into the repository.
func (a awaiting) settle(t *testing.T) agent.StepStatus {
	t.Helper()
	return a.cloned(t, workspace.Repository{URL: "https://git.example/api.git"})
}

// descriptions returns the names of what the agent hands out, with the content or the problem.
func (a awaiting) descriptions(t *testing.T) (list []string, more bool) {
	t.Helper()
	d, err := a.Descriptions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Files {
		text := fmt.Sprintf("%s %s %q", f.Folder, f.Name, f.Content)
		if f.Problem != "" {
			text = f.Folder + " " + f.Name + " " + f.Problem
		}
		list = append(list, text)
	}
	return list, d.More
}

func TestDescriptions(t *testing.T) {
	t.Parallel()
	a, repo := described(t, map[string]string{
		".devcontainer/devcontainer.json": "{1}", ".devcontainer.json": "{2}", ".devcontainer/b/devcontainer.json": "{4}", ".devcontainer/a/devcontainer.json": "{3}",
		".devcontainer/c/other.json": "x", ".devcontainer/a/deep/devcontainer.json": "x", ".gitpod.yml": "image: x",
	})
	if list, _ := a.descriptions(t); list != nil {
		t.Errorf("before the clone: %v", list)
	}
	if st := a.settle(t); st.State != agent.StepSkipped || !st.Described {
		t.Errorf("%+v", st)
	}
	want := []string{
		`project/api .devcontainer/devcontainer.json "{1}"`, `project/api .devcontainer.json "{2}"`,
		`project/api .devcontainer/a/devcontainer.json "{3}"`, `project/api .devcontainer/b/devcontainer.json "{4}"`,
	}
	list, more := a.descriptions(t)
	if d := cmp.Diff(want, list); d != "" || more {
		t.Error(d, more)
	}
	// They are read when they are asked for.
	if err := os.RemoveAll(filepath.Join(repo, ".devcontainer")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(repo, ".devcontainer.json")); err != nil {
		t.Fatal(err)
	}
	if list, _ := a.descriptions(t); fmt.Sprint(list) != `[project/api .gitpod.yml "image: x"]` {
		t.Errorf("%q", list)
	}
}

func TestDescriptionsOfHostileRepository(t *testing.T) {
	t.Parallel()
	a, repo := described(t, map[string]string{".devcontainer.json": strings.Repeat("x", 10<<20), ".devcontainer/inside/devcontainer.json": "{in}"})
	outside := filepath.Join(a.home, "secret")
	if err := os.WriteFile(outside, []byte("{secret}"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := func(name string) string {
		t.Helper()
		path := filepath.Join(repo, ".devcontainer", name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(path, "devcontainer.json")
	}
	for name, err := range map[string]error{
		"link":     os.Symlink(outside, dir("absolute-link")),
		"relative": os.Symlink("../../../../secret", dir("relative-link")),
		"within":   os.Symlink("../inside/devcontainer.json", dir("within")),
		"pipe":     unix.Mkfifo(dir("pipe"), 0o600),
		"folder":   os.Mkdir(dir("folder"), 0o755),
		"closed":   os.WriteFile(dir("zz"), []byte("{z}"), 0o644),
		"parent":   os.Symlink(filepath.Dir(outside), filepath.Join(repo, ".devcontainer", "out")),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	if st := a.settle(t); !st.Described {
		t.Errorf("%+v", st)
	}
	list, more := a.descriptions(t)
	const at = "project/api .devcontainer/"
	want := []string{
		"project/api .devcontainer.json long", at + "absolute-link/devcontainer.json unreadable", at + "folder/devcontainer.json kind", at + `inside/devcontainer.json "{in}"`,
		at + "out/devcontainer.json unreadable", at + "pipe/devcontainer.json kind", at + "relative-link/devcontainer.json unreadable", at + `within/devcontainer.json "{in}"`,
		at + `zz/devcontainer.json "{z}"`,
	}
	if d := cmp.Diff(want, list); d != "" || more {
		t.Error(d, more)
	}
	// 10,000 folders, and files that are large together.
	for i := range 10_000 {
		if i < 40 {
			if err := os.WriteFile(dir(fmt.Sprintf("many-%05d", i)), []byte(strings.Repeat("y", 900<<10)), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if err := os.Mkdir(filepath.Join(repo, ".devcontainer", fmt.Sprintf("many-%05d", i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d, err := a.Descriptions(t.Context())
	size := 0
	for _, f := range d.Files {
		size += len(f.Content)
	}
	if err != nil || !d.More || len(d.Files) > agent.MaxDescriptions || size > agent.MaxDescriptionBytes {
		t.Errorf("%d files, %d bytes, %v, %v", len(d.Files), size, d.More, err)
	}
	// The folder of the repository is a link out of the home.
	if err := os.Rename(repo, repo+"2"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", repo); err != nil {
		t.Fatal(err)
	}
	if list, _ := a.descriptions(t); list != nil {
		t.Errorf("%v", list)
	}
}

// A repository without a description has none, and neither has one whose .devcontainer is a file.
func TestRepositoryWithoutDescription(t *testing.T) {
	t.Parallel()
	a, _ := described(t, map[string]string{".devcontainer": "x"})
	if st := a.settle(t); st.Described {
		t.Errorf("%+v", st)
	}
	if list, more := a.descriptions(t); list != nil || more {
		t.Errorf("%v, %v", list, more)
	}
}

// The variables of a setup may have others of the container in their values.
func TestSetupWithReferences(t *testing.T) {
	t.Parallel()
	a := await(t)
	if err := a.Setup(t.Context(), agent.Setup{Env: map[string]string{"OWN": "1"}, References: map[string]string{
		"PATH": "${containerEnv:PATH}:/more", "A": "${containerEnv:OWN}${containerEnv:MISSING:d:e}${containerEnv:MISSING}", "B": "$HOME ${HOME}",
	}}); err != nil {
		t.Fatal(err)
	}
	out, _, _ := run(t, a.Client, agent.Command{Args: []string{"env"}}, "")
	for _, want := range []string{"PATH=" + os.Getenv("PATH") + ":/more\n", "A=1d\n", "B=$HOME ${HOME}\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
}

// Settings that a start adds are changed and removed by later ones, except for those that the user
// changed.
func TestEditorSettings(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	file := filepath.Join(home, ".local/share/code-server/Machine/settings.json")
	start := func(given string) []agent.StepStatus {
		t.Helper()
		a := awaitIn(t, home)
		if err := a.Setup(t.Context(), agent.Setup{Env: map[string]string{"A": "1"}, EditorSettings: json.RawMessage(given)}); err != nil {
			t.Fatal(err)
		}
		return a.settled(t)
	}
	has := func(want string) {
		t.Helper()
		var got, wanted any
		if err := json.Unmarshal([]byte(read(t, file)), &got); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(want), &wanted); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(wanted, got); d != "" {
			t.Error(d)
		}
	}
	start(`{"a": 1, "b": {"c": [1]}}`)
	has(`{"a": 1, "b": {"c": [1]}}`)
	if err := os.WriteFile(file, []byte(`{"a": 9, "b": {"c": [1]}, "own": true}`), 0o644); err != nil {
		t.Fatal(err)
	}
	start(`{"a": 2, "b": {"c": [2]}, "d": "x"}`)
	has(`{"a": 9, "b": {"c": [2]}, "own": true, "d": "x"}`)
	start("")
	has(`{"a": 9, "own": true}`)
	// What is no JSON stays, and so does what is no file.
	if err := os.WriteFile(file, []byte("// mine\n{\"a\": 9}"), 0o644); err != nil {
		t.Fatal(err)
	}
	steps := start(`{"a": 1}`)
	if len(steps) != 1 || steps[0].Kind != agent.KindSettings || steps[0].State != agent.StepFailed || !strings.Contains(steps[0].Error, "comments") || read(t, file) != "// mine\n{\"a\": 9}" {
		t.Errorf("%+v", steps)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if steps := start(`{"a": 1}`); len(steps) != 1 || steps[0].State != agent.StepFailed {
		t.Errorf("%+v", steps)
	}
}
