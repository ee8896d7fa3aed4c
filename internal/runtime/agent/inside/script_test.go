package inside_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"codehub/internal/runtime/agent"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

func text(command string) *agent.Script {
	return &agent.Script{Commands: []agent.ScriptCommand{{Shell: command}}}
}

// setUp sends steps, and returns how they ended.
func (a awaiting) setUp(t *testing.T, steps ...agent.Step) []agent.StepStatus {
	t.Helper()
	if err := a.Setup(t.Context(), agent.Setup{Env: map[string]string{"TOKEN": "secret"}, Steps: steps}); err != nil {
		t.Fatal(err)
	}
	return a.settled(t)
}

func TestScriptRunsAsATerminalWould(t *testing.T) {
	t.Parallel()
	a := await(t)
	first := text(`echo "$PWD $HOME $TOKEN $MORE"; read x; echo "read $?"; printf last`)
	first.Env = map[string]string{"MORE": "a b"}
	steps := a.setUp(t, agent.Step{Name: "shell", Script: first},
		agent.Step{Name: "program", Script: &agent.Script{Dir: ".", Commands: []agent.ScriptCommand{{Args: []string{"printf", "%s|", "$HOME", "a b"}}}}},
		agent.Step{Name: "side by side", Script: &agent.Script{Commands: []agent.ScriptCommand{
			{Name: "one", Shell: "touch one; until [ -e two ]; do sleep 0.01; done; echo 1"}, {Name: "two", Shell: "touch two; until [ -e one ]; do sleep 0.01; done; echo 2"},
		}}})
	project := filepath.Join(a.home, "project")
	if want := project + " " + a.home + " secret a b\nread 1\nlast\n"; steps[0].State != agent.StepDone || steps[0].Log != want || steps[0].Kind != agent.KindScript {
		t.Errorf("%+v", steps[0])
	}
	if steps[1].State != agent.StepDone || steps[1].Log != "$HOME|a b|\n" {
		t.Errorf("%+v", steps[1])
	}
	if steps[2].State != agent.StepDone || !strings.Contains(steps[2].Log, "[one] 1\n") || !strings.Contains(steps[2].Log, "[two] 2\n") {
		t.Errorf("%+v", steps[2])
	}
}

func TestFailedScriptSaysWhy(t *testing.T) {
	t.Parallel()
	a := await(t)
	steps := a.setUp(t, agent.Step{Name: "exit", Script: text("for i in 1 2 3 4 5 6 7 8 9; do echo line $i; done; exit 3")},
		agent.Step{Name: "signal", Script: text("kill -9 $$")},
		agent.Step{Name: "none", Script: &agent.Script{Commands: []agent.ScriptCommand{{Args: []string{"no-such-program"}}}}},
		agent.Step{Name: "both", Script: &agent.Script{Commands: []agent.ScriptCommand{{Name: "bad", Shell: "echo no >&2; exit 1"}, {Shell: "sleep 0.1; touch ../good"}}}},
		agent.Step{Name: "folder", Script: &agent.Script{Dir: "nowhere", Commands: text("true").Commands}},
		agent.Step{Name: "out", Script: &agent.Script{Dir: "../..", Commands: text("true").Commands}},
		agent.Step{Name: "nothing", Script: &agent.Script{}},
		agent.Step{Name: "after", Script: text("true")})
	for i, want := range []struct{ reason, words string }{
		{"exit", "It ended with exit code 3.\nline 2\nline 3\nline 4\nline 5\nline 6\nline 7\nline 8\nline 9"}, {"exit", "It was ended by SIGKILL."},
		{"", `there is no program "no-such-program" on its PATH`}, {"exit", "bad: It ended with exit code 1.\nno"}, {"no_folder", filepath.Join(a.home, "nowhere") + " is not a folder."},
		{"refused", "../.. is not a folder below the home."}, {"refused", "It has 0 commands. A script has 1 to 16."},
	} {
		if st := steps[i]; st.State != agent.StepFailed || st.Reason != want.reason || st.Error != want.words {
			t.Errorf("%s: %+v", st.Name, st)
		}
	}
	if _, err := os.Stat(filepath.Join(a.home, "good")); err != nil || steps[7].State != agent.StepDone {
		t.Errorf("%v, %+v", err, steps[7])
	}
}

