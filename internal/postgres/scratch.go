package postgres

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// drillKey is the lock of a drill, of which one runs at a time.
const drillKey int64 = 0x636f646568756208

var (
	// ErrDrilling is the error of WithScratch and DropScratch while another drill runs.
	ErrDrilling = errors.New("another drill of the database is running")
	// ErrUnrestorable is the error of WithScratch if the backup itself is at fault: it is damaged, or
	// PostgreSQL refuses its rows.
	ErrUnrestorable = errors.New("the backup cannot be restored")
)

// Scratch is a scratch database that has the rows of a backup and the migrations of this version.
// It is read only.
type Scratch struct {
	LoadedBackup
	*DB
}

// WithScratch restores a backup into a scratch database, calls use with it, and removes it. It is
// a database of its own next to that of dsn, whose role needs the attribute CREATEDB.
func WithScratch(ctx context.Context, dsn string, file io.ReadSeeker, use func(context.Context, *Scratch) error) error {
	return onScratch(ctx, dsn, func(s scratch) (err error) {
		if err := s.create(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.drop(ctx)) }()
		at, err := otherDatabase(dsn, s.name)
		if err != nil {
			return err
		}
		if s.schema != "public" {
			if err := createSchema(ctx, at, s.schema); err != nil {
				return err
			}
		}
		done, err := LoadBackup(ctx, at, file)
		if err == nil {
			err = Migrate(ctx, at) // as the server does that starts on a restored database
		}
		if err != nil {
			return restoring(err)
		}
		db, err := openReadOnly(ctx, at)
		if err != nil {
			return err
		}
		defer db.Close()
		return use(ctx, &Scratch{LoadedBackup: done, DB: db})
	})
}

// DropScratch removes the scratch database that a killed process has left.
func DropScratch(ctx context.Context, dsn string) error {
	return onScratch(ctx, dsn, func(s scratch) error { return s.drop(ctx) })
}

// scratch is a session at the database of an installation that holds the lock of a drill.
type scratch struct {
	conn         *pgx.Conn
	name         string // of the installation's scratch database
	schema, role string // of the session
}

func onScratch(ctx context.Context, dsn string, do func(scratch) error) error {
	const verb = "prepare a scratch database"
	cfg, err := ConnConfig(dsn, "codehub-drill")
	if err != nil {
		return err
	}
	s := scratch{}
	if s.conn, err = pgx.ConnectConfig(ctx, cfg); err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer func() { _ = s.conn.Close(context.WithoutCancel(ctx)) }()
	var id uuid.UUID
	var free bool
	err = s.conn.QueryRow(ctx, `SELECT id, current_schema(), current_user, pg_try_advisory_lock($1) FROM installation`, drillKey).Scan(&id, &s.schema, &s.role, &free)
	switch {
	case missing(err):
		return errUnused
	case err != nil:
		return failed(verb, err)
	case !free:
		return ErrDrilling
	}
	s.name = "codehub_drill_" + hex.EncodeToString(id[:])
	return do(s)
}

// create makes the scratch database, with the locale of the installation's, in place of one that a
// killed process has left.
func (s scratch) create(ctx context.Context) error {
	const verb = "create the scratch database"
	var may bool
	var collate, ctype string
	err := s.conn.QueryRow(ctx, `
		SELECT rolcreatedb OR rolsuper, datcollate, datctype FROM pg_roles, pg_database
		WHERE rolname = current_user AND datname = current_database()`).Scan(&may, &collate, &ctype)
	if err != nil {
		return failed(verb, err)
	}
	if !may {
		return fmt.Errorf("%s: the role %q lacks the attribute CREATEDB; a superuser grants it by ALTER ROLE %s CREATEDB", verb, s.role, quoted(s.role))
	}
	if err := s.drop(ctx); err != nil {
		return err
	}
	_, err = s.conn.Exec(ctx, fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE %s LC_CTYPE %s", quoted(s.name), literal(collate), literal(ctype)))
	return failed(verb, err)
}

// dropTimeout bounds the removal of a scratch database, which also ends its sessions.
const dropTimeout = 30 * time.Second

// drop removes the scratch database, even if ctx has ended.
func (s scratch) drop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	_, err := s.conn.Exec(ctx, "DROP DATABASE IF EXISTS "+quoted(s.name)+" WITH (FORCE)")
	return failed("remove the scratch database", err)
}

// literal quotes a string of SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// otherDatabase is the address of another database of the same server.
func otherDatabase(dsn, name string) (string, error) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return dsn + " dbname=" + name, nil // the last one counts
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", errors.New("the database url is invalid") // its error has the password
	}
	q := u.Query()
	q.Set("dbname", name) // before that of the path
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// createSchema makes the schema that the sessions of a role or an address use.
func createSchema(ctx context.Context, dsn, name string) error {
	conn, err := backupConn(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+quoted(name))
	return failed("create a schema", err)
}

// openReadOnly connects to a migrated database, and changes nothing in it.
func openReadOnly(ctx context.Context, dsn string) (*DB, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("parse the database url: %w", err)
	}
	bound(cfg.ConnConfig, "codehub-drill")
	cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = 1, 0, 0
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SET default_transaction_read_only = on`)
		return errors.Join(err, inUTC(ctx, conn))
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("make the connection pool: %w", err)
	}
	return &DB{pool: pool}, nil
}

// restoring wraps the error of a restore in ErrUnrestorable if the backup is the cause.
func restoring(err error) error {
	var pg *pgconn.PgError
	damaged := errors.Is(err, errDamaged) || errors.Is(err, errNoBackup)
	if errors.As(err, &pg) && len(pg.Code) == 5 && pg.Code != insufficientPrivilege {
		switch pg.Code[:2] {
		case "22", "23", "42": // values, references and columns that the tables do not accept
			damaged = true
		}
	}
	if damaged {
		return fmt.Errorf("%w: %w", ErrUnrestorable, err)
	}
	return err
}

const insufficientPrivilege = "42501"
