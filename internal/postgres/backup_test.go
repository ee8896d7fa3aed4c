package postgres_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/klauspost/compress/zstd"
	"github.com/pressly/goose/v3"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
)

// Every row of every table comes back as it was, and the database that has them has the same
// references, triggers and sequences, and is a server's.
func TestBackupRoundTrip(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	must(e.Installation(t.Context()))(t)
	e.workspace(e.user("ann"), state{}) // its constraints are too many for random values
	fillTables(t, fixture.Connect(t, e.dsn))
	file, info := backedUp(t, e.dsn)
	if info.Installation != must(e.Installation(t.Context()))(t) || info.Settings["CODEHUB_URL"] != "http://x" || info.Version != "0.9.0" {
		t.Errorf("%+v", info)
	}
	dsn := emptyDSN(t)
	done, err := postgres.LoadBackup(t.Context(), dsn, bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	want, got := content(t, e.dsn), content(t, dsn)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if done.Rows < 100 || len(done.Unknown) > 0 || done.Installation != info.Installation {
		t.Errorf("%+v", done)
	}
	again := fixture.OpenDatabase(t, dsn, postgres.Options{})
	if id, err := again.DB.Installation(t.Context()); err != nil || id != info.Installation {
		t.Errorf("installation %s, %v", id, err)
	}
	again.AddUser("new") // adds to the audit log, whose numbers go on
	if _, err := postgres.LoadBackup(t.Context(), dsn, bytes.NewReader(file)); !errors.Is(err, postgres.ErrNotEmpty) {
		t.Errorf("into a database in use: %v", err)
	}
}

// A backup that is cut, changed, or made by a newer version is refused before anything is written.
func TestDamagedBackupIsRefused(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	e.user("ann")
	file, _ := backedUp(t, e.dsn)
	dsn := emptyDSN(t)
	refuse := func(what string, file []byte, want string) {
		t.Helper()
		_, err := postgres.LoadBackup(t.Context(), dsn, bytes.NewReader(file))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := postgres.CheckBackup(bytes.NewReader(file)); err == nil {
			t.Errorf("%s passes the check", what)
		}
	}
	for _, n := range []int{6, len(file) / 2, len(file) - 5, len(file) - 1} {
		refuse(fmt.Sprintf("cut at %d", n), file[:n], "damaged")
		changed := bytes.Clone(file)
		changed[n] ^= 1
		refuse(fmt.Sprintf("changed at %d", n), changed, "")
	}
	refuse("nothing", nil, "not a backup")
	refuse("another file", []byte("PGDMP and more of it"), "not a backup")

	// A change that keeps the file a whole one for zstd.
	text := plain(t, file)
	for what, to := range map[string][]string{
		"another row":      {"\tann\t", "\teve\t", "damaged"},
		"a table less":     {`{"table":"users"`, `{"table":"other"`, "damaged"},
		"a newer database": {fmt.Sprintf(`"migration":%d`, newestMigration(t)), `"migration":9999`, "a newer codehub (0.9.0) has made the backup"},
	} {
		changed := strings.Replace(text, to[0], to[1], 1)
		if changed == text {
			t.Errorf("%s: nothing to change", what)
		}
		refuse(what, packed(t, changed), to[2])
	}
	end := strings.LastIndex(strings.TrimSuffix(text, "\n"), "\n") + 1
	refuse("without its end", packed(t, text[:end]), "damaged")
	refuse("with more after its end", packed(t, text+text), "damaged")
	if n := fixtureQuery[int](t, dsn, `SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace`); n != 0 {
		t.Errorf("refused backups have made %d tables and indexes", n)
	}
}

// failsOnSecondPass is a file of which the disk gives half when it is read again.
type failsOnSecondPass struct {
	*bytes.Reader
	fail func() error
	left int
}

func (f *failsOnSecondPass) Seek(to int64, whence int) (int64, error) {
	f.left = f.Len()/2 + int(f.Size())/2
	return f.Reader.Seek(to, whence)
}

func (f *failsOnSecondPass) Read(p []byte) (int, error) {
	if f.left > 0 {
		if f.left -= len(p); f.left <= 0 {
			return 0, f.fail()
		}
	}
	return f.Reader.Read(p)
}

// A load that fails or is stopped between two rows leaves no row, and can run again.
func TestInterruptedLoad(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	e.exec(`INSERT INTO audit_log (username, action, target) SELECT 'ann', 'x', md5(n::text) || md5(n::text || 'y') FROM generate_series(1, 5000) n`)
	file, _ := backedUp(t, e.dsn)
	dsn := emptyDSN(t)
	ctx, cancel := context.WithCancel(t.Context())
	for _, fail := range []func() error{
		func() error { return io.ErrNoProgress },
		func() error { cancel(); return ctx.Err() },
	} {
		if _, err := postgres.LoadBackup(ctx, dsn, &failsOnSecondPass{Reader: bytes.NewReader(file), fail: fail}); err == nil {
			t.Error("the load succeeded")
		}
		if n := fixtureQuery[int](t, dsn, `SELECT count(*) FROM users`); n != 0 {
			t.Errorf("%d users are left", n)
		}
	}
	if _, err := postgres.LoadBackup(t.Context(), dsn, bytes.NewReader(file)); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(content(t, e.dsn), content(t, dsn)); d != "" {
		t.Error(d)
	}
	if u, err := fixture.OpenDatabase(t, dsn, postgres.Options{}).DB.User(t.Context(), ann.UserID); err != nil || u.Username != "ann" {
		t.Errorf("%+v, %v", u, err)
	}
}

// A backup that is made during writes has all of a transaction or none of it.
func TestBackupUnderWrites(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	wrote, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			err := pgx.BeginFunc(t.Context(), e.raw, func(tx pgx.Tx) error { // the name that is written last is dumped first
				id := uuid.New()
				_, err := tx.Exec(t.Context(), `INSERT INTO users (id, username, username_key, password_hash) VALUES ($1, $2, $2, '')`, id, id.String())
				if err == nil {
					_, err = tx.Exec(t.Context(), `INSERT INTO sessions (hash, user_id, expires_at) VALUES (sha256($1::uuid::text::bytea), $1, now())`, id)
				}
				if err == nil {
					_, err = tx.Exec(t.Context(), `INSERT INTO audit_log (username, action, target) VALUES ('x', 'x', $1)`, id.String())
				}
				return err
			})
			if err != nil {
				ended <- err
				return
			}
			select {
			case wrote <- struct{}{}:
			default:
			}
		}
		ended <- nil
	}()
	var file []byte
	for range 5 {
		<-wrote
		file, _ = backedUp(t, e.dsn)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	dsn := emptyDSN(t)
	if _, err := postgres.LoadBackup(t.Context(), dsn, bytes.NewReader(file)); err != nil {
		t.Fatal(err)
	}
	got := fixtureQuery[string](t, dsn, `SELECT concat_ws(' ', (SELECT count(*) FROM users), (SELECT count(*) FROM sessions), (SELECT count(*) FROM audit_log))`)
	n, _, _ := strings.Cut(got, " ")
	if n == "0" || got != n+" "+n+" "+n {
		t.Errorf("users, sessions and entries: %s", got)
	}
}

