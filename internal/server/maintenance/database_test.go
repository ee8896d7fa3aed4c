package maintenance

import (
	"io"
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
	dump, none := filepath.Join(t.TempDir(), "a.dump"), filepath.Join(t.TempDir(), "none.dump")
	if err := os.WriteFile(dump, nil, 0o600); err != nil {
		t.Fatal(err)
	}
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
	for _, url := range []string{"", "CODEHUB_DATABASE_URL=postgres://db/codehub"} {
		if out := run(url, "restore", none); !strings.Contains(out, "open "+none+": no such file") {
			t.Errorf("without a dump: %s", out)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dump, link); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(link, func(io.Writer) error { return nil }); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a backup in place of a link: %v", err)
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
