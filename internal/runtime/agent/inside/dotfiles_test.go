package inside_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

func dotfiles(url string) agent.Step {
	return agent.Step{Name: url, Once: "dotfiles", Dotfiles: &workspace.Repository{URL: url}}
}

// again applies dotfiles once more.
func (a awaiting) again(t *testing.T, step agent.Step) agent.StepStatus {
	t.Helper()
	step.Again = true
	if _, err := a.RunStep(t.Context(), step); err != nil {
		t.Fatal(err)
	}
	steps := a.settled(t)
	return steps[len(steps)-1]
}

func TestDotfilesRunTheFirstScript(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	for name, files := range map[string]map[string]string{
		"install.sh":       {"install.sh": "echo ran install.sh in $PWD", "install": "echo wrong", ".bashrc": "x", "setup.sh": "echo wrong"},
		"install":          {"install": "#!/bin/sh\necho ran install in $PWD", "install.sh/x": "", "bootstrap.sh": "echo wrong"},
		"script/bootstrap": {"script/bootstrap": "echo ran script/bootstrap in $PWD", "setup.sh": "echo wrong", "bootstrap": "-> ../../outside"},
		"script/setup":     {"script/setup": "[[ a == a ]] && echo ran script/setup in $PWD", "setup": "-> /bin/sh"},
	} {
		t.Run(strings.ReplaceAll(name, "/", "_"), func(t *testing.T) {
			t.Parallel()
			url := g.add(t, strings.ReplaceAll(name, "/", "_")+".git", files, "if [ -f install ]; then chmod +x install; git commit -qam mode; fi")
			a := await(t)
			st := a.setUp(t, dotfiles(url))[0]
			if st.State != agent.StepDone || !strings.Contains(st.Log, "ran "+name+" in "+filepath.Join(a.home, ".dotfiles")) || strings.Contains(st.Log, "wrong") {
				t.Errorf("%+v", st)
			}
			if _, err := os.Lstat(filepath.Join(a.home, ".bashrc")); err == nil {
				t.Error("linked all the same")
			}
		})
	}
}

