package reconcile_test

import (
	"testing"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// TestEnvironmentOfContainer: the container of a workspace gets its variables at a
// start, and a change waits for the next one.
func TestEnvironmentOfContainer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lead()
	id := w.create("My Demo", workspace.DesiredStandby)
	w.awaitPhase(id, workspace.PhaseStandby)
	change := func(name, value, zone string) {
		t.Helper()
		p := postgres.Patch{Env: &lifecycle.EnvChange{Set: map[string]*string{name: &value}}, TimeZone: zone}
		if _, err := w.DB.PatchWorkspace(t.Context(), w.owner, id, p); err != nil {
			t.Fatal(err)
		}
	}
	change("A", "1", "Asia/Seoul")
	w.want(id, workspace.DesiredRunning, true)
	w.awaitPhase(id, workspace.PhaseRunning)
	w.await(id, "its variables are in effect", func(ws workspace.Workspace) bool { return ws.RunningEnv != "" && !lifecycle.EnvWaits(ws) })
	host, env := w.fake.Environment(id)
	if host != "my-demo" || env["A"] != "1" || env["TZ"] != "Asia/Seoul" || env["CODEHUB_WORKSPACE_NAME"] != "My Demo" ||
		env["CODEHUB_WORKSPACE_ID"] != string(id) || env["CODEHUB_WORKSPACE_OWNER"] == "" || env[runtime.SecretEnv] == "" {
		t.Errorf("%s: %v", host, env)
	}
	change("A", "2", "")
	if _, env := w.fake.Environment(id); env["A"] != "1" || !lifecycle.EnvWaits(w.row(id)) {
		t.Errorf("the change affected the container, or does not wait: %v", env)
	}
	w.want(id, workspace.DesiredStandby, false)
	w.await(id, "stopped", func(ws workspace.Workspace) bool {
		return ws.Phase == workspace.PhaseStandby && ws.RunningEnv == "" && !lifecycle.EnvWaits(ws)
	})
	w.want(id, workspace.DesiredRunning, true)
	w.awaitPhase(id, workspace.PhaseRunning)
	w.await(id, "the change is in effect", func(ws workspace.Workspace) bool { return ws.RunningEnv != "" && !lifecycle.EnvWaits(ws) })
	if _, env := w.fake.Environment(id); env["A"] != "2" {
		t.Errorf("%v", env)
	}
}
