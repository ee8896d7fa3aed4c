package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"codehub/internal/bucket"
	"codehub/internal/config"
	"codehub/internal/postgres"
)

// opened is what a command works with, beside a server or without one.
type opened struct {
	db      *postgres.DB
	session postgres.Session // one of the command's own
	bucket  *bucket.Bucket   // this installation's part, not asked anything yet
	release func()           // to be called in the end
}

// open opens database, session and bucket as the settings say; application is
// what the database calls the session.
func open(ctx context.Context, cfg config.Config, application string, log *slog.Logger) (_ *opened, err error) {
	o := &opened{}
	var dsn string
	if o.db, dsn, o.release, err = openDatabase(ctx, cfg, log); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			o.release()
		}
	}()
	installation, err := o.db.Installation(ctx)
	if err != nil {
		return nil, err
	}
	if o.bucket, err = openBucket(cfg, installation, log); err != nil {
		return nil, err
	}
	settings, err := postgres.ConnConfig(dsn, application)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, settings)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	o.session = postgres.NewController(postgres.NewSession(conn))
	database := o.release
	o.release = func() {
		_ = conn.Close(context.WithoutCancel(ctx))
		database()
	}
	return o, nil
}
