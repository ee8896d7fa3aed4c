package e2e

import (
	"bytes"
	"strings"
	"testing"

	"codehub/api"
	"codehub/client"
)

// Commands in a workspace reach its server without a login, through the agent: they know who they
// are, and may show and stop the workspace and list its ports. All else is refused with a
// sentence, and the audit log says that the workspace asked. It takes up to 20 s beside other
// tests, most of it for the start of the server and the container.
func TestCommandsInsideWorkspace(t *testing.T) {
	t.Parallel()
	s := startQuick(t)
	other := s.create(api.CreateWorkspace{Name: "other", DesiredState: new("STANDBY")})
	id := s.create(api.CreateWorkspace{Name: "alpha"})
	s.awaitPhase(id, "RUNNING")
	codehub := func(args ...string) (string, int) {
		t.Helper()
		x, err := s.api.Exec(t.Context(), id, api.Exec{Args: append([]string{"/opt/codehub/codehub"}, args...)})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		code, err := x.Run(t.Context(), &out, &out, nil)
		if err != nil {
			t.Fatalf("%q: %v", args, err)
		}
		return out.String(), code
	}
	s.await(id, "a server is connected", func(api.Workspace) bool {
		out, code := codehub("whoami")
		if code != 0 && !strings.Contains(out, "no server of codehub is connected") {
			t.Fatalf("%d %s", code, out)
		}
		return code == 0
	})
	for command, want := range map[string]string{
		"whoami":     "admin, in the workspace alpha of " + s.URL + "\n",
		"show":       "Name:",
		"show alpha": "Name:",
		"ports":      "PORT",
		"stay alpha": "alpha   running",
	} {
		if out, code := codehub(strings.Fields(command)...); code != 0 || !strings.HasPrefix(strings.TrimSpace(out), strings.TrimSpace(want)) {
			t.Errorf("%s: %d %s", command, code, out)
		}
	}
	for _, command := range []string{"list", "show " + other, "start other", "set alpha --standby-ttl never", "tokens list", "create third"} {
		if out, code := codehub(strings.Fields(command)...); code != 1 || !strings.Contains(out, "Without a login, a workspace can only") {
			t.Errorf("%s: %d %s", command, code, out)
		}
	}
	// The stop that it asks for may end the command itself before it has said so.
	x, err := s.api.Exec(t.Context(), id, api.Exec{Args: []string{"/opt/codehub/codehub", "stop"}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if code, err := x.Run(t.Context(), &out, &out, nil); err != nil && !strings.Contains(err.Error(), "has stopped") ||
		err == nil && (code != 0 || !strings.Contains(out.String(), "stopping")) {
		t.Errorf("stop: %d %v %s", code, err, out.String())
	}
	s.awaitPhase(id, "STANDBY")
	log, err := s.api.Audit(t.Context(), client.AuditFilter{Action: "workspace.desired_state", Target: id}, 1)
	if err != nil || len(log) == 0 || log[0].Details["asked_by"] != "workspace" {
		t.Errorf("audit log %+v %v", log, err)
	}
}
