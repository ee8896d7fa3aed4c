// Package lease elects the one server process that runs the coordinator
// (design §4): whoever holds a session-level PostgreSQL advisory lock, on a
// connection of its own that no pool can recycle.
package lease

import (
	"context"
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
	ask     = 5 * time.Second
)

// Term is a time of leadership. What it runs writes through conn, the session
// that holds the lock: a leader that lost the lock lost the means to write.
// It ends when ctx does, and returns an error when conn is broken.
type Term func(ctx context.Context, conn *pgx.Conn) error

// Run stands for election until ctx ends, and runs term each time this
// process leads. cfg should notice by itself when the database is gone.
// Errors are logged; they end the term, never Run.
func Run(ctx context.Context, cfg *pgx.ConnConfig, log *slog.Logger, term Term) error {
	c := candidate{cfg: cfg, log: log, term: term}
	for {
		err := c.stand(ctx)
		if ctx.Err() != nil {
			return nil
		}
		c.report(err)
		if pause(ctx) != nil {
			return nil
		}
	}
}

// Hold takes the leader's lock for as long as conn lives, for a command that
// must not run beside a server. It is false if a server leads.
func Hold(ctx context.Context, conn *pgx.Conn) (held bool, err error) {
	c := candidate{}
	if held, err = c.try(ctx, conn); err != nil {
		return false, fmt.Errorf("try the leader's lock: %w", err)
	}
	return held, nil
}

type candidate struct {
	cfg  *pgx.ConnConfig
	log  *slog.Logger
	term Term

	said string // the last error, so that an outage is reported once
}

func (c *candidate) report(err error) {
	said := "the term ended by itself"
	if err != nil {
		said = err.Error()
	}
	if said != c.said {
		c.log.Error("this server does not lead; it tries again", "err", said)
	}
	c.said = said
}

// stand takes one session through one candidacy: it waits on it for the lock,
// leads with it, and gives it up.
func (c *candidate) stand(ctx context.Context) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return fmt.Errorf("connect for leadership: %w", err)
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(cctx) // releases the lock; a broken connection has released it
	}()
	for waiting := false; ; waiting = true {
		got, err := c.try(ctx, conn)
		if err != nil {
			return fmt.Errorf("try the leader's lock: %w", err)
		}
		if got {
			break
		}
		if !waiting {
			c.log.Info("another server leads; standing by")
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
	c.said = ""
	c.log.Info("leading")
	if err := c.term(ctx, conn); err != nil {
		return fmt.Errorf("the term ended: %w", err)
	}
	return nil
}

func (c *candidate) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connect)
	defer cancel()
	return pgx.ConnectConfig(ctx, c.cfg)
}

func (c *candidate) try(ctx context.Context, conn *pgx.Conn) (got bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, ask)
	defer cancel()
	err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, key).Scan(&got)
	return got, err
}

func pause(ctx context.Context) error {
	t := time.NewTimer(retry)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
