package e2e

import (
	"bytes"
	"testing"

	"codehub/api"
)

// Dotfiles are applied to a workspace that runs, whose script ignores signals and does not end. A
// stop ends it all the same, and the next start runs it again; the one after that does not.
func TestDotfilesOfWorkspace(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.slimImage)
	const port = "42119"
	id := s.create(api.CreateWorkspace{Name: "dot"})
	s.awaitPhase(id, "RUNNING")
	relay := s.serveRepository(t, id, port, `printf '%s\n' "trap '' TERM HUP" 'echo began' 'until [ -e ~/ready ]; do sleep 0.2; done' 'echo run >> ~/installed' > install.sh`)
	close(relay.answer)
	if _, err := s.api.SetDotfiles(t.Context(), api.Dotfiles{URL: "http://127.0.0.1:" + port + "/api.git"}); err != nil {
		t.Fatal(err)
	}
	step := func(state, log string) {
		t.Helper()
		s.until("the dotfiles are "+state, func() bool {
			last, err := s.api.Setup(t.Context(), id)
			return err == nil && len(last.Steps) == 1 && last.Steps[0].Kind == "dotfiles" && last.Steps[0].State == state && bytes.Contains([]byte(last.Steps[0].Log), []byte(log))
		})
	}
	run := func(command string) string { return s.run(id, command) }
	restart := func() {
		t.Helper()
		s.setDesired(id, "STANDBY")
		s.awaitPhase(id, "STANDBY")
		s.setDesired(id, "RUNNING")
		s.awaitPhase(id, "RUNNING")
	}
	if _, err := s.api.ApplyDotfiles(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	step("running", "began")
	restart()
	step("running", "began")
	run("touch ready")
	step("done", "began")
	if out := run("cat installed; ls .local/state/codehub"); out != "run\ndotfiles\n" {
		t.Errorf("%q", out)
	}
	restart()
	step("skipped", "")
	if out := run("cat installed"); out != "run\n" {
		t.Errorf("%q", out)
	}
}
