package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
)

// While servers are upgraded one after the other, those of the earlier version run on after the
// first new one has migrated the database. So a migration either leaves everything that they use
// as it is, which TestMigrationsKeepEarlierServers checks, or it contains a statement that
// stops matches. It is applied only when no other server runs, and no earlier server starts
// afterwards. docs/database.md explains which changes need it.
var stops = regexp.MustCompile(`(?m)^UPDATE compatibility SET works_since = (\d+);$`)

// first is the migration that makes the schema of 0.1.0. No server works without it.
const first = 60

// Outdated is the error if servers that know this one's migrations do not work with the database
// any more.
type Outdated struct {
	Database int64 // the database works with servers that know this migration
	Known    int64 // the newest migration that this one knows
}

func (o *Outdated) Error() string {
	return fmt.Sprintf("a newer codehub has migrated the database: it works with versions that know migration %d, and this one knows only those up to %d. Run the newer version",
		o.Database, o.Known)
}

// StillRunning is the error of Migrate if a migration has to wait until other servers have ended.
type StillRunning struct {
	Hosts []string // of the servers, sorted
}

func (s *StillRunning) Error() string {
	return fmt.Sprintf("this version changes tables that servers of the earlier version use, and some still run on this database: %s. "+
		"Stop all servers, then start this version", strings.Join(s.Hosts, ", "))
}

// Pending is what Migrate would do.
type Pending struct {
	Migrations int  // that are not applied yet
	Empty      bool // no migration is applied yet
	StopFirst  bool // servers of an earlier version have to end first
}

// pendingAfter is what is to be done on a database at that version.
func pendingAfter(files fs.FS, version int64) (p Pending, err error) {
	p.Empty = version == 0
	for _, file := range numbered(files) {
		if file.version <= version {
			continue
		}
		text, err := fs.ReadFile(files, file.path)
		if err != nil {
			return Pending{}, fmt.Errorf("read a migration: %w", err)
		}
		p.Migrations++
		p.StopFirst = p.StopFirst || stopsServers(file.version, text)
	}
	return p, nil
}

// stopsServers reports whether servers that do not know a migration stop working after it.
func stopsServers(version int64, text []byte) bool {
	return version <= first || stops.Match(text)
}

type migrationFile struct {
	version int64
	path    string
}

// numbered are the migrations among the files, in no order.
func numbered(files fs.FS) (list []migrationFile) {
	paths, err := fs.Glob(files, "*.sql")
	if err != nil {
		panic(err) // the pattern is valid
	}
	for _, path := range paths {
		if v, err := goose.NumericComponent(path); err == nil {
			list = append(list, migrationFile{v, path})
		}
	}
	return list
}

// newest is the newest migration among the files; 0: there is none.
func newest(files fs.FS) (v int64) {
	for _, file := range numbered(files) {
		v = max(v, file.version)
	}
	return v
}

// versionOf is the newest migration of the database; 0: it is empty.
func versionOf(ctx context.Context, conn *sql.Conn) (v int64, err error) {
	var migrated bool
	if err := conn.QueryRowContext(ctx, `SELECT to_regclass('goose_db_version') IS NOT NULL`).Scan(&migrated); err != nil || !migrated {
		return 0, readError(err)
	}
	if err := conn.QueryRowContext(ctx, `SELECT COALESCE(max(version_id), 0) FROM goose_db_version`).Scan(&v); err != nil {
		return 0, readError(err)
	}
	if 0 < v && v < first {
		return 0, fmt.Errorf("a codehub before 0.1.0 has made the database (migration %d), and this version cannot upgrade it. "+
			"Start the commit 22f0eabc on it once, which applies the migrations up to %d, and then this version", v, first)
	}
	return v, nil
}

func readError(err error) error {
	if err != nil {
		err = fmt.Errorf("read the database's version: %w", err)
	}
	return err
}

// Present is how recent the heartbeat of a running server is: four intervals. A server that was
// killed must not keep its successor from starting for longer.
const Present = 20 * time.Second

const presentPoll = 250 * time.Millisecond

const presentServers = `
	SELECT id::text, COALESCE(NULLIF(hostname, ''), id::text), seen_at FROM replicas WHERE seen_at > clock_timestamp() - $1::float8 * interval '1 second'`

// awaitServers waits until no server runs. A server whose heartbeat is recent may have been
// killed since, so it counts as running only if another heartbeat follows. The error is
// *StillRunning then.
func awaitServers(ctx context.Context, conn *sql.Conn) error {
	seen := map[string]time.Time{}
	for {
		rows, err := conn.QueryContext(ctx, presentServers, Present.Seconds())
		if err != nil {
			return fmt.Errorf("look for running servers: %w", err)
		}
		var running []string
		present := 0
		for rows.Next() {
			var id, host string
			var at time.Time
			if err := rows.Scan(&id, &host, &at); err != nil {
				return errors.Join(err, rows.Close())
			}
			present++
			if first, known := seen[id]; !known {
				seen[id] = at
			} else if at.After(first) {
				running = append(running, host)
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return fmt.Errorf("look for running servers: %w", err)
		}
		if len(running) > 0 {
			slices.Sort(running)
			return &StillRunning{Hosts: slices.Compact(running)}
		}
		if present == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until other servers have ended: %w", ctx.Err())
		case <-time.After(presentPoll):
		}
	}
}

// errMigrating is the objection of checkCompatible while a server migrates the database.
var errMigrating = errors.New("another server migrates the database")

// checkCompatible objects if servers like this one do not work with the database, and while it is
// being migrated. Until tx ends, no migration begins.
func (db *DB) checkCompatible(ctx context.Context, tx pgx.Tx) (objection, err error) {
	var quiet bool
	if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock_shared($1)`, migrationKey).Scan(&quiet); err != nil {
		return nil, err
	}
	if !quiet {
		return errMigrating, nil
	}
	return db.outdated(ctx, tx)
}

// outdated returns *Outdated as its objection if servers like this one do not work with the
// database.
func (db *DB) outdated(ctx context.Context, in querier) (objection, err error) {
	rows, err := in.Query(ctx, `SELECT works_since FROM compatibility`)
	if err != nil {
		return nil, err
	}
	since, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, err
	}
	if since > db.known {
		return &Outdated{Database: since, Known: db.known}, nil
	}
	return nil, nil
}