// A backup of an earlier version has its migrations, and the server applies the rest.
func TestBackupOfEarlierMigration(t *testing.T) {
	t.Parallel()
	dsn, first := emptyDSN(t), must(os.ReadFile("migrations/00060_schema.sql"))(t)
	db := must(sql.Open("pgx", dsn))(t)
	defer db.Close()
	p := must(goose.NewProvider(goose.DialectPostgres, db, fstest.MapFS{"00060_schema.sql": {Data: first}}, goose.WithDisableGlobalRegistry(true)))(t)
	must(p.Up(t.Context()))(t)
	must(db.ExecContext(t.Context(), `INSERT INTO users (id, username, username_key, password_hash) VALUES (gen_random_uuid(), 'ann', 'ann', '')`))(t)
	file, info := backedUp(t, dsn)
	to := emptyDSN(t)
	must(postgres.LoadBackup(t.Context(), to, bytes.NewReader(file)))(t)
	if d := cmp.Diff(content(t, dsn), content(t, to)); d != "" || info.Migration != 60 {
		t.Errorf("migration %d:\n%s", info.Migration, d)
	}
	if err := postgres.Migrate(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	if n := fixtureQuery[int](t, to, `SELECT count(*) FROM users WHERE username = 'ann'`); n != 1 {
		t.Errorf("%d users", n)
	}
	migrated := emptyDSN(t)
	if err := postgres.Migrate(t.Context(), migrated); err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.LoadBackup(t.Context(), migrated, bytes.NewReader(file)); err == nil || !strings.Contains(err.Error(), "drop the database") {
		t.Errorf("into a database of this version: %v", err)
	}
	if _, err := postgres.WriteBackup(t.Context(), emptyDSN(t), io.Discard, "", nil); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("backup of nothing: %v", err)
	}
}

