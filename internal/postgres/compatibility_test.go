package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
)

// nextVersion is the number of a migration that this version does not know.
const nextVersion = 90000

// nextMigrations are the migrations of a later version of codehub.
func nextMigrations(t *testing.T, up string) fs.FS {
	t.Helper()
	all := fstest.MapFS{fmt.Sprintf("%d_next.sql", nextVersion): {Data: []byte("-- +goose Up\n" + up + "\n-- +goose Down\nSELECT 1;\n")}}
	own := os.DirFS("migrations")
	for _, name := range migrationNames(t) {
		text, err := fs.ReadFile(own, name)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = &fstest.MapFile{Data: text}
	}
	return all
}

func migrationNames(t *testing.T) []string {
	t.Helper()
	names, err := fs.Glob(os.DirFS("migrations"), "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	return names
}

func server(host string) postgres.Replica {
	return postgres.Replica{ID: uuid.NewString(), Hostname: host, Version: "test"}
}

func join(ctx context.Context, e *env, r postgres.Replica) error {
	return e.JoinReplica(ctx, r, func([]postgres.Replica) error { return nil })
}

// Servers of this version run on, and start, while and after one of a later version migrates
// the database, if its migrations leave what they use as it is.
func TestMigrateBesideServers(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	r := server("a")
	if err := join(t.Context(), e, r); err != nil {
		t.Fatal(err)
	}
	files := nextMigrations(t, "ALTER TABLE workspaces ADD COLUMN color text NOT NULL DEFAULT 'red';")
	if p, err := postgres.WouldMigrateWith(t.Context(), e.dsn, files); err != nil || p != (postgres.Pending{Migrations: 1}) {
		t.Errorf("%+v, %v", p, err)
	}
	if err := postgres.MigrateWith(t.Context(), e.dsn, files); err != nil {
		t.Fatal(err)
	}
	if p, err := postgres.WouldMigrateWith(t.Context(), e.dsn, files); err != nil || p != (postgres.Pending{}) {
		t.Errorf("%+v, %v", p, err)
	}
	if n := query[int](e, `SELECT count(color) FROM workspaces`); n != 0 {
		t.Errorf("%d workspaces", n)
	}
	if err := e.BeatReplica(t.Context(), r); err != nil {
		t.Error(err)
	}
	if err := postgres.Migrate(t.Context(), e.dsn); err != nil {
		t.Error(err)
	}
	if err := join(t.Context(), e, server("b")); err != nil {
		t.Error(err)
	}
}

// A migration that changes what servers use waits for their end, and is not applied while one
// runs. None of them starts afterwards, and one that was suspended meanwhile ends.
func TestMigrateStopsServers(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	files := nextMigrations(t, fmt.Sprintf("ALTER TABLE workspaces RENAME COLUMN name TO title;\nUPDATE compatibility SET works_since = %d;", nextVersion))
	if p, err := postgres.WouldMigrateWith(t.Context(), e.dsn, files); err != nil || p != (postgres.Pending{Migrations: 1, StopFirst: true}) {
		t.Errorf("%+v, %v", p, err)
	}
	suspended, running := server("suspended"), server("running")
	for _, r := range []postgres.Replica{suspended, running} {
		if err := join(t.Context(), e, r); err != nil {
			t.Fatal(err)
		}
	}
	e.exec(`UPDATE replicas SET seen_at = clock_timestamp() - interval '1 minute' WHERE id = $1`, suspended.ID)
	beats, stop := context.WithCancel(t.Context())
	defer stop()
	stopped := make(chan error, 1)
	go func() {
		var err error
		for err == nil && beats.Err() == nil {
			if err = e.BeatReplica(t.Context(), running); err == nil {
				time.Sleep(50 * time.Millisecond)
			}
		}
		stopped <- err
	}()
	err := postgres.MigrateWith(t.Context(), e.dsn, files)
	if still := (*postgres.StillRunning)(nil); !errors.As(err, &still) || !slices.Equal(still.Hosts, []string{"running"}) {
		t.Fatalf("%v", err)
	}
	if v := query[int64](e, `SELECT max(version_id) FROM goose_db_version`); v == nextVersion {
		t.Fatal("it was applied")
	}
	stop()
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	// The server was killed a moment before its row is too old.
	e.exec(`UPDATE replicas SET seen_at = clock_timestamp() - $1 * interval '1 second' + interval '1 second' WHERE id = $2`, postgres.Present.Seconds(), running.ID)
	if err := postgres.MigrateWith(t.Context(), e.dsn, files); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"migrate":       postgres.Migrate(t.Context(), e.dsn),
		"join":          join(t.Context(), e, server("late")),
		"the suspended": e.BeatReplica(t.Context(), suspended),
	} {
		if outdated := (*postgres.Outdated)(nil); !errors.As(err, &outdated) || outdated.Database != nextVersion {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := query[int](e, `SELECT count(*) FROM replicas WHERE hostname = 'late'`); n != 0 {
		t.Error("a server of the earlier version joined")
	}
}

// While the database is migrated, no server joins. It joins afterwards.
func TestJoinWaitsForMigration(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	conn := e.conn()
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, int64(0x636f646568756203)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := join(ctx, e, server("a")); err == nil {
		t.Fatal("joined")
	}
	done := make(chan error, 1)
	go func() { done <- join(t.Context(), e, server("b")) }()
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_unlock($1)`, int64(0x636f646568756203)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if hosts := query[string](e, `SELECT string_agg(hostname, ',') FROM replicas`); hosts != "b" {
		t.Errorf("joined: %s", hosts)
	}
}

// A migration waits for a table that a server uses, but does not let others wait behind it for
// longer than a lock's time limit.
func TestMigrateRepeatsForLockedTable(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	conn := e.conn()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE workspaces IN ACCESS SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	files := nextMigrations(t, "ALTER TABLE workspaces ADD COLUMN color text;")
	done := make(chan error, 1)
	go func() { done <- postgres.MigrateWith(t.Context(), e.dsn, files) }()
	waits := func() bool {
		return query[bool](e, `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'workspaces'::regclass AND NOT granted)`)
	}
	harness.EventuallyWithin(t, time.Minute, "it waits for the table", waits)
	harness.EventuallyWithin(t, time.Minute, "it gives up for a while", func() bool { return !waits() })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A database of a version before 0.1.0 is refused, unless all of that version's migrations were
// applied.
func TestMigrateRefusesUnreleased(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	e.exec(`UPDATE goose_db_version SET version_id = 58 WHERE version_id >= 60`)
	_, err := postgres.WouldMigrate(t.Context(), e.dsn)
	for _, err := range []error{err, postgres.Migrate(t.Context(), e.dsn)} {
		if err == nil || !strings.Contains(err.Error(), "before 0.1.0 has made the database (migration 58)") {
			t.Error(err)
		}
	}
	e.exec(`INSERT INTO goose_db_version (version_id, is_applied) SELECT id, true FROM generate_series(59, 60) id`)
	if p, err := postgres.WouldMigrate(t.Context(), e.dsn); err != nil || p.Migrations != len(migrationNames(t))-1 {
		t.Errorf("%+v, %v", p, err)
	}
}

func openSQL(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// Every migration keeps what the servers of the version before use, or says that it stops them.
func TestMigrationsKeepEarlierServers(t *testing.T) {
	t.Parallel()
	says := regexp.MustCompile(`(?m)^\s*UPDATE\s+compatibility`)
	db := openSQL(t, emptyDSN(t))
	own, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	var before schema
	for _, s := range own.ListSources() {
		text, err := os.ReadFile("migrations/" + s.Path)
		if err != nil {
			t.Fatal(err)
		}
		stops := postgres.StopsServers(s.Version, text)
		if _, err := own.UpTo(t.Context(), s.Version); err != nil {
			t.Fatal(err)
		}
		after := schemaOf(t, db)
		if s.Version == 60 { // the schema of 0.1.0
			before = after
			continue
		}
		if broken := before.brokenBy(after); len(broken) > 0 && !stops {
			t.Errorf("%s: servers of the earlier version run on during an upgrade, and it changes what they use: %s. Split it into changes that keep "+
				"the earlier version working, or let it stop servers: docs/database.md says how", s.Path, strings.Join(broken, "; "))
		}
		var since int64
		if err := db.QueryRowContext(t.Context(), `SELECT works_since FROM compatibility`).Scan(&since); err != nil {
			t.Fatal(err)
		}
		if stops != (since == s.Version) || says.Match(text) != stops {
			t.Errorf("%s: works_since is %d after it; a migration that stops servers has the line \"UPDATE compatibility SET works_since = %d;\"", s.Path, since, s.Version)
		}
		before = after
	}
}

// What is found in a migration that servers of the earlier version do not work with.
func TestIncompatibleMigrationsAreFound(t *testing.T) {
	t.Parallel()
	db := openSQL(t, open(t, postgres.Options{}).dsn)
	before := schemaOf(t, db)
	for change, want := range map[string]string{
		"CREATE TABLE colors (name text PRIMARY KEY, owner uuid REFERENCES users ON DELETE CASCADE)": "",
		"ALTER TABLE users ADD COLUMN color text":                                                    "",
		"ALTER TABLE users ADD COLUMN color text NOT NULL DEFAULT 'red' CHECK (color <> '')":         "",
		"ALTER TABLE users ADD COLUMN color text UNIQUE":                                             "",
		"CREATE INDEX ON users (created_at)":                                                         "",
		"UPDATE users SET username = username":                                                       "",

		"DROP TABLE name_failures":                                                                                     "table name_failures is gone",
		"ALTER TABLE users DROP COLUMN failed_at":                                                                      "column users.failed_at is gone",
		"ALTER TABLE users RENAME COLUMN failed_at TO failed":                                                          "column users.failed_at is gone",
		"ALTER TABLE users ADD COLUMN color text; ALTER TABLE users ALTER color SET NOT NULL":                          "new column users.color needs a value",
		"ALTER TABLE name_failures ALTER COLUMN failures TYPE bigint":                                                  "column name_failures.failures is now",
		"ALTER TABLE name_failures ALTER COLUMN failures SET DEFAULT 1":                                                "column name_failures.failures is now",
		"ALTER TABLE users ALTER COLUMN failed_at SET NOT NULL":                                                        "column users.failed_at is now",
		"ALTER TABLE users ALTER COLUMN username DROP NOT NULL":                                                        "column users.username is now",
		"ALTER TABLE name_failures DROP CONSTRAINT name_failures_failures_check":                                       "constraint name_failures_failures_check on name_failures is gone",
		"ALTER TABLE users ADD CONSTRAINT color CHECK (username <> 'red')":                                             "new constraint color on users",
		"CREATE UNIQUE INDEX color ON users (created_at)":                                                              "new unique index color on users",
		"DROP INDEX name_failures_hash; ALTER TABLE name_failures DROP CONSTRAINT name_failures_pkey":                  "constraint name_failures_pkey on name_failures is gone",
		"CREATE TABLE colors (owner uuid REFERENCES users)":                                                            "new constraint colors_owner_fkey on colors refers to users",
		"CREATE TRIGGER color BEFORE INSERT ON users FOR EACH ROW EXECUTE FUNCTION stamp_audit_log()":                  "new trigger color on users",
		"CREATE OR REPLACE FUNCTION stamp_audit_log() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$": "function stamp_audit_log is now",
	} {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(t.Context(), change); err != nil {
			t.Fatalf("%s: %v", change, err)
		}
		broken := before.brokenBy(schemaOf(t, tx))
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if found := strings.Join(broken, "; "); want == "" && found != "" || !strings.Contains(found, want) {
			t.Errorf("%s: found %q, want %q", change, found, want)
		}
	}
}

// schema is what statements of a server rely on, as descriptions by name.
type schema struct {
	tables map[string]bool
	// columns are "type, null or not, default", by table and name.
	columns map[string]string
	// rules are constraints, unique indexes, triggers and functions: their definitions by kind,
	// name and table.
	rules map[rule]definition
}

type rule struct{ kind, name, table string }

type definition struct {
	text    string
	columns []string // of a constraint or an index, with the table
	refers  string   // the table of a foreign key that refuses to remove its rows
}

func schemaOf(t *testing.T, db interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}) schema {
	t.Helper()
	s := schema{tables: map[string]bool{}, columns: map[string]string{}, rules: map[rule]definition{}}
	each := func(query string, row func(rows *sql.Rows) error) {
		t.Helper()
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			if err := row(rows); err != nil {
				t.Fatal(err)
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	each(`SELECT relname FROM pg_class WHERE relkind IN ('r', 'p', 'v') AND relnamespace = 'public'::regnamespace`, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		s.tables[name] = true
		return err
	})
	each(`SELECT c.relname || '.' || a.attname, format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ', not null' ELSE '' END
			|| a.attidentity::text || a.attgenerated::text || COALESCE(', ' || pg_get_expr(d.adbin, d.adrelid), '')
		FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE c.relkind IN ('r', 'p', 'v') AND c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped`, func(rows *sql.Rows) error {
		var name, text string
		err := rows.Scan(&name, &text)
		s.columns[name] = text
		return err
	})
	each(`SELECT 'constraint', conname, conrelid::regclass::text, pg_get_constraintdef(oid),
			ARRAY(SELECT conrelid::regclass || '.' || attname FROM pg_attribute WHERE attrelid = conrelid AND attnum = ANY (conkey))::text,
			CASE WHEN contype = 'f' AND confdeltype IN ('a', 'r') THEN confrelid::regclass::text ELSE '' END
		FROM pg_constraint WHERE conrelid <> 0 AND connamespace = 'public'::regnamespace AND contype <> 'n'
		UNION ALL
		SELECT 'unique index', indexrelid::regclass::text, indrelid::regclass::text, pg_get_indexdef(indexrelid),
			ARRAY(SELECT indrelid::regclass || '.' || attname FROM pg_attribute WHERE attrelid = indrelid AND attnum = ANY (indkey::smallint[]))::text, ''
		FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
		WHERE indisunique AND relnamespace = 'public'::regnamespace AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid AND contype IN ('p', 'u', 'x'))
		UNION ALL
		SELECT 'trigger', tgname, tgrelid::regclass::text, pg_get_triggerdef(oid), '{}', '' FROM pg_trigger WHERE NOT tgisinternal
		UNION ALL
		SELECT 'function', proname, '', pg_get_functiondef(oid), '{}', '' FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prokind IN ('f', 'p')`, func(rows *sql.Rows) error {
		var r rule
		var d definition
		var columns string
		err := rows.Scan(&r.kind, &r.name, &r.table, &d.text, &columns, &d.refers)
		if columns = strings.Trim(columns, "{}"); columns != "" {
			d.columns = strings.Split(columns, ",")
		}
		s.rules[r] = d
		return err
	})
	return s
}

// brokenBy lists what changed that servers which know s alone may rely on. They do not know new
// tables, and give new columns no value.
func (s schema) brokenBy(after schema) (broken []string) {
	say := func(format string, args ...any) { broken = append(broken, fmt.Sprintf(format, args...)) }
	for table := range s.tables {
		if !after.tables[table] {
			say("table %s is gone", table)
		}
	}
	for column, text := range s.columns {
		now, exists := after.columns[column]
		table, _, _ := strings.Cut(column, ".")
		switch {
		case !after.tables[table]:
		case !exists:
			say("column %s is gone", column)
		case now != text:
			say("column %s is now %s", column, now)
		}
	}
	for column, text := range after.columns {
		table, _, _ := strings.Cut(column, ".")
		if _, known := s.columns[column]; !known && s.tables[table] && strings.HasSuffix(text, ", not null") {
			say("new column %s needs a value", column)
		}
	}
	for r, d := range s.rules {
		now, exists := after.rules[r]
		switch {
		case !exists && (r.table == "" || after.tables[r.table]):
			say("%s %s on %s is gone", r.kind, r.name, r.table)
		case exists && now.text != d.text:
			say("%s %s is now %s", r.kind, r.name, now.text)
		}
	}
	for r, d := range after.rules {
		if _, known := s.rules[r]; known {
			continue
		}
		ofNew := len(d.columns) > 0 && !slices.ContainsFunc(d.columns, func(c string) bool { _, known := s.columns[c]; return known })
		switch {
		case d.refers != "" && s.tables[d.refers]:
			say("new %s %s on %s refers to %s, whose rows can no longer be removed", r.kind, r.name, r.table, d.refers)
		case r.table != "" && s.tables[r.table] && !ofNew:
			say("new %s %s on %s", r.kind, r.name, r.table)
		}
	}
	return slices.Sorted(slices.Values(broken))
}

// Migration 62 takes over what earlier commands have imported.
func TestMigrationKeepsArrivals(t *testing.T) {
	t.Parallel()
	db := openSQL(t, emptyDSN(t))
	own, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	const insert = `
		INSERT INTO m1_users VALUES ('u', gen_random_uuid());
		INSERT INTO m1_workspaces VALUES ('done', gen_random_uuid(), NULL, '{}', now()), ('begun', gen_random_uuid(), gen_random_uuid(), '{}', NULL);
		INSERT INTO moved_users VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid());
		INSERT INTO moved_workspaces VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), ARRAY[gen_random_uuid()], 'v', now())`
	if _, err := own.UpTo(t.Context(), 61); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), insert); err != nil {
		t.Fatal(err)
	}
	if _, err := own.UpTo(t.Context(), 62); err != nil {
		t.Fatal(err)
	}
	var got string
	err = db.QueryRowContext(t.Context(), `
		SELECT string_agg(concat_ws(' ', CASE source WHEN 'first-version' THEN old_id ELSE 'moved' END, kind, version, cardinality(abandoned), arrived_at IS NOT NULL), ', ' ORDER BY kind, source DESC, old_id)
		FROM arrivals`).Scan(&got)
	if want := "u user  0 t, moved user  0 t, begun workspace  0 f, done workspace  0 t, moved workspace v 1 t"; err != nil || got != want {
		t.Errorf("%q, want %q, %v", got, want, err)
	}
}
