package installation

import (
	"context"
	"database/sql"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"codehub/internal/postgres/embedded"
	"codehub/internal/server/config"
	"codehub/internal/testing/harness"
)

// start starts an embedded database that ends with the test.
func start(t *testing.T, dir string) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(t.Context(), embedded.Config{Dir: dir, Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// olderSchema replaces the database by an empty one with the schema of the first release.
func olderSchema(t *testing.T, dsn string) {
	t.Helper()
	first, err := os.ReadFile("../../postgres/migrations/00060_schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `DROP SCHEMA public CASCADE; CREATE SCHEMA public`); err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, fstest.MapFS{"00060_schema.sql": {Data: first}}, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func version(t *testing.T, dsn string) (v int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), `SELECT max(version_id) FROM goose_db_version`).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// The embedded database is dumped before a migration changes it: not when it is created, and not
// when nothing is due. Without the dump it stays as it is.
func TestMigrateDumpsEmbedded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dsn := start(t, dir).URL()
	logged := &harness.Log{}
	log := slog.New(slog.NewTextHandler(logged, nil))
	cfg := config.Config{DataDir: dir, Version: "0.2.0/x"}
	progress := 0
	migrate := func() error { return Migrate(t.Context(), cfg, dsn, log, func() { progress++ }) }
	if err := migrate(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "backups")); err == nil {
		t.Error("an empty database was dumped")
	}
	olderSchema(t, dsn)

	backups := filepath.Join(dir, "backups")
	if err := os.WriteFile(backups, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := migrate()
	if err == nil || !strings.Contains(err.Error(), "Free space on the disk of "+backups) || !strings.Contains(err.Error(), "not migrated") {
		t.Errorf("without a dump: %v", err)
	}
	if v := version(t, dsn); v != 60 {
		t.Fatalf("without a dump it was migrated to %d", v)
	}
	if progress != 0 {
		t.Error("progress without a dump")
	}
	if err := os.Remove(backups); err != nil {
		t.Fatal(err)
	}

	for range 2 { // the second time nothing is due
		if err := migrate(); err != nil {
			t.Fatal(err)
		}
	}
	dumps, err := os.ReadDir(backups)
	if err != nil || len(dumps) != 1 {
		t.Fatalf("%v, %v", dumps, err)
	}
	if progress == 0 {
		t.Error("no progress while the dump was written")
	}
	name := filepath.Join(backups, dumps[0].Name())
	if fi, err := os.Stat(name); err != nil || fi.Mode().Perm() != 0o600 || !strings.HasSuffix(name, "Z-before-0.2.0_x.dump") {
		t.Errorf("%s: %v, %v", name, fi.Mode(), err)
	}
	if text := logged.String(); !strings.Contains(text, "database dumped before its migration") || !strings.Contains(text, name) {
		t.Errorf("the log is\n%s", text)
	}
	out, err := exec.Command("pg_restore", "--file=-", "--table=goose_db_version", name).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "60\tt") || strings.Contains(string(out), "61\tt") {
		t.Errorf("the dump has %v\n%s", err, out)
	}
}

// A database in another encoding than UTF8 is refused before anything is written to it.
func TestDatabaseIsNotUTF8(t *testing.T) {
	t.Parallel()
	dsn := start(t, t.TempDir()).URL()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), `CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'`); err != nil {
		t.Fatal(err)
	}
	if err := CheckSession(t.Context(), dsn); err != nil {
		t.Error(err)
	}
	err = CheckSession(t.Context(), strings.Replace(dsn, "/codehub?", "/ascii?", 1))
	want := "CODEHUB_DATABASE_URL: the encoding of the database is SQL_ASCII, not UTF8; name one that was created in UTF8"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Error(err)
	}
}
