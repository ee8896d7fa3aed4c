package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrate applies the migrations. Servers may call it at the same time: one migrates, the
// others wait. The error is *StillRunning if a migration has to wait until the servers of the
// earlier version have ended, and *Outdated if a newer codehub has migrated the database so that
// this one does not work with it.
func Migrate(ctx context.Context, dsn string) error { return migrateWith(ctx, dsn, ownMigrations()) }

// WouldMigrate returns what Migrate would do, and changes nothing. The error is *Outdated as
// with Migrate.
func WouldMigrate(ctx context.Context, dsn string) (Pending, error) {
	return wouldMigrate(ctx, dsn, ownMigrations())
}

// ownMigrations are the migrations of this version.
func ownMigrations() fs.FS {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the path is valid
	}
	return files
}

func migrateWith(ctx context.Context, dsn string, files fs.FS) error {
	m, err := newMigrator(dsn, files)
	if err != nil {
		return err
	}
	defer m.close()
	if err := m.up(ctx, math.MaxInt64); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	_, err = m.pending(ctx)
	return err
}

func wouldMigrate(ctx context.Context, dsn string, files fs.FS) (Pending, error) {
	m, err := newMigrator(dsn, files)
	if err != nil {
		return Pending{}, err
	}
	defer m.close()
	return m.pending(ctx)
}

// migrator applies the migrations of files to one database.
type migrator struct {
	db       *sql.DB
	files    fs.FS
	provider *goose.Provider
}

func newMigrator(dsn string, files fs.FS) (*migrator, error) {
	cfg, err := ConnConfig(dsn, "codehub-migrate")
	if err != nil {
		return nil, err
	}
	m := &migrator{db: stdlib.OpenDB(*cfg), files: files}
	m.provider, err = goose.NewProvider(goose.DialectPostgres, m.db, files,
		goose.WithSessionLocker(migrationLock{m}), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		m.close()
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	return m, nil
}

func (m *migrator) close() { _ = m.db.Close() }

// lockTries is how often a migration is tried that has to wait for a table in use. All others
// wait for that table as well meanwhile, so it gives up after lockTimeout and pauses.
const (
	lockTries = 12
	lockPause = time.Second
)

// up applies the migrations up to a version.
func (m *migrator) up(ctx context.Context, version int64) error {
	for try := 1; ; try++ {
		_, err := m.provider.UpTo(ctx, version)
		if sqlState(err) != lockNotAvailable || try == lockTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(lockPause):
		}
	}
}

// pending compares the database's version with that of the files.
func (m *migrator) pending(ctx context.Context) (Pending, error) {
	conn, err := m.db.Conn(ctx)
	if err != nil {
		return Pending{}, fmt.Errorf("connect to the database: %w", err)
	}
	defer func() { _ = conn.Close() }()
	have, err := versionOf(ctx, conn)
	if err != nil {
		return Pending{}, err
	}
	if known := newest(m.files); have > known {
		var since int64
		if err := conn.QueryRowContext(ctx, `SELECT works_since FROM compatibility`).Scan(&since); err != nil {
			return Pending{}, fmt.Errorf("read which servers the database works with: %w", err)
		}
		if since > known {
			return Pending{}, &Outdated{Database: since, Known: known}
		}
	}
	return pendingAfter(m.files, have)
}

// migrationLock is a session-level advisory lock that is polled: waiting for it would hold a
// snapshot, which blocks migrations that build indexes concurrently. Once it has the lock, it
// waits until the servers have ended that the migrations would break: since a server joins the
// others under this lock, none starts meanwhile.
type migrationLock struct{ *migrator }

const (
	migrationKey  int64 = 0x636f646568756203
	migrationPoll       = 50 * time.Millisecond
)

func (l migrationLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if err := lockSession(ctx, conn); err != nil {
		return err
	}
	err := l.clear(ctx, conn)
	if err != nil {
		err = errors.Join(err, l.SessionUnlock(context.WithoutCancel(ctx), conn))
	}
	return err
}

// clear returns once no server runs that the pending migrations would break.
func (l migrationLock) clear(ctx context.Context, conn *sql.Conn) error {
	have, err := versionOf(ctx, conn)
	if err != nil || have == 0 {
		return err // no server runs on an empty database
	}
	p, err := pendingAfter(l.files, have)
	if err != nil || !p.StopFirst {
		return err
	}
	return awaitServers(ctx, conn)
}

func lockSession(ctx context.Context, conn *sql.Conn) error {
	tick := time.NewTicker(migrationPoll)
	defer tick.Stop()
	for {
		var got bool
		if err := conn.QueryRowContext(ctx, `SELECT pg_try_advisory_lock($1)`, migrationKey).Scan(&got); err != nil {
			return fmt.Errorf("take the migrations' lock: %w", err)
		}
		if got {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for another server's migration: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

func (migrationLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, `SELECT pg_advisory_unlock($1)`, migrationKey); err != nil {
		return fmt.Errorf("release the migrations' lock: %w", err)
	}
	return nil
}
