package postgres

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"regexp"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/klauspost/compress/zstd"
	"github.com/pressly/goose/v3"
)

// ErrNotEmpty is the error of LoadBackup if a codehub or another program has used the database.
var ErrNotEmpty = errors.New("the database is not empty")

// LoadedBackup is what LoadBackup has loaded.
type LoadedBackup struct {
	BackupInfo
	Tables int
	Rows   int64
	// Unknown are tables of the backup that codehub's migrations do not make. They are not loaded.
	Unknown []string
}

// CheckBackup reads a whole backup, and refuses one that is cut or changed, or that a newer
// codehub has made.
func CheckBackup(r io.Reader) (BackupInfo, error) {
	in, err := openBackup(r)
	if err != nil {
		return BackupInfo{}, err
	}
	defer in.close()
	for {
		switch l, err := in.next(); {
		case err == io.EOF:
			return in.info, nil
		case err != nil:
			return BackupInfo{}, err
		case l.Table != "":
			if _, err := io.Copy(io.Discard, in.rows()); err != nil {
				return BackupInfo{}, err
			}
		}
	}
}

// LoadBackup loads a backup into an empty database. A backup that CheckBackup refuses is refused
// before anything is written. Then the database gets the migrations of the backup, and all rows in
// one transaction. If that fails, the database has no rows, and LoadBackup can load it again.
// ErrNotEmpty if a codehub has used the database, or if it has tables of another program.
func LoadBackup(ctx context.Context, dsn string, file io.ReadSeeker) (done LoadedBackup, err error) {
	const verb = "load the backup"
	if done.BackupInfo, err = CheckBackup(file); err != nil {
		return done, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return done, err
	}
	if err := migrateTo(ctx, dsn, done.Migration); err != nil {
		return done, err
	}
	// No server starts on the database while it is loaded.
	conn, err := unmigrated(ctx, dsn, verb, "pg_try_advisory_lock")
	if err != nil {
		return done, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return done, failed(verb, err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if err := done.load(ctx, tx, file); err != nil {
		return done, fmt.Errorf("%s: %w", verb, err)
	}
	if err := tx.Commit(ctx); err != nil {
		return done, failed(verb, err)
	}
	_, err = conn.Exec(ctx, `ANALYZE`) // a backup has no statistics for queries
	return done, failed("analyze the database", err)
}

// migrateTo applies the migrations up to one to an empty database.
func migrateTo(ctx context.Context, dsn string, version int64) error {
	have, err := migrationOf(ctx, dsn)
	if err != nil {
		return err
	}
	m, err := newMigrator(dsn, ownMigrations())
	if err != nil {
		return err
	}
	defer m.close()
	if err := m.unused(ctx, have); err != nil {
		return err
	}
	if have > version {
		return fmt.Errorf("the database has migration %d already, and the backup is of migration %d: drop the database and create it again", have, version)
	}
	if err := m.up(ctx, version); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return nil
}

// used selects whether a codehub has used the database.
const used = `
	SELECT EXISTS (SELECT FROM installation) OR EXISTS (SELECT FROM users) OR EXISTS (SELECT FROM replicas) OR EXISTS (SELECT FROM audit_log)`

// foreign selects whether the schema has relations of some kinds that have other names than those
// given, and that no extension owns.
const foreign = `
	SELECT EXISTS (SELECT FROM pg_class c WHERE relnamespace = current_schema()::regnamespace
		AND strpos($1, relkind::text) > 0 AND relname <> ALL ($2::text[])
		AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'))`

// unused refuses a database with the migration have if a codehub or another program has used it.
func (m *migrator) unused(ctx context.Context, have int64) error {
	kinds, names := "rpf", madeTables(m.files, have)
	if have == 0 { // an interrupted first migration leaves a table with a sequence
		kinds, names = kinds+"vmSc", []string{goose.DefaultTablename, goose.DefaultTablename + "_id_seq"}
	}
	var is bool
	err := m.db.QueryRowContext(ctx, foreign, kinds, names).Scan(&is)
	if err == nil && !is && have > 0 {
		err = m.db.QueryRowContext(ctx, used).Scan(&is)
	}
	if err != nil {
		return failed("look whether the database is empty", err)
	}
	if is {
		return ErrNotEmpty
	}
	return nil
}

var madeTable = regexp.MustCompile(`(?m)^CREATE TABLE (\w+)`)

// madeTables are the tables that the migrations up to a version make.
func madeTables(files fs.FS, version int64) []string {
	made := []string{goose.DefaultTablename}
	names, err := fs.Glob(files, "*.sql")
	for _, name := range names {
		n, e := goose.NumericComponent(name)
		text, e2 := fs.ReadFile(files, name)
		if err = errors.Join(err, e, e2); n > version {
			continue
		}
		for _, m := range madeTable.FindAllSubmatch(text, -1) {
			made = append(made, string(m[1]))
		}
	}
	if err != nil {
		panic(err) // the files are codehub's own
	}
	return made
}

// load replaces the rows of all tables. References are removed meanwhile, since tables refer to
// each other in cycles, and triggers are off: they would give entries of the audit log a new time. The
// owner of the tables may do both.
func (l *LoadedBackup) load(ctx context.Context, tx pgx.Tx, file io.Reader) error {
	tables, err := tablesOf(ctx, tx)
	if err != nil {
		return err
	}
	made := madeTables(ownMigrations(), l.Migration)
	if slices.ContainsFunc(tables, func(t backupLine) bool { return !slices.Contains(made, t.Table) }) {
		return ErrNotEmpty
	}
	known := map[string]bool{}
	var names string
	for i, t := range tables {
		known[t.Table] = true
		if i > 0 {
			names += ", "
		}
		names += quoted(t.Table)
		if _, err := tx.Exec(ctx, "ALTER TABLE "+quoted(t.Table)+" DISABLE TRIGGER USER"); err != nil { // it locks the table
			return err
		}
	}
	var inUse bool
	if err := tx.QueryRow(ctx, used).Scan(&inUse); err != nil {
		return err
	}
	if inUse {
		return ErrNotEmpty
	}
	references, err := dropReferences(ctx, tx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "TRUNCATE "+names); err != nil { // migrations make some rows
		return err
	}
	in, err := openBackup(file)
	if err != nil {
		return err
	}
	defer in.close()
	for {
		line, err := in.next()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = l.section(ctx, tx, in, line, known)
		}
		if err != nil {
			return err
		}
	}
	for _, r := range references {
		if _, err := tx.Exec(ctx, r); err != nil {
			return err
		}
	}
	for _, t := range tables {
		if _, err := tx.Exec(ctx, "ALTER TABLE "+quoted(t.Table)+" ENABLE TRIGGER USER"); err != nil {
			return err
		}
	}
	return nil
}

// section loads the rows of a table, or the sequences.
func (l *LoadedBackup) section(ctx context.Context, tx pgx.Tx, in *backupReader, line backupLine, known map[string]bool) error {
	for _, s := range line.Sequences {
		_, err := tx.Exec(ctx, `SELECT setval(c.oid, $2, $3) FROM pg_class c WHERE c.relkind = 'S' AND c.relnamespace = current_schema()::regnamespace AND c.relname = $1`,
			s.Name, s.Last, s.Called)
		if err != nil {
			return fmt.Errorf("sequence %s: %w", s.Name, err)
		}
	}
	switch {
	case line.Table == "":
		return nil
	case !known[line.Table]:
		l.Unknown = append(l.Unknown, line.Table)
		_, err := io.Copy(io.Discard, in.rows())
		return err
	}
	tag, err := tx.Conn().PgConn().CopyFrom(ctx, in.rows(), "COPY "+columnsOf(line)+" FROM STDIN")
	if err != nil {
		return fmt.Errorf("table %s: %w", line.Table, err)
	}
	l.Tables++
	l.Rows += tag.RowsAffected()
	return nil
}

// dropReferences removes all foreign keys, and returns the statements that make them again.
func dropReferences(ctx context.Context, tx pgx.Tx) (again []string, err error) {
	rows, err := tx.Query(ctx, `
		SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname),
			format('ALTER TABLE %s ADD CONSTRAINT %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
		FROM pg_constraint WHERE contype = 'f' AND connamespace = current_schema()::regnamespace ORDER BY oid`)
	if err != nil {
		return nil, err
	}
	type reference struct{ Drop, Add string }
	references, err := pgx.CollectRows(rows, pgx.RowToStructByPos[reference])
	for _, r := range references {
		if err == nil {
			_, err = tx.Exec(ctx, r.Drop)
		}
		again = append(again, r.Add)
	}
	return again, err
}

// backupReader reads a backup.
type backupReader struct {
	info  BackupInfo
	lines *bufio.Reader
	sum   hash.Hash // of the lines that were read
	close func()
}

// errDamaged is the error about a backup that is cut or changed, and errNoBackup that about a file
// without the first line of one.
var (
	errDamaged  = errors.New("the backup is incomplete or damaged")
	errNoBackup = errors.New("the file is not a backup of codehub's database")
)

// maxLine bounds the lines between the rows.
const maxLine = 1 << 20

func openBackup(r io.Reader) (*backupReader, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	in := &backupReader{lines: bufio.NewReaderSize(z, 64<<10), sum: sha256.New(), close: z.Close}
	if err := in.begin(); err != nil {
		z.Close()
		return nil, err
	}
	return in, nil
}

func (in *backupReader) begin() error {
	line, err := in.line()
	if errors.Is(err, zstd.ErrMagicMismatch) || err == io.EOF || err == nil && (json.Unmarshal(line, &in.info) != nil || in.info.Format == 0) {
		return errNoBackup
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	_, _ = in.sum.Write(line) // it returns no error
	if known := newest(ownMigrations()); in.info.Format > backupFormat || in.info.Migration > known {
		return fmt.Errorf("a newer codehub (%s) has made the backup: its database has migration %d, and this version knows only those up to %d. Use that version or a newer one",
			in.info.Version, in.info.Migration, known)
	}
	return nil
}

// line reads a line between the rows.
func (in *backupReader) line() (line []byte, err error) {
	for {
		part, err := in.lines.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == io.EOF && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		case err != bufio.ErrBufferFull:
			return line, err
		case len(line) > maxLine:
			return nil, errors.New("a line is too long")
		}
	}
}

// next reads the line before the rows of a table, or that of the sequences. io.EOF after the last
// one, if the backup is complete.
func (in *backupReader) next() (l backupLine, err error) {
	line, err := in.line()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		err = d.Decode(&l)
	}
	if err == nil && l.SHA256 != "" {
		if l.SHA256 != hex.EncodeToString(in.sum.Sum(nil)) {
			return l, errDamaged
		}
		if _, err = in.lines.ReadByte(); err == io.EOF { // zstd has compared its own sum
			return l, io.EOF
		}
		return l, errDamaged
	}
	if err != nil {
		return l, fmt.Errorf("%w: %w", errDamaged, err)
	}
	_, _ = in.sum.Write(line) // it returns no error
	return l, nil
}

// rows reads the rows of a table, up to the line that ends them.
func (in *backupReader) rows() io.Reader { return &backupRows{in: in} }

type backupRows struct {
	in     *backupReader
	rest   []byte // of the line, or of its part in the buffer
	within bool   // the line goes on after rest
	done   bool
}

func (r *backupRows) Read(p []byte) (n int, err error) {
	for n < len(p) && !r.done {
		if len(r.rest) == 0 {
			line, err := r.in.lines.ReadSlice('\n')
			if err != nil && err != bufio.ErrBufferFull {
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return n, fmt.Errorf("%w: %w", errDamaged, err)
			}
			_, _ = r.in.sum.Write(line) // it returns no error
			if r.done = !r.within && string(line) == endOfRows; r.done {
				break
			}
			r.rest, r.within = line, err != nil
		}
		k := copy(p[n:], r.rest)
		n, r.rest = n+k, r.rest[k:]
	}
	if n == 0 && r.done {
		return 0, io.EOF
	}
	return n, nil
}
