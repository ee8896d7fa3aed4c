package e2e

import (
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/testing/harness"
)

// While a server runs, codehub database drill restores the last backup in the bucket and compares it with Docker. It
// finds a volume that was lost since, and the server shows the result.
func TestDatabaseDrill(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	s := start(t, "CODEHUB_DEFAULT_IMAGE="+env.slimImage)
	id := s.create(api.CreateWorkspace{Name: "kept"})
	s.awaitPhase(id, "RUNNING")
	s.setDesired(id, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	if out, err := s.command("database", "backup"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := s.command("database", "drill"); err != nil || !strings.Contains(out, "Workspaces: 1. Unchanged since the backup: 1. Missing: 0.") {
		t.Errorf("%v: %s", err, out)
	}
	last := func() api.DatabaseDrill {
		t.Helper()
		status, err := s.api.AdminStatus(t.Context())
		if err != nil || status.DatabaseDrill == nil {
			t.Fatalf("%+v, %v", status, err)
		}
		return *status.DatabaseDrill
	}
	if d := last(); d.Problem != "" || d.Rows == 0 {
		t.Errorf("%+v", d)
	}
	s.loseVolume(id, "docker-volume")
	if out, err := s.command("database", "drill"); err == nil || !strings.Contains(out, "home is missing: 1, such as kept (") {
		t.Errorf("%v: %s", err, out)
	}
	if d := last(); d.Comparison.Missing != 1 || d.Problem == "" {
		t.Errorf("%+v", d)
	}
}
