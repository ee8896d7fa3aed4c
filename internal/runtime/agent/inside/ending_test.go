package inside

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"codehub/internal/runtime/agent"
	"codehub/internal/testing/harness"
)

// A script that a stop ends has not failed, and no further one begins.
func TestStopInterruptsScripts(t *testing.T) {
	t.Parallel()
	s := NewServer(Config{Home: t.TempDir(), AwaitsSetup: true, Processes: &Processes{}, Log: slog.New(slog.DiscardHandler)})
	run := func(once, command string) agent.Step {
		return agent.Step{Name: once, Once: once, Timeout: 60, Script: &agent.Script{Dir: ".", Commands: []agent.ScriptCommand{{Shell: command}}}}
	}
	s.setup.take(agent.Setup{Steps: []agent.Step{run("first", "touch began; until [ -e stop ]; do sleep 0.01; done; exit 1"), run("second", "touch second")}})
	done := make(chan struct{})
	s.setup.begin(func() { s.runSteps(); close(done) })
	harness.Eventually(t, "the script has begun", func() bool {
		_, err := os.Stat(filepath.Join(s.cfg.Home, "began"))
		return err == nil
	})
	s.end()
	if err := os.WriteFile(filepath.Join(s.cfg.Home, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	<-done
	for _, left := range []string{"second", agent.StateDir} {
		if _, err := os.Lstat(filepath.Join(s.cfg.Home, left)); err == nil {
			t.Errorf("%s is there", left)
		}
	}
}

// The probe for a full disk does not follow a link of the repository.
func TestProbeFollowsNoLink(t *testing.T) {
	t.Parallel()
	folder, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, filepath.Join(folder, ".codehub-probe")); err != nil {
		t.Fatal(err)
	}
	if isFull(folder) {
		t.Error("the disk is full")
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "mine" {
		t.Errorf("%d bytes, %v", len(content), err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}