func TestDotfilesAreLinked(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	url := g.add(t, "dot.git", map[string]string{
		".bashrc": "new", ".vimrc": "vim", ".profile": "-> .bashrc", ".gitconfig": "[user]", ".gitignore": "x", ".github/x": "x", "README.md": "x",
		".config/tool/a": "a", ".config/mine": "theirs", ".ssh/config": "host", ".vim/plugin": "p",
		".passwd": "-> /etc/passwd", ".up": "-> ../up", ".config/out": "-> ../../out", ".loop": "-> .loop", ".inner": "-> .vim", ".local": "-> .vim", ".dotfiles/x": "x",
	})
	a := await(t)
	for file, content := range map[string]string{".bashrc": "old", ".bashrc.before-dotfiles": "oldest", ".config/mine": "mine", ".config/other": "other", ".local/bin/x": "mine", ".inner/x": "x", "up": "up", "out": "out"} {
		path := filepath.Join(a.home, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	first := a.setUp(t, dotfiles(url))[0]
	if first.State != agent.StepDone || first.Kind != agent.KindDotfiles {
		t.Fatalf("%+v", first)
	}
	check := func() {
		t.Helper()
		for file, want := range map[string]string{
			".bashrc": "new", ".bashrc.before-dotfiles": "oldest", ".bashrc.before-dotfiles-2": "old", ".profile": "new", ".vimrc": "vim", ".gitconfig": "[user]",
			".config/tool/a": "a", ".config/mine": "theirs", ".config/mine.before-dotfiles": "mine", ".config/other": "other", ".local/bin/x": "mine", ".ssh/config": "host", ".vim/plugin": "p",
			".inner/plugin": "p", ".inner.before-dotfiles/x": "x", "up": "up", "out": "out",
		} {
			if got := read(t, filepath.Join(a.home, file)); got != want {
				t.Errorf("%s: %q", file, got)
			}
		}
		for _, file := range []string{".gitignore", ".github", "README.md", ".git", ".passwd", ".up", ".config/out", ".loop", ".dotfiles/x", ".bashrc.before-dotfiles-3"} {
			if _, err := os.Lstat(filepath.Join(a.home, file)); err == nil {
				t.Errorf("%s is there", file)
			}
		}
	}
	check()
	if info, err := os.Lstat(filepath.Join(a.home, ".ssh")); err != nil || info.Mode().Perm() != 0o700 || !info.IsDir() {
		t.Errorf("%v, %v", info, err)
	}
	if st := awaitIn(t, a.home).setUp(t, dotfiles(url))[0]; st.State != agent.StepSkipped {
		t.Errorf("%+v", st)
	}
	if st := a.again(t, dotfiles(url)); st.State != agent.StepDone {
		t.Errorf("%+v", st)
	}
	check()
}

func TestDotfilesAreAppliedAgain(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	url := g.add(t, "dot.git", map[string]string{".a": "1"})
	a := await(t)
	a.setUp(t, dotfiles(url))
	work := filepath.Join(t.TempDir(), "work")
	git := exec.Command("sh", "-c", "git clone -q "+url+" "+work+" && cd "+work+" && echo 2 > .b && git add . && git -c user.name=x -c user.email=x@x commit -qm two && git push -q "+filepath.Join(g.dir, "dot.git"))
	if out, err := git.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if st := a.again(t, dotfiles(url)); st.State != agent.StepDone || read(t, filepath.Join(a.home, ".b")) != "2\n" {
		t.Errorf("%+v", st)
	}
	if steps := a.settled(t); len(steps) != 1 {
		t.Errorf("%+v", steps)
	}
	// Another repository: the one before is kept.
	other := g.add(t, "other.git", map[string]string{".a": "other"})
	if st := a.again(t, dotfiles(other)); st.State != agent.StepDone || read(t, filepath.Join(a.home, ".a")) != "other" || read(t, filepath.Join(a.home, ".dotfiles.before-dotfiles/.a")) != "1" {
		t.Errorf("%+v", st)
	}
	if steps := a.settled(t); len(steps) != 1 {
		t.Errorf("Try again would apply the ones before: %+v", steps)
	}
	// Its own changes, which the clone conflicts with, are not lost.
	if out, err := exec.Command("sh", "-c", "cd "+a.home+"/.dotfiles && echo mine > .a && git -c user.name=x -c user.email=x@x commit -qam mine && cd "+work+
		" && git fetch -q "+other+" && git checkout -q FETCH_HEAD && git -c user.name=x -c user.email=x@x commit -q --allow-empty -m three && git push -q "+filepath.Join(g.dir, "other.git")+" HEAD:main").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if st := a.again(t, dotfiles(other)); st.State != agent.StepFailed || st.Reason != "git_pull" || read(t, filepath.Join(a.home, ".a")) != "mine\n" {
		t.Errorf("%+v", st)
	}
}

func TestDotfilesThatFail(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	url := g.add(t, "dot.git", map[string]string{"install.sh": "echo run >> ~/ran; test -e ~/ready"})
	runs := func(home string) int { return strings.Count(read(t, filepath.Join(home, "ran")), "run") }
	a := await(t)
	g.down.Store(true)
	if st := a.setUp(t, dotfiles(url))[0]; st.State != agent.StepFailed || st.Reason != "git" {
		t.Errorf("%+v", st)
	}
	g.down.Store(false)
	// The next start tries to clone again, but not to run what has failed.
	if st := awaitIn(t, a.home).setUp(t, dotfiles(url))[0]; st.State != agent.StepFailed || st.Reason != "exit" || runs(a.home) != 1 {
		t.Errorf("%+v", st)
	}
	b := awaitIn(t, a.home)
	if st := b.setUp(t, dotfiles(url))[0]; st.State != agent.StepSkipped || st.Reason != agent.ReasonFailedBefore || runs(a.home) != 1 {
		t.Errorf("%+v", st)
	}
	if err := os.WriteFile(filepath.Join(a.home, "ready"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if st := b.again(t, dotfiles(url)); st.State != agent.StepDone || runs(a.home) != 2 {
		t.Errorf("%+v", st)
	}

	// A folder of the user's own stays.
	c := await(t)
	if err := os.MkdirAll(filepath.Join(c.home, ".dotfiles"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.home, ".dotfiles", "HEAD"), []byte("bare"), 0o600); err != nil {
		t.Fatal(err)
	}
	if st := c.setUp(t, dotfiles(url))[0]; st.State != agent.StepFailed || st.Reason != "dotfiles" || read(t, filepath.Join(c.home, ".dotfiles", "HEAD")) != "bare" {
		t.Errorf("%+v", st)
	}
	for _, bad := range []workspace.Repository{{URL: "--upload-pack=x"}, {URL: "ext::sh"}, {URL: url, Branch: "--upload-pack=x"}} {
		if st := await(t).setUp(t, agent.Step{Name: "x", Dotfiles: &bad})[0]; st.State != agent.StepFailed || st.Reason != "refused" {
			t.Errorf("%+v", st)
		}
	}
}

// A file of a secret keeps its place.
func TestDotfilesLeaveSecrets(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	url := g.add(t, "dot.git", map[string]string{".npmrc": "theirs"})
	a := await(t)
	if err := a.Setup(t.Context(), agent.Setup{Files: []agent.File{{Path: ".npmrc", Content: []byte("secret")}}, Steps: []agent.Step{dotfiles(url)}}); err != nil {
		t.Fatal(err)
	}
	if st := a.settled(t)[0]; st.State != agent.StepDone || read(t, filepath.Join(a.home, ".npmrc")) != "secret" {
		t.Errorf("%+v", st)
	}
}

func TestStepsRunWithoutASetup(t *testing.T) {
	t.Parallel()
	a := await(t)
	step := agent.Step{Name: "s", Script: text("until [ -e ../go ]; do sleep 0.02; done")}
	if _, err := a.RunStep(t.Context(), step); err == nil {
		t.Error("a step ran before the setup")
	}
	c := serve(t) // an agent that waits for no setup
	if s, err := c.RunStep(t.Context(), agent.Step{Name: "s", Script: text("true")}); err != nil || len(s.Steps) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	if err := a.Setup(t.Context(), agent.Setup{}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.RunStep(t.Context(), step); err != nil {
		t.Error(err)
	}
	if _, err := a.RunStep(t.Context(), step); err == nil {
		t.Error("the step runs twice at once")
	}
	if err := os.WriteFile(filepath.Join(a.home, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a.settled(t)
	if _, err := a.RunStep(t.Context(), step); err != nil {
		t.Error(err)
	}
	if steps := a.settled(t); len(steps) != 1 || steps[0].State != agent.StepDone {
		t.Errorf("%+v", steps)
	}
}
