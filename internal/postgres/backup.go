package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/klauspost/compress/zstd"
)

// backupFormat is the version of the format of a backup: lines of text, compressed by zstd. The
// first line is a BackupInfo. For each table a line names it and its columns, its rows follow as
// COPY prints them, and a line \. ends them. Then there is a line with the sequences, and one with
// the SHA-256 of all lines before it. It needs none of PostgreSQL's programs, which servers in
// containers do not have.
const backupFormat = 1

// BackupInfo describes a backup of the database.
type BackupInfo struct {
	Format       int               `json:"codehub_backup"`
	Time         time.Time         `json:"time"`
	Version      string            `json:"version"`      // of codehub
	Installation string            `json:"installation"` // empty: no server has used the database
	Migration    int64             `json:"migration"`
	Settings     map[string]string `json:"settings"` // without secrets
}

// backupLine is a line of a backup between the rows. Only one of its parts is set.
type backupLine struct {
	Table     string           `json:"table,omitempty"`
	Columns   []string         `json:"columns,omitempty"`
	Sequences []backupSequence `json:"sequences,omitempty"`
	SHA256    string           `json:"sha256,omitempty"`
}

type backupSequence struct {
	Name   string `json:"name"`
	Last   int64  `json:"last"`
	Called bool   `json:"called"`
}

// endOfRows cannot be a row: COPY escapes every backslash.
const endOfRows = "\\.\n"

// copyAlike has COPY print and read values alike in all databases. A role may have a timeout that
// a large table exceeds, and between two tables a slow reader may still take the rows of the first.
const copyAlike = `
	SET client_encoding = 'UTF8'; SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; SET extra_float_digits = 1;
	SET bytea_output = 'hex'; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = '10min'`

// WriteBackup writes a backup of the database, which servers may use meanwhile: all rows are of
// the same moment. No migration begins until it is written. version is that of this codehub.
func WriteBackup(ctx context.Context, dsn string, w io.Writer, version string, settings map[string]string) (info BackupInfo, err error) {
	const verb = "back up the database"
	// Before the snapshot, which then has all of a migration or none of it.
	conn, err := unmigrated(ctx, dsn, verb, "pg_try_advisory_lock_shared")
	if err != nil {
		return info, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if info.Migration, err = migrationOf(ctx, dsn); err != nil {
		return info, err
	}
	if info.Migration == 0 {
		return info, errUnused
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return info, failed(verb, err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	info.Format, info.Version, info.Settings = backupFormat, version, settings
	err = tx.QueryRow(ctx, `SELECT now(), COALESCE((SELECT id::text FROM installation), '')`).Scan(&info.Time, &info.Installation)
	if err != nil {
		return info, failed(verb, err)
	}
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return info, err
	}
	defer z.Close()
	out := &backupWriter{to: z, sum: sha256.New()}
	out.line(info)
	if err := out.tables(ctx, tx); err != nil {
		return info, failed(verb, err)
	}
	out.line(backupLine{SHA256: hex.EncodeToString(out.sum.Sum(nil))})
	return info, errors.Join(out.err, z.Close())
}

// unmigrated opens a session that holds the lock of migrations, which the function takes.
func unmigrated(ctx context.Context, dsn, verb, lock string) (*pgx.Conn, error) {
	conn, err := backupConn(ctx, dsn)
	if err != nil {
		return nil, err
	}
	var quiet bool
	err = conn.QueryRow(ctx, "SELECT "+lock+"($1)", migrationKey).Scan(&quiet)
	switch {
	case err != nil:
		err = failed(verb, err)
	case !quiet:
		err = fmt.Errorf("%s: %w", verb, errMigrating)
	default:
		return conn, nil
	}
	return nil, errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

func backupConn(ctx context.Context, dsn string) (*pgx.Conn, error) {
	cfg, err := ConnConfig(dsn, "codehub-backup")
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	if _, err := conn.Exec(ctx, copyAlike); err != nil {
		return nil, errors.Join(failed("prepare the session", err), conn.Close(ctx))
	}
	return conn, nil
}

// InstallationOf is the id of the installation whose database is at dsn. Unlike DB.Installation it
// needs no migration, and makes no id.
func InstallationOf(ctx context.Context, dsn string) (id string, err error) {
	conn, err := backupConn(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	err = conn.QueryRow(ctx, `SELECT id FROM installation`).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) || sqlState(err) == undefinedTable {
		return "", errUnused
	}
	return id, failed("read the installation's id", err)
}

// undefinedTable is the SQLSTATE about a table that does not exist.
const undefinedTable = "42P01"

var errUnused = errors.New("the database is empty: no codehub has used it")

// migrationOf is the newest migration of the database; 0: it is empty.
func migrationOf(ctx context.Context, dsn string) (int64, error) {
	cfg, err := ConnConfig(dsn, "codehub-backup")
	if err != nil {
		return 0, err
	}
	db := stdlib.OpenDB(*cfg)
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return 0, fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Close()
	return versionOf(ctx, conn)
}

// backupWriter keeps the first error of what it writes.
type backupWriter struct {
	to  io.Writer
	sum hash.Hash
	err error
}

func (w *backupWriter) Write(b []byte) (int, error) {
	if w.err == nil {
		_, _ = w.sum.Write(b) // it returns no error
		_, w.err = w.to.Write(b)
	}
	return len(b), w.err
}

func (w *backupWriter) line(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		w.err = errors.Join(w.err, err)
		return
	}
	_, _ = w.Write(append(b, '\n')) // it keeps its error
}

// ownTables selects the tables of the schema with the columns that can be written. Those of
// extensions are not codehub's.
const ownTables = `
	SELECT c.relname, array_agg(a.attname ORDER BY a.attnum)
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
	WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
		AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
		AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
	GROUP BY c.oid, c.relname ORDER BY c.relname`

func tablesOf(ctx context.Context, tx pgx.Tx) ([]backupLine, error) {
	rows, err := tx.Query(ctx, ownTables)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t backupLine, err error) {
		err = row.Scan(&t.Table, &t.Columns)
		return t, err
	})
}

// tables writes the rows of all tables, and the sequences.
func (w *backupWriter) tables(ctx context.Context, tx pgx.Tx) error {
	tables, err := tablesOf(ctx, tx)
	if err != nil {
		return err
	}
	for _, t := range tables {
		w.line(t)
		if _, err := tx.Conn().PgConn().CopyTo(ctx, w, "COPY "+columnsOf(t)+" TO STDOUT"); err != nil {
			return errors.Join(w.err, err)
		}
		_, _ = io.WriteString(w, endOfRows) // it keeps its error
	}
	// A sequence is of no snapshot. Read after the rows, it is not behind them.
	rows, err := tx.Query(ctx, `
		SELECT relname FROM pg_class WHERE relkind = 'S' AND relnamespace = current_schema()::regnamespace ORDER BY relname`)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	var l backupLine
	for _, name := range names {
		s := backupSequence{Name: name}
		if err := tx.QueryRow(ctx, "SELECT last_value, is_called FROM "+quoted(name)).Scan(&s.Last, &s.Called); err != nil {
			return err
		}
		l.Sequences = append(l.Sequences, s)
	}
	w.line(l)
	return nil
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// columnsOf is a table with its columns, as in a COPY.
func columnsOf(t backupLine) string {
	columns := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		columns[i] = quoted(c)
	}
	return quoted(t.Table) + " (" + strings.Join(columns, ", ") + ")"
}