func TestScriptNeedsItsRepository(t *testing.T) {
	t.Parallel()
	g := serveGit(t)
	url := g.add(t, "api.git", map[string]string{"file": "1"})
	a := await(t)
	g.down.Store(true)
	steps := a.setUp(t, agent.Step{Name: url, Clone: &workspace.Repository{URL: url}}, agent.Step{Name: "make", Once: "create", Script: text("cat file")},
		agent.Step{Name: "around", Script: &agent.Script{Dir: "project", Commands: text("true").Commands}},
		agent.Step{Name: "home", Script: &agent.Script{Dir: ".", Commands: text("true").Commands}})
	if st := steps[3]; st.State != agent.StepDone {
		t.Errorf("%+v", st)
	}
	for _, st := range steps[1:3] {
		if st.State != agent.StepFailed || st.Reason != "not_cloned" || st.Error != url+" was not cloned." {
			t.Errorf("%+v", st)
		}
	}
	g.down.Store(false)
	if _, err := a.RetrySetup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if steps := a.settled(t); steps[1].State != agent.StepDone || steps[1].Log != "1\n" || steps[2].State != agent.StepDone {
		t.Errorf("%+v", steps)
	}
}

// One that failed runs again only on request, at this start or a later one; one that could not run
// runs at the next start.
func TestScriptRunsOncePerHome(t *testing.T) {
	t.Parallel()
	a := await(t)
	steps := []agent.Step{
		{Name: "create", Once: "create", Script: text("echo run >> ran; test -e ready")}, {Name: "start", Script: text("echo run >> starts")},
		{Name: "hostile", Once: "../../x", Script: text("touch hostile")}, {Name: "unable", Once: "unable", Script: &agent.Script{Dir: "project/later", Commands: text("true").Commands}},
	}
	project := filepath.Join(a.home, "project")
	runs := func(file string) int { return strings.Count(read(t, filepath.Join(project, file)), "run") }
	first := a.setUp(t, steps...)
	if first[0].State != agent.StepFailed || first[2].Reason != "refused" || first[3].Reason != "no_folder" {
		t.Errorf("%+v", first)
	}
	if err := os.Mkdir(filepath.Join(project, "later"), 0o755); err != nil {
		t.Fatal(err)
	}
	b := awaitIn(t, a.home)
	second := b.setUp(t, steps...)
	if st := second[0]; st.State != agent.StepSkipped || st.Reason != agent.ReasonFailedBefore || !st.Retries() || runs("ran") != 1 || runs("starts") != 2 || second[3].State != agent.StepDone {
		t.Errorf("%+v", second)
	}
	if err := os.WriteFile(filepath.Join(project, "ready"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.RetrySetup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if third := b.settled(t); third[0].State != agent.StepDone || runs("ran") != 2 || runs("starts") != 2 {
		t.Errorf("%+v", third)
	}
	c := awaitIn(t, a.home)
	if last := c.setUp(t, steps...); last[0].State != agent.StepSkipped || last[0].Reason != "" || last[0].Retries() || runs("ran") != 2 {
		t.Errorf("%+v", last)
	}
	if _, err := os.Stat(filepath.Join(a.home, agent.StateDir, "create")); err != nil {
		t.Error(err)
	}
}

func TestScriptEndsAtItsTimeLimit(t *testing.T) {
	t.Parallel()
	a := await(t)
	steps := a.setUp(t, agent.Step{Name: "stubborn", Once: "stubborn", Timeout: 1, Script: text("trap '' TERM; echo $$ > shell; sleep 1000 & echo $! > child; echo busy; while :; do sleep 0.1; done")},
		agent.Step{Name: "next", Script: text("true")})
	if st := steps[0]; st.State != agent.StepFailed || st.Reason != "time" || st.Error != "It was ended after its time limit of 1s.\nbusy" || steps[1].State != agent.StepDone {
		t.Errorf("%+v", steps)
	}
	for _, file := range []string{"shell", "child"} {
		pid, _ := strconv.Atoi(strings.TrimSpace(read(t, filepath.Join(a.home, "project", file))))
		harness.Eventually(t, file+" has ended", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH || zombie(pid) })
	}
}

// zombie: without the first process of a container nothing waits for orphans.
func zombie(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// What a script leaves in the background goes on, its output too, and holds nothing up.
func TestScriptForksAway(t *testing.T) {
	t.Parallel()
	a := await(t)
	began := time.Now()
	steps := a.setUp(t, agent.Step{Name: "daemon", Script: text("setsid sh -c 'echo $$ > pid; while ! [ -e go ]; do sleep 0.02; done; echo served; echo more; touch went' & until [ -e pid ]; do sleep 0.01; done")})
	if steps[0].State != agent.StepDone || time.Since(began) > 30*time.Second {
		t.Errorf("%+v", steps)
	}
	project := filepath.Join(a.home, "project")
	if err := os.WriteFile(filepath.Join(project, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the process in the background has written", func() bool {
		s, err := a.SetupStatus(t.Context())
		_, went := os.Stat(filepath.Join(project, "went"))
		return err == nil && went == nil && strings.HasSuffix(s.Steps[0].Log, "served\nmore\n") && s.Steps[0].Detail == ""
	})
}

func TestScriptFillsItsOutput(t *testing.T) {
	t.Parallel()
	a := await(t)
	var steps []agent.Step
	for range agent.MaxSteps {
		steps = append(steps, agent.Step{Name: "loud", Script: text(`yes '"<\' | head -n 9000; echo end; exit 1`)})
	}
	for _, st := range a.setUp(t, steps...) {
		if len(st.Log) > agent.MaxStepLog || !strings.HasSuffix(st.Log, "\nend\n") || !strings.HasSuffix(st.Error, "\nend") || st.State != agent.StepFailed {
			t.Fatalf("%d bytes, %s, %q", len(st.Log), st.State, st.Error)
		}
	}
}

func TestMarkerOfHostileScript(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script string
		noted  bool // it runs again at the next start
	}{
		"removed":  {"rm -rf ~/.local", false},
		"file":     {"rm -rf ~/.local; touch ~/.local", true},
		"link":     {"mkdir -p ~/.local/state ~/other; ln -s ~/other ~/.local/state/codehub", false},
		"dangling": {"mkdir -p ~/.local/state; ln -s ~/nowhere ~/.local/state/codehub", true},
		"pipe":     {"mkdir -p ~/.local/state/codehub; mkfifo ~/.local/state/codehub/mine", false},
		"out":      {"mkdir -p ~/.local/state/codehub; echo keep > ~/kept; ln -s ~/kept ~/.local/state/codehub/mine", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := await(t)
			step := agent.Step{Name: "s", Once: "mine", Script: text("echo run >> ~/ran; " + c.script)}
			st := a.setUp(t, step)[0]
			if st.State != agent.StepDone || strings.Contains(st.Log, "The next start runs this again") != c.noted {
				t.Errorf("%+v", st)
			}
			want := agent.StepSkipped
			if c.noted {
				want = agent.StepDone
			}
			if st := awaitIn(t, a.home).setUp(t, agent.Step{Name: "s", Once: "mine", Script: text("true")})[0]; st.State != want {
				t.Errorf("%+v", st)
			}
			if name == "out" && read(t, filepath.Join(a.home, "kept")) != "keep\n" {
				t.Error("the file was written through the link")
			}
		})
	}
}
