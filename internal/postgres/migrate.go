package postgres

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrate applies the migrations. Servers may call it at the same time: one migrates, the
// others wait. A database that a newer codehub has migrated is refused.
func Migrate(ctx context.Context, dsn string) error {
	cfg, err := ConnConfig(dsn, "codehub-migrate")
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*cfg)
	defer func() { _ = db.Close() }()
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("open the migrations: %w", err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithSessionLocker(migrationLock{}), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	have, known, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read the database's version: %w", err)
	}
	if have > known {
		return fmt.Errorf("the database is at version %d and this codehub knows versions up to %d: it was migrated by a newer codehub, run that one", have, known)
	}
	return nil
}

// migrationLock is a session-level advisory lock that is polled: waiting for it would hold a
// snapshot, which blocks migrations that build indexes concurrently.
type migrationLock struct{}

const (
	migrationKey  int64 = 0x636f646568756203
	migrationPoll       = 50 * time.Millisecond
)

func (migrationLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
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
