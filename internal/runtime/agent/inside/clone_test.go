package inside_test

import (
	"bytes"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// cloned runs one step that clones, and returns how it ended.
func (a awaiting) cloned(t *testing.T, r workspace.Repository) agent.StepStatus {
	t.Helper()
	if err := a.Setup(t.Context(), agent.Setup{Steps: []agent.Step{{Name: r.URL, Clone: &r}}}); err != nil {
		t.Fatal(err)
	}
	return a.settled(t)[0]
}

// What a submodule's address names is not run, and no file of the workspace is read.
func TestSubmodulesOfHostileRepository(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	g.add(t, "sub.git", map[string]string{"s": "secret"})
	mark := filepath.Join(t.TempDir(), "ran")
	for name, address := range map[string]string{
		"ext":    "ext::sh -c touch% " + mark,
		"file":   "file://" + filepath.Join(g.dir, "sub.git"),
		"path":   filepath.Join(g.dir, "sub.git"),
		"option": "--upload-pack=touch " + mark,
		"ssh":    "ssh://-oProxyCommand=touch%20" + mark + "/x",
		"git":    "git://127.0.0.1:1/x",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := g.add(t, name+".git", map[string]string{"a": "1"},
				"git -c protocol.file.allow=always submodule --quiet add "+filepath.Join(g.dir, "sub.git")+" lib",
				"git config -f .gitmodules submodule.lib.url '"+address+"'", "git commit -qam two")
			a := await(t)
			if st := a.cloned(t, workspace.Repository{URL: url, Submodules: true}); st.State != agent.StepFailed || st.Error == "" {
				t.Errorf("%+v", st)
			}
			if _, err := os.Stat(mark); err == nil {
				t.Error("a program was run")
			}
			if left, err := os.ReadDir(filepath.Join(a.home, "project", name)); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			// Without its submodules it is a repository like others.
			b := await(t)
			if st := b.cloned(t, workspace.Repository{URL: url}); st.State != agent.StepDone {
				t.Errorf("%+v", st)
			}
		})
	}
}

// The server checks a repository before it is stored; the agent does not rely on it.
func TestHostileSteps(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "ran")
	for _, r := range []workspace.Repository{
		{URL: "ext::sh -c touch% " + mark}, {URL: "--upload-pack=touch " + mark}, {URL: "/etc"},
		{URL: "https://127.0.0.1:1/x", Branch: "--upload-pack=touch " + mark}, {URL: "https://127.0.0.1:1/x", Path: "../x"}, {URL: "https://127.0.0.1:1/x", Path: ".ssh"},
	} {
		a := await(t)
		if st := a.cloned(t, r); st.State != agent.StepFailed || st.Reason != "refused" {
			t.Errorf("%+v: %+v", r, st)
		}
		if left, err := os.ReadDir(a.home); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("a program was run")
	}
}

// Links that lead out of the tree stay links, names that differ in case alone are two files, and
// neither a hook of the user's template nor a link in the place of a workspace file counts.
func TestStrangeRepository(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	url := g.add(t, "api.git", map[string]string{
		"out": "-> ../../../etc/passwd", "dir": "-> /tmp", "x.code-workspace": "-> /etc/hostname", "README": "big", "readme": "small", "-rf": "x", "a\nb": "y", ".vscode/tasks.json": "{}",
	})
	a := await(t)
	mark := filepath.Join(t.TempDir(), "ran")
	template := filepath.Join(a.home, "template/hooks")
	if err := os.MkdirAll(template, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{
		filepath.Join(template, "post-checkout"): "#!/bin/sh\ntouch " + mark + "\n", filepath.Join(a.home, ".gitconfig"): "[init]\n\ttemplateDir = " + filepath.Dir(template) + "\n",
	} {
		if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	st := a.cloned(t, workspace.Repository{URL: url})
	if st.State != agent.StepDone || st.File != "" {
		t.Fatalf("%+v", st)
	}
	folder := filepath.Join(a.home, "project/api")
	if target, err := os.Readlink(filepath.Join(folder, "out")); err != nil || target != "../../../etc/passwd" {
		t.Errorf("%q, %v", target, err)
	}
	if read(t, filepath.Join(folder, "README")) != "big" || read(t, filepath.Join(folder, "readme")) != "small" || read(t, filepath.Join(folder, "-rf")) != "x" || read(t, filepath.Join(folder, "a\nb")) != "y" {
		t.Error("files are missing")
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("a hook was run")
	}
}

// A repository that does not fit into the home says so, and takes no space afterwards: neither one
// whose pack does not fit, nor one whose files do not.
func TestCloneWithoutSpace(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	random := make([]byte, 3<<20)
	_, _ = rand.Read(random)
	for name, content := range map[string][]byte{"pack": random, "files": bytes.Repeat([]byte("x"), len(random))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := g.add(t, name+".git", map[string]string{"big": string(content)})
			a := await(t)
			if err := unix.Mount("tmpfs", a.home, "tmpfs", 0, "size=2m"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(a.home, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			if st := a.cloned(t, workspace.Repository{URL: url}); st.State != agent.StepFailed || st.Reason != "space" || !strings.Contains(st.Error, "does not fit into the home folder, which has 2 MB free") {
				t.Errorf("%+v", st)
			}
			if left, err := os.ReadDir(filepath.Join(a.home, "project")); err != nil || len(left) != 1 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// Without git in the image the step says so.
func TestCloneWithoutGit(t *testing.T) {
	t.Parallel()
	a := await(t)
	if err := a.Setup(t.Context(), agent.Setup{Env: map[string]string{"PATH": "/nowhere"}, Steps: []agent.Step{{Name: "x", Clone: &workspace.Repository{URL: "https://127.0.0.1:1/x"}}}}); err != nil {
		t.Fatal(err)
	}
	if st := a.settled(t)[0]; st.State != agent.StepFailed || st.Reason != "no_git" {
		t.Errorf("%+v", st)
	}
}

// A repository with files in Git LFS gets them by git-lfs, and one without git-lfs in the image is
// cloned without them.
func TestCloneWithLFS(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	url := g.add(t, "api.git", map[string]string{"art/.gitattributes": "*.png filter=lfs diff=lfs merge=lfs -text\n", "a": "1"})
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(git, filepath.Join(bin, "git")); err != nil {
		t.Fatal(err)
	}
	setup := cloneOf(url)
	setup.Env = map[string]string{"PATH": bin}
	a := await(t)
	if err := a.Setup(t.Context(), setup); err != nil {
		t.Fatal(err)
	}
	if st := a.settled(t)[0]; st.State != agent.StepDone || !strings.Contains(st.Log, "the image has no git-lfs") {
		t.Errorf("%+v", st)
	}
	b := await(t)
	calls := filepath.Join(bin, "calls")
	if err := os.WriteFile(filepath.Join(bin, "git-lfs"), []byte("#!/bin/sh\necho \"$@\" >> "+calls+"\necho 'Downloading LFS objects: 100% (1/1), 5 B'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := b.Setup(t.Context(), setup); err != nil {
		t.Fatal(err)
	}
	if st := b.settled(t)[0]; st.State != agent.StepDone || !strings.Contains(st.Log, "Downloading LFS objects") || read(t, calls) != "install --local\npull\n" {
		t.Errorf("%+v", st)
	}
}
