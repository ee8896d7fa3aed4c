package importm1

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/postgres"
)

// Source is the content of a database of the first version.
type Source struct {
	Users      []SourceUser
	Workspaces []SourceWorkspace // oldest first
	// Others is the number of other connections to the database, as far as they
	// are visible: the first version has some if it still runs.
	Others int
}

// SourceUser is a user of the first version. The ids are ULIDs unless the database was edited.
type SourceUser struct {
	ID           string
	Username     string
	PasswordHash string
	CreatedAt    time.Time
}

// SourceWorkspace is a workspace of the first version, deleted ones included.
type SourceWorkspace struct {
	ID, OwnerID     string
	Name            string
	Description     string
	Memo            string
	Status          string // CREATED … DELETED
	ImageRef        string
	InstanceBackend string
	StorageBackend  string
	HomeStoreKey    string // path of the home below the folder of all homes
	CreatedAt       time.Time
	UpdatedAt       time.Time
	DeletedAt       *time.Time
}

// ErrNotFirstVersion: the database does not have the first version's schema.
var ErrNotFirstVersion = errors.New("not a database of codehub's first version")

// ReadSource reads a database of the first version in one read-only snapshot
// and closes its connection.
func ReadSource(ctx context.Context, dsn string) (Source, error) {
	var d Source
	conn, err := connect(ctx, dsn)
	if err != nil {
		return d, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := checkSchema(ctx, tx); err != nil {
			return err
		}
		// Its times are UTC, some with and some without a zone; this session's zone is UTC.
		rows, err := tx.Query(ctx, `
			SELECT id, username, password_hash, created_at::timestamptz FROM users ORDER BY created_at, id`)
		if err != nil {
			return err
		}
		if d.Users, err = pgx.CollectRows(rows, pgx.RowToStructByPos[SourceUser]); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, `
			SELECT id, owner_user_id, name, COALESCE(description, ''), COALESCE(memo, ''), status::text, image_ref,
				instance_backend, storage_backend, home_store_key,
				created_at::timestamptz, updated_at::timestamptz, deleted_at::timestamptz
			FROM workspaces ORDER BY created_at, id`)
		if err != nil {
			return err
		}
		if d.Workspaces, err = pgx.CollectRows(rows, pgx.RowToStructByPos[SourceWorkspace]); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`).Scan(&d.Others)
	})
	if err != nil {
		return Source{}, fmt.Errorf("read the first version's database: %w", err)
	}
	return d, nil
}

// IsFirstVersion reports whether a database is one of the first version, which
// this version must not migrate.
func IsFirstVersion(ctx context.Context, dsn string) (bool, error) {
	conn, err := connect(ctx, dsn)
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = checkSchema(ctx, conn)
	if errors.Is(err, ErrNotFirstVersion) {
		return false, nil
	}
	return err == nil, err
}

// connect also accepts the first version's form of a URL, whose scheme names a
// driver: postgresql+asyncpg://.
func connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	if scheme, rest, ok := strings.Cut(dsn, "://"); ok {
		scheme, _, _ = strings.Cut(scheme, "+")
		dsn = scheme + "://" + rest
	}
	cfg, err := postgres.ConnConfig(dsn, "codehub-import")
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return conn, nil
}

// checkSchema tells the first version's schema from those of later versions,
// which have tables of the same names.
func checkSchema(ctx context.Context, in interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) error {
	var users, workspaces, later int
	err := in.QueryRow(ctx, `
		SELECT
			count(*) FILTER (WHERE attrelid = to_regclass('users') AND attname IN ('id', 'username', 'password_hash', 'created_at')),
			count(*) FILTER (WHERE attrelid = to_regclass('workspaces')
				AND attname IN ('id', 'owner_user_id', 'name', 'status', 'image_ref', 'storage_backend', 'home_store_key', 'deleted_at')),
			count(*) FILTER (WHERE attrelid = to_regclass('workspaces') AND attname IN ('operation', 'desired_state', 'phase'))
		FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped`).Scan(&users, &workspaces, &later)
	switch {
	case err != nil:
		return err
	case later > 0:
		return fmt.Errorf("%w: its workspaces have the columns of a later version", ErrNotFirstVersion)
	case users < 4 || workspaces < 8:
		return fmt.Errorf("%w: its tables users and workspaces are missing or differ", ErrNotFirstVersion)
	}
	return nil
}
