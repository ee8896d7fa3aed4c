package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrPooled is the error of CheckSession if a pooler gives each transaction or statement
// of a connection another session. Locks, notifications and session settings do not
// work then.
var ErrPooled = errors.New("a connection pooler gives each transaction another session of the database")

// EncodingError is the error of CheckSession for a database with another encoding than UTF8, in
// which texts cannot be kept.
type EncodingError struct{ Encoding string }

func (e *EncodingError) Error() string {
	return "the encoding of the database is " + e.Encoding + ", not UTF8"
}

const (
	// rounds of CheckSession. An idle pooler assigns the session that was used last, or
	// all in turn: the first round detects both. A busy pooler may need more.
	rounds       = 5
	roundsWithin = 15 * time.Second
)

// CheckSession returns ErrPooled if connections to dsn do not keep their sessions, and
// *EncodingError if the database is not in UTF8. Any other error means that the database or the pooler could not be reached.
//
// PostgreSQL sends each connection the pid of its session when it connects; a pooler
// sends another number. If the pid is right, there is no pooler to check.
func CheckSession(ctx context.Context, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, roundsWithin)
	defer cancel()
	pool, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return fmt.Errorf("parse the database url: %w", err)
	}
	cfg := pool.ConnConfig
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // some poolers support no other
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	if err := checkSession(ctx, cfg); err != nil {
		return fmt.Errorf("check the connection to the database: %w", err)
	}
	return nil
}

func checkSession(ctx context.Context, cfg *pgx.ConnConfig) error {
	ours, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer closeQuietly(ctx, ours)
	if encoding := ours.PgConn().ParameterStatus("server_encoding"); encoding != "" && encoding != "UTF8" {
		return &EncodingError{encoding}
	}
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
		// Ask twice: a pooler that alternates between two sessions gives this
		// connection the same session after each query of the other connection.
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

// anotherSession returns the session of a second connection while ours is open.
func anotherSession(ctx context.Context, cfg *pgx.ConnConfig) (uint32, error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return 0, err
	}
	defer closeQuietly(ctx, conn)
	return sessionOf(ctx, conn)
}

func sessionOf(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	var n int32
	err = conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&n)
	return uint32(n), err
}
