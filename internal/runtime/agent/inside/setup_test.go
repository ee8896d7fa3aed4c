package inside_test

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"codehub/internal/runtime/agent"
	"codehub/internal/runtime/agent/inside"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// awaiting is an agent that waits for a setup.
type awaiting struct {
	*agent.Client
	home, files string
}

func await(t *testing.T) awaiting {
	t.Helper()
	return awaitIn(t, t.TempDir())
}

// awaitIn is await with this home.
func awaitIn(t *testing.T, home string) awaiting {
	t.Helper()
	return awaitWith(t, home, "")
}

// awaitWith is awaitIn with a program in the place of codehub.
func awaitWith(t *testing.T, home, program string) awaiting {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := awaiting{Client: &agent.Client{Addr: l.Addr().String(), Secret: secret}, home: home, files: filepath.Join(inMemory(t), "files")}
	s := inside.NewServer(inside.Config{Secret: secret, Version: "test", Home: a.home, AwaitsSetup: true, FilesDir: a.files, Program: program, Processes: &inside.Processes{}, Log: slog.New(slog.DiscardHandler)})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return a
}

// inMemory returns a folder on a file system in memory.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "codehub-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// settled waits for the end of the steps.
func (a awaiting) settled(t *testing.T) []agent.StepStatus {
	t.Helper()
	var s agent.SetupStatus
	harness.Eventually(t, "the steps have ended", func() bool {
		var err error
		s, err = a.SetupStatus(t.Context())
		return err == nil && !s.Running()
	})
	return s.Steps
}

