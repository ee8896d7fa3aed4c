// Package installation opens what belongs to one installation as its settings
// say: the database, the part of the bucket, a session.
package installation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"codehub/internal/control/lease"
	"codehub/internal/postgres"
	"codehub/internal/server/config"
	"codehub/internal/storage/bucket"
)

// Installation is what a maintenance command works with, whether or not a server
// runs.
type Installation struct {
	DB      *postgres.DB
	Session postgres.Session // a connection of the command's own
	Bucket  *bucket.Bucket   // not contacted yet
	close   func()
}

// Close ends the use of the installation.
func (o *Installation) Close() { o.close() }

// Alone keeps servers from leading until o is closed. It fails if one leads.
func (o *Installation) Alone(ctx context.Context) error {
	return o.Session.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		held, err := lease.Hold(ctx, conn)
		if err == nil && !held {
			err = errors.New("a codehub server is running on this database; stop it first")
		}
		return err
	})
}

// Open opens the installation of the settings. application is the name of the
// session in the database.
func Open(ctx context.Context, cfg config.Config, application string, log *slog.Logger) (_ *Installation, err error) {
	o := &Installation{}
	var dsn string
	if o.DB, dsn, o.close, err = OpenDatabase(ctx, cfg, log); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	installation, err := o.DB.Installation(ctx)
	if err != nil {
		return nil, err
	}
	if o.Bucket, err = OpenBucket(cfg, installation, nil, log); err != nil {
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
	o.Session = postgres.NewController(postgres.NewSession(conn))
	database := o.close
	o.close = func() {
		_ = conn.Close(context.WithoutCancel(ctx))
		database()
	}
	return o, nil
}
