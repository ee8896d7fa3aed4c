package postgres

import (
	"context"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"codehub/internal/workspace"
)

// Audit records an action in a transaction of its own.
func (db *DB) WriteAudit(ctx context.Context, caller workspace.Caller, action, target string, details map[string]any) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return audit(ctx, tx, caller, action, target, details) })
}

// PingEvery makes l notice a connection without responses within 2d.
func (l *Listener) PingEvery(d time.Duration) *Listener {
	l.pingEvery, l.pingTimeout = d, d
	return l
}

// ColumnWriters returns who changes each column of a workspace, as
// docs/database.md names it; empty for those that no statement of the
// descriptions changes.
func ColumnWriters() map[string]string {
	names := map[writer]string{noWriter: "", controller: "controller", apiLayer: "API layer"}
	out := map[string]string{}
	for _, c := range columns {
		if c.name != "" {
			out[c.name] = names[c.by]
		}
	}
	return out
}

// Trace replaces the connections of db by traced ones.
func (db *DB) Trace(ctx context.Context, t pgx.QueryTracer) error {
	cfg := db.pool.Config()
	cfg.ConnConfig.Tracer = t
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	db.pool.Close()
	db.pool = pool
	return nil
}

// MigrateWith is Migrate of a version with these migrations.
func MigrateWith(ctx context.Context, dsn string, files fs.FS) error {
	return migrateWith(ctx, dsn, files)
}

// WouldMigrateWith is WouldMigrate of a version with these migrations.
func WouldMigrateWith(ctx context.Context, dsn string, files fs.FS) (Pending, error) {
	return wouldMigrate(ctx, dsn, files)
}

// StopsServers reports whether servers that do not know a migration stop working after it.
func StopsServers(version int64, text []byte) bool { return stopsServers(version, text) }

// SealedColumnForTest makes the functions of sealed values use one table of a test.
type SealedColumnForTest struct {
	*DB
	Table, Column, Key, Owner string
}

func (c SealedColumnForTest) columns() []sealedColumn {
	return []sealedColumn{{table: c.Table, column: c.Column, key: c.Key, owner: c.Owner}}
}

func (c SealedColumnForTest) SealedValues(ctx context.Context, each func(SealedValue) error) error {
	return c.sealedValues(ctx, c.columns(), each)
}

func (c SealedColumnForTest) SealedKeys(ctx context.Context) (map[string]int, error) {
	return c.sealedKeys(ctx, c.columns())
}
