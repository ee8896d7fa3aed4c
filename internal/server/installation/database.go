package installation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"codehub/internal/base/setting"
	"codehub/internal/postgres"
	"codehub/internal/postgres/embedded"
	"codehub/internal/server/config"
)

// OpenDatabase opens this installation's database, with all migrations, for a command
// that runs with or without a server. It uses the embedded database of a running
// server; without a server it starts that database and locks the data folder until
// release, which the caller must call.
func OpenDatabase(ctx context.Context, cfg config.Config, log *slog.Logger) (db *postgres.DB, dsn string, release func(), err error) {
	dsn, stop, err := DatabaseURL(ctx, cfg, log)
	if err != nil {
		return nil, "", nil, err
	}
	if err = Migrate(ctx, cfg, dsn, log, nil); err == nil {
		db, err = postgres.Open(ctx, dsn, postgres.Options{
			Limits: cfg.Limits,
			Log:    log,
		})
	}
	if err != nil {
		stop()
		return nil, "", nil, err
	}
	return db, dsn, func() { db.Close(); stop() }, nil
}

// Migrate applies the migrations. An embedded database that is not empty is dumped before they
// change it, and left as it is if that fails. progress, which may be nil, is called while the dump
// is written.
func Migrate(ctx context.Context, cfg config.Config, dsn string, log *slog.Logger, progress func()) error {
	if cfg.DatabaseURL == "" {
		p, err := postgres.WouldMigrate(ctx, dsn)
		if err != nil {
			return err
		}
		if p.Migrations > 0 && !p.Empty {
			begun := time.Now()
			path, err := embedded.Backup(ctx, embedded.Config{Dir: cfg.DataDir, Progress: progress}, cfg.Version)
			if err != nil {
				return fmt.Errorf("the database is not migrated to this version, since the dump that precedes it failed: %w", err)
			}
			log.Info("database dumped before its migration", "file", path, "migrations", p.Migrations, "took", time.Since(begun))
		}
	}
	return postgres.Migrate(ctx, dsn)
}

// DatabaseURL is the address of this installation's database, and what ends its use. The database
// may lack migrations. See OpenDatabase about the embedded one.
func DatabaseURL(ctx context.Context, cfg config.Config, log *slog.Logger) (dsn string, stop func(), err error) {
	if cfg.DatabaseURL != "" {
		return cfg.DatabaseURL, func() {}, CheckSession(ctx, cfg.DatabaseURL)
	}
	lock, err := embedded.LockDir(cfg.DataDir)
	if inUse := (*embedded.LockedError)(nil); errors.As(err, &inUse) {
		dsn, err = embedded.Find(ctx, cfg.DataDir)
		return dsn, func() {}, err
	}
	if err != nil {
		return "", nil, err
	}
	private, err := embedded.Start(ctx, embedded.Config{Dir: cfg.DataDir, Lock: lock, Log: log})
	if err != nil {
		return "", nil, errors.Join(err, lock.Release())
	}
	return private.URL(), func() {
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := private.Stop(sctx); err != nil {
			log.Error("stop embedded database failed", "err", err)
		}
		_ = lock.Release() // the end of the process does the same
	}, nil
}

// CheckSession refuses a way to the database on which connections are no
// sessions, and a database that is not in UTF8.
func CheckSession(ctx context.Context, dsn string) error {
	err := postgres.CheckSession(ctx, dsn)
	if errors.Is(err, postgres.ErrPooled) {
		return &setting.Problem{Setting: "CODEHUB_DATABASE_URL",
			Why: "a connection pooler in between gives each transaction another session of the database, on which no lock and no notification lasts",
			Do:  "name PostgreSQL itself, or have the pooler keep sessions together (PgBouncer: pool_mode = session)"}
	}
	if other := (*postgres.EncodingError)(nil); errors.As(err, &other) {
		return &setting.Problem{Setting: "CODEHUB_DATABASE_URL", Why: other.Error(),
			Do: "name one that was created in UTF8, as by: createdb --owner=codehub --encoding=UTF8 --template=template0 codehub"}
	}
	return err
}