func TestSetupGivesVariablesAndFiles(t *testing.T) {
	t.Parallel()
	a := await(t)
	if s, err := a.SetupStatus(t.Context()); err != nil || !s.Waiting {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := os.WriteFile(filepath.Join(a.home, "own"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	first := agent.Setup{Env: map[string]string{"TOKEN": "a b"}, Files: []agent.File{
		{Path: ".config/tool/token", Mode: 0o640, Content: []byte("secret")}, {Path: "own", Content: []byte("theirs")},
	}}
	if err := a.Setup(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := a.Setup(t.Context(), agent.Setup{Env: map[string]string{"TOKEN": "later"}}); err != nil {
		t.Fatal(err)
	}
	out, _, _ := run(t, a.Client, agent.Command{Shell: "echo $TOKEN; cat ~/.config/tool/token; cat ~/own; stat -L -c ' %a' ~/.config/tool/token"}, "")
	if out != "a b\nsecretmine 640\n" {
		t.Errorf("%q", out)
	}
	if target, err := os.Readlink(filepath.Join(a.home, ".config/tool/token")); err != nil || !strings.HasPrefix(target, a.files+"/") {
		t.Errorf("link to %q, %v", target, err)
	}
	steps := a.settled(t)
	if len(steps) != 1 || steps[0].Kind != agent.KindFiles || steps[0].State != agent.StepFailed || !strings.Contains(steps[0].Error, "own exists already") {
		t.Fatalf("%+v", steps)
	}
	if err := os.Remove(filepath.Join(a.home, "own")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.RetrySetup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if steps := a.settled(t); steps[0].State != agent.StepDone || read(t, filepath.Join(a.home, "own")) != "theirs" {
		t.Errorf("%+v", steps)
	}
}

// What the server could not do is a step that fails with its words, also when it is tried again.
func TestSetupSaysWhatTheServerCouldNotDo(t *testing.T) {
	t.Parallel()
	a := await(t)
	if err := a.Setup(t.Context(), agent.Setup{Steps: []agent.Step{{Name: "secrets", Fail: "The secret npm cannot be decrypted."}}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if steps := a.settled(t); len(steps) != 1 || steps[0].Kind != agent.KindServer || steps[0].State != agent.StepFailed || steps[0].Error != "The secret npm cannot be decrypted." {
			t.Fatalf("%+v", steps)
		}
		if _, err := a.RetrySetup(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestSetupIsRefusedWithoutWaiting(t *testing.T) {
	t.Parallel()
	c := serve(t)
	if err := c.Setup(t.Context(), agent.Setup{}); err == nil || !strings.Contains(err.Error(), "without a setup") {
		t.Errorf("%v", err)
	}
	if s, err := c.SetupStatus(t.Context()); err != nil || s.Waiting || len(s.Steps) > 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// gitServer serves bare repositories as git does, by HTTP. down makes it refuse.
type gitServer struct {
	dir, url string
	down     atomic.Bool
	hold     chan struct{} // if not nil, requests wait for its end
}

func serveGit(t *testing.T) *gitServer {
	t.Helper()
	g := &gitServer{dir: t.TempDir()}
	backend := &cgi.Handler{Path: "/usr/lib/git-core/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + g.dir, "GIT_HTTP_EXPORT_ALL=1"}, Stderr: io.Discard}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.hold != nil {
			select {
			case <-g.hold:
			case <-r.Context().Done():
			}
		}
		if g.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	g.url = s.URL
	return g
}

// add makes a repository with these files, and returns its URL. A content "-> x" is a link.
func (g *gitServer) add(t *testing.T, name string, files map[string]string, commands ...string) string {
	t.Helper()
	work := filepath.Join(t.TempDir(), "work")
	if err := os.MkdirAll(work, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, content := range files {
		path := filepath.Join(work, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	script := "git init -q -b main && git config user.name T && git config user.email t@example.com && git add -A && git commit -q -m one && git branch other\n" +
		strings.Join(commands, "\n") + "\ngit clone -q --bare . " + filepath.Join(g.dir, name)
	cmd := exec.Command("/bin/sh", "-e", "-c", script)
	cmd.Dir, cmd.Env = work, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return g.url + "/" + name
}

func cloneOf(url string) agent.Setup {
	return agent.Setup{Steps: []agent.Step{{Name: url, Clone: &workspace.Repository{URL: url}}}}
}

func TestSetupClonesRepository(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	url := g.add(t, "api.git", map[string]string{"main.go": "package main", "api.code-workspace": "{}", "sub/x": "y"})
	a := await(t)
	if err := a.Setup(t.Context(), cloneOf(url)); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(a.home, "project/api")
	st := a.settled(t)[0]
	if st.State != agent.StepDone || st.Percent != 100 || st.Folder != folder || st.File != filepath.Join(folder, "api.code-workspace") || st.Ended < st.Started || st.Started == 0 {
		t.Fatalf("%+v", st)
	}
	if got := read(t, filepath.Join(folder, "main.go")); got != "package main" {
		t.Errorf("%q", got)
	}
	out, stderr, _ := run(t, a.Client, agent.Command{Shell: "git status --porcelain; git branch --show-current; ls -A ..; ls .git | grep -c codehub", Dir: folder}, "")
	if out != "main\napi\n0\n" || stderr != "" {
		t.Errorf("%q %q", out, stderr)
	}

	// The next start of the same home.
	b := await(t)
	if err := os.RemoveAll(b.home); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(a.home, b.home); err != nil {
		t.Fatal(err)
	}
	if err := b.Setup(t.Context(), cloneOf(url)); err != nil {
		t.Fatal(err)
	}
	if st := b.settled(t)[0]; st.State != agent.StepSkipped || !strings.HasSuffix(st.File, "api.code-workspace") {
		t.Errorf("%+v", st)
	}
}

func TestFailedCloneIsTriedAgain(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	url := g.add(t, "api.git", map[string]string{"a": "b"})
	g.down.Store(true)
	a := await(t)
	if err := a.Setup(t.Context(), cloneOf(url)); err != nil {
		t.Fatal(err)
	}
	st := a.settled(t)[0]
	if st.State != agent.StepFailed || !strings.Contains(st.Error, "fatal: unable to access") || !strings.Contains(st.Error, "503") || st.Reason != "git" {
		t.Fatalf("%+v", st)
	}
	if left, err := os.ReadDir(filepath.Join(a.home, "project")); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
	g.down.Store(false)
	if _, err := a.RetrySetup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := a.settled(t)[0]; st.State != agent.StepDone || read(t, filepath.Join(a.home, "project/api/a")) != "b" {
		t.Errorf("%+v", st)
	}
}

func TestCloneWithBranchDepthAndSubmodules(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	sub := g.add(t, "sub.git", map[string]string{"s": "of sub"})
	url := g.add(t, "api.git", map[string]string{"a": "1"},
		"git -c protocol.file.allow=always submodule --quiet add "+filepath.Join(g.dir, "sub.git")+" lib",
		"git config -f .gitmodules submodule.lib.url "+sub, "git commit -qam two", "git checkout -q -b next", "git commit -q --allow-empty -m three")
	a := await(t)
	if err := a.Setup(t.Context(), agent.Setup{Steps: []agent.Step{{Name: "api", Clone: &workspace.Repository{URL: url, Branch: "next", Path: "src/here", Depth: 1, Submodules: true}}}}); err != nil {
		t.Fatal(err)
	}
	if st := a.settled(t)[0]; st.State != agent.StepDone {
		t.Fatalf("%+v", st)
	}
	out, stderr, _ := run(t, a.Client, agent.Command{Shell: "git branch --show-current; git log --oneline | wc -l; cat lib/s; git submodule status | cut -c1; git -C lib status --porcelain", Dir: "src/here"}, "")
	if out != "next\n1\nof sub \n" || stderr != "" {
		t.Errorf("%q %q", out, stderr)
	}
}

// A clone that does not respond ends at the time limit, and nothing is left of it.
func TestHangingCloneEnds(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	g.hold = make(chan struct{})
	defer close(g.hold)
	a := await(t)
	setup := cloneOf(g.url + "/api.git")
	setup.Steps[0].Timeout = 1
	if err := a.Setup(t.Context(), setup); err != nil {
		t.Fatal(err)
	}
	if _, err := a.RetrySetup(t.Context()); err == nil || !strings.Contains(err.Error(), "still running") {
		t.Errorf("%v", err)
	}
	if u, err := a.Usage(t.Context()); err != nil || len(u.Holders) != 1 {
		t.Errorf("%+v, %v", u, err)
	}
	if st := a.settled(t)[0]; st.State != agent.StepFailed || st.Reason != "time" {
		t.Errorf("%+v", st)
	}
	if left, err := os.ReadDir(filepath.Join(a.home, "project")); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A file in the folder of a repository does not keep it from being cloned.
func TestFileInRepository(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	a := await(t)
	setup := cloneOf(g.add(t, "api.git", map[string]string{"a": "1"}))
	setup.Files = []agent.File{{Path: "project/api/.env", Content: []byte("hidden")}, {Path: ".npmrc", Content: []byte("other")}}
	if err := a.Setup(t.Context(), setup); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(a.home, ".npmrc")); err != nil {
		t.Errorf("before the clone: %v", err)
	}
	if steps := a.settled(t); len(steps) != 1 || steps[0].State != agent.StepDone {
		t.Errorf("%+v", steps)
	}
	if got, err := os.ReadFile(filepath.Join(a.home, "project/api/.env")); string(got) != "hidden" {
		t.Errorf("%q, %v", got, err)
	}
	// The next start clones nothing, and says so if the file cannot be written.
	if err := os.Remove(filepath.Join(a.home, "project/api/.env")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(a.home, "project/api/.env"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	next := awaitIn(t, a.home)
	setup.Files = setup.Files[:1]
	if err := next.Setup(t.Context(), setup); err != nil {
		t.Fatal(err)
	}
	if steps := next.settled(t); len(steps) != 1 || steps[0].State != agent.StepFailed || !strings.Contains(steps[0].Error, "exists already") {
		t.Errorf("%+v", steps)
	}
	for name, want := range map[string]string{"project/api/a": "1", "project/api/.env": "mine"} {
		if got, err := os.ReadFile(filepath.Join(a.home, name)); string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// A clone that the end of the container interrupted begins again, or is completed.
func TestInterruptedClone(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	url := g.add(t, "api.git", map[string]string{"a": "1", "b": "2"})
	for name, test := range map[string]struct {
		before map[string]string // files of the home
		state  agent.StepState
		reason string
	}{
		"while git ran":                     {map[string]string{"project/.api.codehub-clone/.git/HEAD": "half"}, agent.StepDone, ""},
		"files of the user":                 {map[string]string{"project/api/mine": "x"}, agent.StepSkipped, ""},
		"a file in the place of the folder": {map[string]string{"project/api": "x"}, agent.StepFailed, "in_the_way"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := await(t)
			for file, content := range test.before {
				path := filepath.Join(a.home, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := a.Setup(t.Context(), cloneOf(url)); err != nil {
				t.Fatal(err)
			}
			if st := a.settled(t)[0]; st.State != test.state || st.Reason != test.reason {
				t.Errorf("%+v", st)
			}
			if test.state == agent.StepDone && read(t, filepath.Join(a.home, "project/api/b")) != "2" {
				t.Error("the clone is not complete")
			}
		})
	}
	t.Run("while its files were moved", func(t *testing.T) {
		t.Parallel()
		a := await(t)
		part := filepath.Join(a.home, "project/.api.codehub-clone")
		script := "mkdir -p $0/../api && git clone -q " + url + " $0 && mv $0/a $0/../api/ && touch $0/.git/codehub-complete"
		if out, err := exec.Command("/bin/sh", "-e", "-c", script, part).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := a.Setup(t.Context(), cloneOf(url)); err != nil {
			t.Fatal(err)
		}
		if st := a.settled(t)[0]; st.State != agent.StepDone {
			t.Errorf("%+v", st)
		}
		if out, _, _ := run(t, a.Client, agent.Command{Shell: "git status --porcelain; cat a b; ls -A ..", Dir: "project/api"}, ""); out != "12api\n" {
			t.Errorf("%q", out)
		}
	})
}
