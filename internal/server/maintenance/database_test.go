package maintenance

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"codehub/internal/postgres/embedded"
)

// The commands on the embedded database run only without a server, and only on one.
func TestDatabaseCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := func(setting string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "codehub", append([]string{"database"}, args...)...)
		cmd.Env = append(os.Environ(), "CODEHUB_DATA_DIR="+dir, setting)
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("%v succeeded: %s", args, out)
		}
		return string(out)
	}
	dump := filepath.Join(t.TempDir(), "none.dump")
	if out := run("", "upgrade"); !strings.Contains(out, "no codehub has its database in "+dir) {
		t.Errorf("without a database: %s", out)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("without a database it made %v, %v", entries, err)
	}
	for _, args := range [][]string{{"upgrade"}, {"restore", dump}} {
		if out := run("CODEHUB_DATABASE_URL=postgres://db/codehub", args...); !strings.Contains(out, "the command is for the embedded database") {
			t.Errorf("%v of an external database: %s", args, out)
		}
	}
	if out := run("", "restore", dump); !strings.Contains(out, "read "+dump) {
		t.Errorf("without a dump: %s", out)
	}
	lock, err := embedded.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Release() }()
	if out := run("", "restore", dump); !strings.Contains(out, "in use by another codehub server") {
		t.Errorf("with a running server: %s", out)
	}
}