// A database with tables of another program is refused, with and without codehub's migrations.
func TestLoadLeavesTablesOfOthers(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	e.user("ann")
	file, _ := backedUp(t, e.dsn)
	for _, migrate := range []bool{false, true} {
		dsn := emptyDSN(t)
		if migrate {
			if err := postgres.Migrate(t.Context(), dsn); err != nil {
				t.Fatal(err)
			}
		}
		other := fixture.Connect(t, dsn)
		must(other.Exec(t.Context(), `CREATE TABLE notes (id int); INSERT INTO notes VALUES (1)`))(t)
		if _, err := postgres.LoadBackup(t.Context(), dsn, bytes.NewReader(file)); !errors.Is(err, postgres.ErrNotEmpty) {
			t.Errorf("migrated %t: %v", migrate, err)
		}
		if n := fixtureQuery[int](t, dsn, `SELECT count(*) FROM notes`); n != 1 {
			t.Errorf("migrated %t: %d rows are left", migrate, n)
		}
		if !migrate && fixtureQuery[bool](t, dsn, `SELECT to_regclass('goose_db_version') IS NOT NULL`) {
			t.Error("the database was migrated")
		}
		must(other.Exec(t.Context(), `DROP TABLE notes; CREATE VIEW notes AS SELECT 1; CREATE EXTENSION pg_trgm`))(t)
		if _, err := postgres.LoadBackup(t.Context(), dsn, bytes.NewReader(file)); errors.Is(err, postgres.ErrNotEmpty) == migrate {
			t.Errorf("migrated %t, with a view: %v", migrate, err)
		}
	}
}

