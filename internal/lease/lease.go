// Package lease elects the one server process that runs the coordinator
// (design §4): whoever holds a session-level PostgreSQL advisory lock, on a
// connection of its own that no pool can recycle.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// key names the leader's lock among the advisory locks of the database.
const key int64 = 0x636f646568756201

const (
	retry   = 2 * time.Second
	connect = 10 * time.Second
)

// Term is a time of leadership. What it runs writes through conn, the session
// that holds the lock: a leader that lost the lock lost the means to write.
// It ends when ctx does, and returns an error when conn is broken.
type Term func(ctx context.Context, conn *pgx.Conn) error

// Run stands for election until ctx ends, and runs term each time this
// process leads. Errors are logged; they end the term, never Run.
func Run(ctx context.Context, dsn string, log *slog.Logger, term Term) error {
	waiting := false
	for {
		err := once(ctx, dsn, log, term)
		if ctx.Err() != nil {
			return nil
		}
		switch {
		case errors.Is(err, errHeld):
			if !waiting {
				log.Info("another server leads; standing by")
			}
			waiting = true
		default:
			waiting = false
			log.Error("leadership ended", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
	}
}

var errHeld = errors.New("another server holds the leader's lock")

func once(ctx context.Context, dsn string, log *slog.Logger, term Term) error {
	cctx, cancel := context.WithTimeout(ctx, connect)
	defer cancel()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return fmt.Errorf("parse the database url: %w", err)
	}
	cfg.RuntimeParams["application_name"] = "codehub-leader"
	cfg.RuntimeParams["lock_timeout"] = "5s"
	cfg.RuntimeParams["idle_in_transaction_session_timeout"] = "5s"
	conn, err := pgx.ConnectConfig(cctx, cfg)
	if err != nil {
		return fmt.Errorf("connect for leadership: %w", err)
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(cctx) // releases the lock; a broken connection has released it
	}()
	var got bool
	if err := conn.QueryRow(cctx, `SELECT pg_try_advisory_lock($1)`, key).Scan(&got); err != nil {
		return fmt.Errorf("try the leader's lock: %w", err)
	}
	if !got {
		return errHeld
	}
	log.Info("leading")
	return term(ctx, conn)
}
