package embedded

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"codehub/internal/testing/harness"
)

// upgradeEnv makes the test program upgrade the data folder that it names, with the programs in
// the folder after the colon.
const upgradeEnv = "EMBEDDED_TEST_UPGRADE"

// upgradeWith is Upgrade to the programs in a folder, as if they were of a newer version.
func upgradeWith(ctx context.Context, dir, bin string) (Replaced, error) {
	return locked(Config{Dir: dir, Settings: quick}, func(cfg Config, lay *layout, made int) (Replaced, error) {
		return upgrade(ctx, cfg, lay, made, installation{major: made, bin: bin})
	})
}

// programs is a folder with PostgreSQL's programs, some of them replaced by scripts, in which
// $real is the folder of the others.
func programs(t *testing.T, scripts map[string]string) string {
	t.Helper()
	have, err := installations(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // for postgres's user
		t.Fatal(err)
	}
	for _, name := range []string{"postgres", "initdb", "pg_dump", "pg_restore"} {
		err := os.Symlink(have[0].path(name), filepath.Join(dir, name))
		if script, ok := scripts[name]; ok {
			err = errors.Join(err, os.Remove(filepath.Join(dir, name)),
				os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nreal="+have[0].bin+"\n[ \"$1\" = --version ] && exec $real/"+name+" --version\n"+script+"\n"), 0o755))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// filled is a data folder whose database has some rows.
func filled(t *testing.T) string {
	t.Helper()
	dir := dataDir(t)
	s := startServer(t, dir)
	execute(t, s.URL(), `
		CREATE TABLE goose_db_version (version_id int);
		INSERT INTO goose_db_version VALUES (60);
		CREATE SCHEMA more;
		CREATE TABLE more."Kept" (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text);
		INSERT INTO more."Kept" (text) SELECT 'text ' || i FROM generate_series(1, 1000) i`)
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// complete starts a server on the folder and checks that its database has all rows. It returns the
// database's identity.
func complete(t *testing.T, dir string) string {
	t.Helper()
	s, err := Start(t.Context(), Config{Dir: dir, Settings: quick})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if n := query[int](t, s.URL(), `SELECT count(DISTINCT text) FROM more."Kept"`); n != 1000 {
		t.Errorf("the database has %d rows", n)
	}
	return query[string](t, s.URL(), `SELECT system_identifier::text FROM pg_control_system()`)
}

// nothingLeft checks that no folder of a replacement is left but those in kept.
func nothingLeft(t *testing.T, dir string, kept ...string) {
	t.Helper()
	entries, err := filepath.Glob(filepath.Join(dir, "postgres/*"))
	if err != nil {
		t.Fatal(err)
	}
	var other []string
	for _, path := range entries {
		switch name := filepath.Base(path); name {
		case dataName, runName, logName, clusterLock:
		default:
			other = append(other, path)
		}
	}
	if strings.Join(other, " ") != strings.Join(kept, " ") {
		t.Errorf("left are %v, want %v", other, kept)
	}
}

// An upgrade moves all rows into a new cluster, and keeps the former one, which works again when it
// is put back.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	dir := filled(t)
	if done, err := Upgrade(t.Context(), Config{Dir: dir, Settings: quick}); err != nil || done.From != done.To || done.From == 0 {
		t.Errorf("of the newest version: %+v, %v", done, err)
	}
	before := complete(t, dir)
	done, err := upgradeWith(t.Context(), dir, programs(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if done.Rows != 1001 || done.Tables != 2 {
		t.Errorf("%+v", done)
	}
	nothingLeft(t, dir, done.Kept)
	if complete(t, dir) == before {
		t.Error("the database is the former one")
	}
	s := startServer(t, dir)
	execute(t, s.URL(), `INSERT INTO more."Kept" (text) VALUES ('new')`)
	if n := query[int](t, s.URL(), `SELECT max(id) FROM more."Kept"`); n != 1001 {
		t.Errorf("the next id is %d", n)
	}
	if n := query[int](t, s.URL(), `SELECT reltuples FROM pg_class WHERE relname = 'Kept'`); n != 1000 {
		t.Errorf("the planner knows of %d rows", n)
	}
	var locked *LockedError
	if _, err := upgradeWith(t.Context(), dir, ""); !errors.As(err, &locked) {
		t.Errorf("with a running server: %v", err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}

	current := filepath.Join(dir, "postgres", dataName)
	if err := errors.Join(os.RemoveAll(current), os.Rename(done.Kept, current)); err != nil {
		t.Fatal(err)
	}
	if complete(t, dir) != before {
		t.Error("the former database is another one")
	}
}

// A dump replaces the database, or becomes the first one of a folder. One of another program, and
// what is no dump, does not.
func TestRestore(t *testing.T) {
	t.Parallel()
	dir := filled(t)
	s := startServer(t, dir)
	file, err := Backup(t.Context(), Config{Dir: dir}, "1.0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), Config{Dir: dir, Settings: quick}, file); !errors.As(err, new(*LockedError)) {
		t.Errorf("with a running server: %v", err)
	}
	execute(t, s.URL(), `DROP TABLE goose_db_version`)
	foreign, err := Backup(t.Context(), Config{Dir: dir}, "2.0")
	if err != nil {
		t.Fatal(err)
	}
	execute(t, s.URL(), `TRUNCATE more."Kept"`)
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for bad, want := range map[string]string{foreign: "no dump of codehub's database", "/dev/null": "pg_restore: error"} {
		if _, err := Restore(t.Context(), Config{Dir: dir, Settings: quick}, bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", bad, err)
		}
		nothingLeft(t, dir)
	}
	done, err := Restore(t.Context(), Config{Dir: dir, Settings: quick}, file)
	if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, dir, done.Kept)
	complete(t, dir)
	empty := t.TempDir()
	if done, err := Restore(t.Context(), Config{Dir: empty, Settings: quick}, file); err != nil || done.Kept != "" || done.Rows != 1001 {
		t.Fatalf("%+v, %v", done, err)
	}
	nothingLeft(t, empty)
	complete(t, empty)
}

// If one of the programs fails, the database stays as it was.
func TestFailedUpgradeChangesNothing(t *testing.T) {
	t.Parallel()
	dir := filled(t)
	before := complete(t, dir)
	cases := []struct{ program, script, want string }{
		{"pg_dump", "echo PGDMP; echo 'pg_dump: error: no memory' >&2; exit 1", "no memory"},
		{"initdb", "echo 'initdb: error: no memory' >&2; exit 1", "no memory"},
		{"pg_restore", `exec $real/pg_restore --schema-only "$@"`, "differs from the former one: the table goose_db_version has 0 rows instead of 1"},
		{"pg_restore", "echo 'pg_restore: error: no memory' >&2; exit 1", "no memory"},
	}
	if !harness.Verifying() {
		cases = cases[:3]
	}
	for _, c := range cases {
		_, err := upgradeWith(t.Context(), dir, programs(t, map[string]string{c.program: c.script}))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s fails: %v", c.program, err)
		}
		nothingLeft(t, dir)
	}
	if complete(t, dir) != before {
		t.Error("the database is another one")
	}
}

// After a kill the database is as before, although PostgreSQL still runs on the incomplete one.
// The next upgrade succeeds.
func TestKilledUpgrade(t *testing.T) {
	t.Parallel()
	dir := filled(t)
	before := complete(t, dir)
	reached := filepath.Join(t.TempDir(), "reached")
	bin := programs(t, map[string]string{"pg_restore": `$real/pg_restore "$@" && echo $$ >` + reached + ` && exec sleep 1000`})
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), upgradeEnv+"="+dir+":"+bin)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var restore int // process id
	harness.Eventually(t, "the dump is restored", func() bool {
		text, _ := os.ReadFile(reached)
		restore, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return restore != 0
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := syscall.Kill(restore, syscall.SIGKILL); err != nil { // it is not to wait for its sleep
		t.Error(err)
	}
	if complete(t, dir) != before {
		t.Error("after the kill the database is another one")
	}
	done, err := upgradeWith(t.Context(), dir, programs(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, dir, done.Kept)
	if complete(t, dir) == before {
		t.Error("the database is the former one")
	}
}
