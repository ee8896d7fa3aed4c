package postgres

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"codehub/internal/base/setting"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// Options configure the store.
type Options struct {
	Limits   Limits
	Images   imageref.Allowed // that workspaces may use
	Sizes    workspace.Sizes  // that workspaces may be given
	Log      *slog.Logger
	MaxConns int32 // of the pool; 0: 10
	// Sharing lets owners share workspaces. It must not be set where workspaces share an origin:
	// the workspace of one user would act there as its guests.
	Sharing bool
	// OneAccount refuses a second account that can log in. On localhost a page on another port
	// can take over its visitor's session.
	OneAccount bool
}

// Limits are the running limits, and what a user may have; 0 means no limit.
type Limits struct {
	PerUser int `name:"max-running-per-user" env:"CODEHUB_MAX_RUNNING_PER_USER,MAX_RUNNING_PER_USER" min:"0" max:"1000000" default:"2" help:"Running limit of each user (0 = no limit)."`
	Global  int `name:"max-running-global" env:"CODEHUB_MAX_RUNNING_GLOBAL,MAX_RUNNING_GLOBAL" min:"0" max:"1000000" default:"100" help:"Running limit of all users together (0 = no limit)."`

	Workspaces int    `name:"max-workspaces-per-user" env:"CODEHUB_MAX_WORKSPACES_PER_USER" min:"0" max:"1000000" default:"100" help:"Workspaces of each user (0 = no limit)."`
	Size       string `name:"max-bytes-per-user" env:"CODEHUB_MAX_BYTES_PER_USER" default:"0" help:"Size of the homes and archives of each user, like 20g, from which none of their workspaces starts (0 = no limit)."`
	Bytes      int64  `kong:"-"` // of Size

	BackupSize  string `name:"max-backup-bytes-per-user" env:"CODEHUB_MAX_BACKUP_BYTES_PER_USER" default:"0" help:"Size of the backups of each user's homes, like 50g, from which no more are made on schedule or request (0 = no limit)."`
	BackupBytes int64  `kong:"-"` // of BackupSize

	Tokens  int `name:"max-tokens-per-user" env:"CODEHUB_MAX_TOKENS_PER_USER" min:"0" max:"1000000" default:"100" help:"API tokens of each user (0 = no limit)."`
	SSHKeys int `name:"max-ssh-keys-per-user" env:"CODEHUB_MAX_SSH_KEYS_PER_USER" min:"0" max:"1000000" default:"50" help:"SSH keys of each user (0 = no limit)."`
}

// Resolve checks the settings and computes Bytes and BackupBytes. It returns an invalid one as
// *setting.Problem.
func (l *Limits) Resolve() error {
	var err error
	if l.Bytes, err = setting.Bytes(l.Size); err != nil {
		return setting.Invalid("CODEHUB_MAX_BYTES_PER_USER", fmt.Sprintf("%q is not a size", l.Size), "give a size like 20g, or 0 for no limit")
	}
	if l.BackupBytes, err = setting.Bytes(l.BackupSize); err != nil {
		return setting.Invalid("CODEHUB_MAX_BACKUP_BYTES_PER_USER", fmt.Sprintf("%q is not a size", l.BackupSize), "give a size like 50g, or 0 for no limit")
	}
	return nil
}

// DB is the store of the API, the proxy and the dashboard. It is safe for concurrent use.
type DB struct {
	pool   *pgxpool.Pool
	limits Limits
	images imageref.Allowed
	sizes  workspace.Sizes
	log    *slog.Logger

	sharing    bool
	oneAccount bool
	known      int64 // the newest migration of this version
}

const defaultMaxConns = 10

// Open connects to a migrated database.
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
	return &DB{pool: pool, limits: opts.Limits, images: opts.Images, sizes: opts.Sizes, log: log, sharing: opts.Sharing, oneAccount: opts.OneAccount, known: newest(ownMigrations())}, nil
}

// Close closes all connections after those in use have been returned.
func (db *DB) Close() { db.pool.Close() }

// Ping reports whether the database responds.
func (db *DB) Ping(ctx context.Context) error { return failed("ping the database", db.pool.Ping(ctx)) }

// attempts is how often a transaction is tried that the database aborts because of another one.
const attempts = 3

// tx runs f in a transaction, and repeats it after a deadlock. Other effects of f must be safe
// to repeat.
func (db *DB) tx(ctx context.Context, verb string, f func(tx pgx.Tx) error) error {
	var err error
	for range attempts {
		err = pgx.BeginFunc(ctx, db.pool, f)
		if !abortedForAnother(err) {
			break
		}
		db.log.Warn("transaction repeated", "what", verb, "err", err)
	}
	return failed(verb, err)
}
