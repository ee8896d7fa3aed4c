package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrPooled is the error of CheckSession where a connection is not a session:
// a pooler in between gives each transaction, or each statement, another one.
// Locks, notifications and bounds of sessions mean nothing then.
var ErrPooled = errors.New("a connection pooler gives each transaction another session of the database")

const (
	// rounds of CheckSession. A pooler with nothing else to do hands the session
	// that was used last to whoever asks next, or one after the other: the first
	// round shows either. More are for one that is busy.
	rounds       = 5
	roundsWithin = 15 * time.Second
)

// CheckSession finds out whether a connection to dsn is a session of the
// database, as codehub needs it. Any other error says that the database, or
// the pooler before it, could not be asked.
//
// PostgreSQL itself tells each connection the pid of its session; a pooler
// tells another number. So nothing is concluded from what several connections
// see where there is no pooler.
func CheckSession(ctx context.Context, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, roundsWithin)
	defer cancel()
	pool, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return fmt.Errorf("parse the database url: %w", err)
	}
	cfg := pool.ConnConfig
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // poolers may know no other
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	if err := checkSession(ctx, cfg); err != nil {
		return fmt.Errorf("look at the way to the database: %w", err)
	}
	return nil
}

func checkSession(ctx context.Context, cfg *pgx.ConnConfig) error {
	ours, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer goodbye(ctx, ours)
	session, err := sessionOf(ctx, ours)
	if err != nil || session == ours.PgConn().PID() {
		return err
	}
	for range rounds {
		other, err := anotherSession(ctx, cfg)
		if err != nil {
			return err
		}
		if other == session {
			return ErrPooled
		}
		// Twice: a pooler that deals out two sessions in turn gives this
		// connection the same one each time the other was asked in between.
		for range 2 {
			now, err := sessionOf(ctx, ours)
			if err != nil {
				return err
			}
			if now != session {
				return ErrPooled
			}
		}
	}
	return nil
}

// anotherSession is the session that another connection gets, while ours stands.
func anotherSession(ctx context.Context, cfg *pgx.ConnConfig) (uint32, error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return 0, err
	}
	defer goodbye(ctx, conn)
	return sessionOf(ctx, conn)
}

func sessionOf(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	var n int32
	err = conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&n)
	return uint32(n), err
}
