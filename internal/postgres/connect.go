package postgres

import (
	"context"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Bounds of every session, so that none waits forever for another one.
const (
	lockTimeout       = "5s"
	idleInTransaction = "5s"
	connectTimeout    = 5 * time.Second
	// deadPeer is how long sent data may stay unacknowledged. Without it, a connection that a
	// failover cut would hang for a quarter of an hour.
	deadPeer = 15 * time.Second
)

// ConnConfig returns the configuration of a connection to dsn under the given application_name,
// with the bounds that every session has.
func ConnConfig(dsn, application string) (*pgx.ConnConfig, error) {
	// The pool's parser, since a URL may have parameters of the pool that the server would
	// reject.
	pool, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("parse the database url: %w", err)
	}
	bound(pool.ConnConfig, application)
	return pool.ConnConfig, nil
}

func bound(cfg *pgx.ConnConfig, application string) {
	cfg.RuntimeParams["application_name"] = application
	cfg.RuntimeParams["timezone"] = "UTC"
	// These are not startup parameters: a pooler rejects unknown ones.
	cfg.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		_, err := conn.Exec(ctx, `SET lock_timeout = '`+lockTimeout+`'; SET idle_in_transaction_session_timeout = '`+idleInTransaction+`'`).ReadAll()
		return err
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	dialer := &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: deadPeer / 3, Interval: deadPeer / 3, Count: 2},
		Control: func(network, _ string, c syscall.RawConn) error {
			if network == "unix" {
				return nil
			}
			return limitUnanswered(c, deadPeer)
		},
	}
	cfg.DialFunc = dialer.DialContext
}

// inUTC makes a connection read times as UTC in every time zone of the server.
func inUTC(_ context.Context, conn *pgx.Conn) error {
	conn.TypeMap().RegisterType(&pgtype.Type{
		Name:  "timestamptz",
		OID:   pgtype.TimestamptzOID,
		Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
	})
	return nil
}
