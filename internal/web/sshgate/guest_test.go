package sshgate_test

import (
	"strings"
	"testing"

	"codehub/internal/postgres"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/agenttest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// A guest enters a shared workspace with a key of their own, by its id or OWNER/NAME, while the
// share lets them use it. Its end ends the session.
func TestGuestOfWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob := w.db.AddUser("bob")
	w.db.Change(`UPDATE workspaces SET owner_user_id = $1`, bob.UserID)
	const owner = "bob/demo"
	refused := func(what string, users ...string) {
		t.Helper()
		for _, user := range users {
			if r := w.ssh("-l", user, "true"); r.status == 0 {
				t.Errorf("%s: %q gets in", what, user)
			}
		}
	}
	refused("not shared", owner, string(w.demo.ID), "demo")
	share := func(access workspace.Access) workspace.Share {
		t.Helper()
		s, err := w.db.DB.Share(t.Context(), bob, w.demo.ID, postgres.NewShare{User: "ann", Access: access})
		check(t, err)
		return s
	}
	share(workspace.AccessView)
	refused("shared for view", owner, string(w.demo.ID))
	s := share(workspace.AccessUse)
	refused("by the name alone", "demo")
	for _, user := range []string{owner, string(w.demo.ID)} {
		w.ssh("-l", user, "echo in").want(t, "in\n")
	}
	// Only the owner can restart a workspace whose agent does not work.
	for what, answers := range map[string]agenttest.Answers{
		"does not respond":   {agent.PathExec: agenttest.Upgraded(agenttest.Raw(""))},
		"another version of": {agent.PathHello: agenttest.JSON(agent.Hello{})},
	} {
		before := w.upstream.by
		w.hostile(answers)
		if r := w.ssh("-l", owner, "true"); !strings.Contains(r.err, what) || !strings.Contains(r.err, "ask its owner to restart it.") || strings.Contains(r.err, "codehub restart") {
			t.Errorf("an agent that %s: %q", what, r.err)
		}
		w.upstream.mu.Lock()
		w.upstream.by = before
		w.upstream.mu.Unlock()
	}
	out := &safeBuffer{}
	cmd := w.command("ssh", "-l", owner, "demo", "echo up; sleep 1000")
	cmd.Stdout = out
	_, errs, exited := w.background(cmd)
	harness.Eventually(w, "the session to open", func() bool { return out.String() == "up\n" })
	check(t, w.db.DB.Unshare(t.Context(), bob, w.demo.ID, s.ID))
	if status := <-exited; status != 255 || !strings.Contains(errs.String(), "no longer have access") {
		t.Errorf("the session ended with %d, %q", status, errs)
	}
	refused("no longer shared", owner, string(w.demo.ID))
}
