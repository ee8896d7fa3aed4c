package maintenance

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
)

// runMigrate runs codehub migrate, and returns what it prints.
func runMigrate(t *testing.T, dsn string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "codehub", append([]string{"migrate"}, args...)...)
	cmd.Env = append(os.Environ(), "CODEHUB_DATABASE_URL="+dsn)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "failed: " + string(out)
	}
	return string(out)
}

// Behind a pooler that keeps no sessions nothing is migrated.
func TestMigrateRefusesPooler(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Pooler(t, pgtest.New(t, nil), "transaction")
	for _, args := range [][]string{nil, nil, {"--check"}} {
		if out := runMigrate(t, dsn, args...); !strings.HasPrefix(out, "failed: ") || !strings.Contains(out, "pool_mode = session") {
			t.Errorf("%v: %s", args, out)
		}
	}
}

// codehub migrate --check says what is pending, and changes nothing.
func TestMigrateCheck(t *testing.T) {
	t.Parallel()
	run := func(dsn string, args ...string) string { return runMigrate(t, dsn, args...) }
	empty := pgtest.New(t, nil)
	for range 2 {
		if out := run(empty, "--check"); !strings.Contains(out, "Stop all servers before") {
			t.Errorf("an empty database: %s", out)
		}
	}
	if out := run(empty); out != "" {
		t.Errorf("migrating it: %s", out)
	}
	if out := run(empty, "--check"); !strings.HasPrefix(out, "No migration is pending.") {
		t.Errorf("after its migration: %s", out)
	}
	newer := fixture.NewDatabase(t, postgres.Options{})
	newer.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (90000, true)`)
	if out := run(newer.DSN, "--check"); !strings.HasPrefix(out, "No migration is pending.") {
		t.Errorf("a newer version keeps this one running: %s", out)
	}
	newer.Exec(`UPDATE compatibility SET works_since = 90000`)
	for _, args := range [][]string{{"--check"}, nil} {
		if out := run(newer.DSN, args...); !strings.HasPrefix(out, "failed: ") || !strings.Contains(out, "a newer codehub has migrated the database") {
			t.Errorf("a newer version does not: %s", out)
		}
	}
}

func TestPendingText(t *testing.T) {
	t.Parallel()
	if got := pendingText(postgres.Pending{Migrations: 2}); !strings.Contains(got, "Pending migrations: 2.") || !strings.Contains(got, "can run on") {
		t.Error(got)
	}
}
