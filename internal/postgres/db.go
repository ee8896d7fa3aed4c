package postgres

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options configure the store.
type Options struct {
	Limits   Limits
	Log      *slog.Logger
	MaxConns int32 // of the pool; 0: 10
}

// Limits are the running limits; 0 means no limit.
type Limits struct {
	PerUser int
	Global  int
}

// DB is the store as the API layer, the proxy and the dashboard use it. It is
// safe for concurrent use.
type DB struct {
	pool   *pgxpool.Pool
	limits Limits
	log    *slog.Logger
}

const defaultMaxConns = 10

// Open connects to a database that Migrate has brought up to date.
func Open(ctx context.Context, dsn string, opts Options) (*DB, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("parse the database url: %w", err)
	}
	bound(cfg.ConnConfig, "codehub")
	cfg.MaxConns = defaultMaxConns
	if opts.MaxConns > 0 {
		cfg.MaxConns = opts.MaxConns
	}
	cfg.AfterConnect = inUTC
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("make the connection pool: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	log := opts.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &DB{pool: pool, limits: opts.Limits, log: log}, nil
}

// Close gives up all connections, once those in use are returned.
func (db *DB) Close() { db.pool.Close() }

// Ping reports whether the database answers.
func (db *DB) Ping(ctx context.Context) error { return failed("ping the database", db.pool.Ping(ctx)) }

// attempts is how often a transaction is tried that the database ended in
// favour of another one.
const attempts = 3

// tx runs f in a transaction, and again if the database ended it for a
// deadlock. What f does besides must bear being repeated.
func (db *DB) tx(ctx context.Context, verb string, f func(tx pgx.Tx) error) error {
	var err error
	for range attempts {
		err = pgx.BeginFunc(ctx, db.pool, f)
		if !sacrificed(err) {
			break
		}
		db.log.Warn("transaction repeated", "what", verb, "err", err)
	}
	return failed(verb, err)
}
