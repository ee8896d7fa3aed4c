package maintenance

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"codehub/internal/cli/terminal"
	"codehub/internal/control/gc"
	"codehub/internal/postgres"
	"codehub/internal/postgres/embedded"
	"codehub/internal/testing/pgtest"
)

// A backup in the bucket brings a lost database back, and garbage collection leaves it.
func TestDatabaseBackupInBucket(t *testing.T) {
	t.Parallel()
	c, id, keys := archivedThrice(t)
	out, errs, exit := c.run("database", "backup")
	_, key, found := strings.Cut(strings.TrimSpace(out), "The backup is in the bucket: ")
	if exit != terminal.ExitOK || !found {
		t.Fatalf("exit %d: %s%s", exit, out, errs)
	}
	if fi, err := os.Stat(filepath.Join(c.folder, key)); err != nil || fi.Size() == 0 {
		t.Error(err)
	}
	var report gc.Report
	c.json(&report, "gc", "--dry-run")
	if len(report.Items) != len(keys) {
		t.Errorf("garbage collection has %+v", report.Items)
	}
	name := strings.TrimSuffix(filepath.Base(key), ".backup.zst")
	if out, _, _ := c.run("database", "backups"); !strings.Contains(out, name) {
		t.Errorf("%s is not in:\n%s", name, out)
	}

	for _, name := range []string{"29990101T000000Z", "other"} {
		try(t, os.WriteFile(filepath.Join(c.folder, filepath.Dir(key), name+".backup.zst"), nil, 0o600))
	}
	lost := c.dsn
	c.dsn = pgtest.New(t, nil)
	if _, errs, exit := c.run("database", "restore", "20200101T000000Z"); exit != terminal.ExitError || !strings.Contains(errs, "has no such backup") {
		t.Errorf("exit %d: %s", exit, errs)
	}
	if out, errs, exit := c.run("database", "restore", "latest"); exit != terminal.ExitOK || !strings.Contains(out, "run codehub reconcile-restore") {
		t.Fatalf("exit %d: %s%s", exit, out, errs)
	}
	for _, dsn := range []string{lost, c.dsn} {
		var n int
		if err := session(t, dsn).QueryRow(t.Context(), `SELECT count(*) FROM archives WHERE workspace_id = $1`, id).Scan(&n); err != nil || n != len(keys) {
			t.Errorf("%d archives, %v", n, err)
		}
	}
	if _, errs, exit := c.run("database", "restore", name); exit != terminal.ExitUsage || !strings.Contains(errs, "CODEHUB_DATABASE_URL: the database is not empty") {
		t.Errorf("exit %d: %s", exit, errs)
	}
}

// A backup in a file becomes the embedded database, and one of that is the same.
func TestDatabaseBackupInFile(t *testing.T) {
	t.Parallel()
	source := pgtest.New(t, postgres.Migrate)
	db, err := postgres.Open(t.Context(), source, postgres.Options{})
	try(t, err)
	defer db.Close()
	_, err = db.Installation(t.Context())
	try(t, err)
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "backup")
	run := func(dsn string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "codehub", append([]string{"database"}, args...)...)
		cmd.Env = append(os.Environ(), "CODEHUB_DATA_DIR="+dir, "CODEHUB_DATABASE_URL="+dsn, "CODEHUB_ADMIN_PASSWORD=s3cret-s3cret", "CODEHUB_GC_INTERVAL=2h")
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			return errs.String(), err
		}
		return string(out), nil
	}
	if out, err := run(source, "backup", file); err != nil || !strings.Contains(out, file) {
		t.Fatal(out, err)
	}
	info, err := checkFile(t, file)
	if err != nil || info.Settings["CODEHUB_GC_INTERVAL"] != "2h" || strings.Contains(strings.Join(slices.Collect(maps.Values(info.Settings)), " "), "s3cret") {
		t.Errorf("%+v, %v", info, err)
	}
	if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	out, err := run("", "restore", file)
	if err != nil || !strings.Contains(out, "The database is restored") || strings.Contains(out, "kept") {
		t.Fatal(out, err)
	}
	server, err := embedded.Start(t.Context(), embedded.Config{Dir: dir}) // as a running codehub does
	try(t, err)
	if out, err := run("", "restore", file); err == nil || !strings.Contains(out, "in use by another codehub server") {
		t.Error(out, err)
	}
	out, err = run("", "backup", "-")
	try(t, errors.Join(err, server.Stop(t.Context())))
	try(t, os.WriteFile(file, []byte(out), 0o600))
	again, err := checkFile(t, file)
	if err != nil || again.Installation != info.Installation || again.Installation == "" {
		t.Errorf("%+v, %v", again, err)
	}
}

func checkFile(t *testing.T, name string) (postgres.BackupInfo, error) {
	t.Helper()
	f, err := os.Open(name)
	try(t, err)
	defer f.Close()
	return postgres.CheckBackup(f)
}