func backedUp(t *testing.T, dsn string) ([]byte, postgres.BackupInfo) {
	t.Helper()
	var file bytes.Buffer
	info, err := postgres.WriteBackup(t.Context(), dsn, &file, "0.9.0", map[string]string{"CODEHUB_URL": "http://x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.CheckBackup(bytes.NewReader(file.Bytes())); err != nil {
		t.Fatal(err)
	}
	return file.Bytes(), info
}

func plain(t *testing.T, file []byte) string {
	t.Helper()
	z := must(zstd.NewReader(nil))(t)
	defer z.Close()
	return string(must(z.DecodeAll(file, nil))(t))
}

func packed(t *testing.T, text string) []byte {
	t.Helper()
	z := must(zstd.NewWriter(nil))(t)
	defer z.Close()
	return z.EncodeAll([]byte(text), nil)
}

func newestMigration(t *testing.T) (v int64) {
	t.Helper()
	for _, f := range must(os.ReadDir("migrations"))(t) {
		n, err := goose.NumericComponent(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		v = max(v, n)
	}
	return v
}

func fixtureQuery[T any](t *testing.T, dsn, query string) (v T) {
	t.Helper()
	if err := fixture.Connect(t, dsn).QueryRow(t.Context(), query).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// content is all of a database as text: its rows, sequences, references and triggers.
func content(t *testing.T, dsn string) map[string][]string {
	t.Helper()
	conn := fixture.Connect(t, dsn)
	list := func(query string) []string {
		t.Helper()
		rows, err := conn.Query(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		return must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
	}
	out := map[string][]string{
		"references": list(`SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = 'public'::regnamespace ORDER BY 1`),
		"triggers": list(`SELECT tgrelid::regclass || ' ' || tgname || ' ' || tgenabled::text FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid
			WHERE c.relnamespace = 'public'::regnamespace AND NOT tgisinternal ORDER BY 1`),
	}
	for _, s := range list(`SELECT relname::text FROM pg_class WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace`) {
		out["sequence "+s] = list(`SELECT last_value || ' ' || is_called FROM ` + s)
	}
	for _, table := range list(`SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'`) {
		out[table] = list(`SELECT row_to_json(t)::text FROM ` + table + ` t ORDER BY 1`)
	}
	return out
}

// fillColumn is a column for which fillTables has to find values.
type fillColumn struct {
	Name, Type string
	Needed     bool
	Values     []string // that constraints name
}

// fillTables gives every table rows: it tries random values until the constraints accept them.
func fillTables(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	ctx, rnd := t.Context(), rand.New(rand.NewPCG(1, 2))
	rows, err := conn.Query(ctx, `SELECT c.oid::regclass::text FROM pg_class c WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'goose_db_version' ORDER BY oid`)
	if err != nil {
		t.Fatal(err)
	}
	missing := must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
	for range 3 { // some refer to later ones
		missing = slices.DeleteFunc(missing, func(table string) bool { return fillTable(ctx, t, conn, rnd, table) })
	}
	if len(missing) > 0 {
		t.Errorf("no rows found for %v", missing)
	}
}

var literal = regexp.MustCompile(`'([^']+)'`)

func fillTable(ctx context.Context, t *testing.T, conn *pgx.Conn, rnd *rand.Rand, table string) bool {
	t.Helper()
	rows, err := conn.Query(ctx, `
		SELECT attname::text, format_type(atttypid, NULL), attnotnull AND NOT atthasdef,
			ARRAY(SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = attrelid AND contype = 'c' AND attnum = ANY (conkey))
		FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attidentity = ''`, table)
	if err != nil {
		t.Fatal(err)
	}
	columns := must(pgx.CollectRows(rows, pgx.RowToStructByPos[fillColumn]))(t)
	rows, err = conn.Query(ctx, `
		SELECT confrelid::regclass::text, (SELECT attname::text FROM pg_attribute WHERE attrelid = conrelid AND attnum = conkey[1]),
			(SELECT attname::text FROM pg_attribute WHERE attrelid = confrelid AND attnum = confkey[1])
		FROM pg_constraint WHERE conrelid = $1::text::regclass AND contype = 'f'`, table)
	if err != nil {
		t.Fatal(err)
	}
	references := map[string]string{}
	for _, r := range must(pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Table, From, To string }]))(t) {
		references[r.From] = fmt.Sprintf("(SELECT %s FROM %s ORDER BY random() LIMIT 1)", r.To, r.Table)
	}
	var try strings.Builder
	for range 25 {
		var names, values []string
		for _, c := range columns {
			if !c.Needed && rnd.IntN(2) == 0 {
				continue
			}
			v := references[c.Name]
			if v == "" {
				v = c.value(rnd)
			}
			names, values = append(names, c.Name), append(values, v)
		}
		if len(names) > 0 { // constraints refuse most
			fmt.Fprintf(&try, "BEGIN INSERT INTO %s (%s) VALUES (%s); EXCEPTION WHEN OTHERS THEN NULL; END;\n", table, strings.Join(names, ", "), strings.Join(values, ", "))
		}
	}
	if _, err := conn.Exec(ctx, "DO $do$ BEGIN "+try.String()+" END $do$"); err != nil {
		t.Fatal(table, err)
	}
	var have int
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM "+table).Scan(&have); err != nil {
		t.Fatal(err)
	}
	return have > 0
}

// value is a random value in SQL.
func (c fillColumn) value(rnd *rand.Rand) string {
	pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
	switch {
	case c.Type == "uuid":
		return "gen_random_uuid()"
	case c.Type == "boolean":
		return pick("true", "false")
	case c.Type == "bytea":
		return fmt.Sprintf("sha256('%d')", rnd.Uint64())
	case c.Type == "jsonb":
		return pick(`'{}'`, `'[]'`, `'{"a": "\\n \" \t 한글"}'`)
	case c.Type == "date":
		return fmt.Sprintf("current_date - %d", rnd.IntN(1000))
	case c.Type == "interval":
		return pick("interval '1 month 2 days 03:04:05.678901'", "interval '-1 s'", "interval '0'")
	case strings.HasPrefix(c.Type, "timestamp"):
		return pick("clock_timestamp()", "clock_timestamp() + interval '1.000001 s'", "'infinity'")
	case strings.HasSuffix(c.Type, "[]"):
		return pick("'{}'", "ARRAY[gen_random_uuid()]::"+c.Type)
	case strings.HasPrefix(c.Type, "text"), strings.HasPrefix(c.Type, "char"):
		text := []string{`''`, `E'a\tb\n\\.\n\\N ''한글\u2028'`, fmt.Sprintf("'x%d'", rnd.Uint32())}
		for _, def := range c.Values {
			for _, m := range literal.FindAllStringSubmatch(def, -1) {
				text = append(text, "'"+m[1]+"'")
			}
		}
		return pick(text...)
	}
	return pick("0", "1", "2", "3.25", "1000000", "-1")
}
