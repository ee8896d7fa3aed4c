package inside

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"codehub/internal/runtime/agent"
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
	for {
		if _, err := os.Stat(filepath.Join(s.cfg.Home, "began")); err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
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
