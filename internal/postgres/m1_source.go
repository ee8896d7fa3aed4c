package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// M1Data is what import-m1 reads of a database of the first version.
type M1Data struct {
	Users      []M1User
	Workspaces []M1Workspace // oldest first
	// Others is how many others are connected to the database, as far as that
	// can be seen: the first version, if it still runs.
	Others int
}

// M1User is a user there. The ids are ULIDs, if nobody has tampered with them.
type M1User struct {
	ID           string
	Username     string
	PasswordHash string
	CreatedAt    time.Time
}

// M1Workspace is a workspace there, deleted ones included.
type M1Workspace struct {
	ID, OwnerID     string
	Name            string
	Description     string
	Memo            string
	Status          string // CREATED … DELETED
	ImageRef        string
	InstanceBackend string
	StorageBackend  string
	HomeStoreKey    string // of the home below the folder of all homes
	CreatedAt       time.Time
	UpdatedAt       time.Time
	DeletedAt       *time.Time
}

// ErrNotM1: the database is none of the first version.
var ErrNotM1 = errors.New("it is no database of codehub's first version")

// ReadM1 reads a database of the first version, all of it as of one moment. It
// writes nothing there, and keeps no connection.
func ReadM1(ctx context.Context, dsn string) (M1Data, error) {
	var d M1Data
	conn, err := connectM1(ctx, dsn)
	if err != nil {
		return d, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := checkM1(ctx, tx); err != nil {
			return err
		}
		// Times there are of either type, and UTC in any case; so is this session.
		rows, err := tx.Query(ctx, `
			SELECT id, username, password_hash, created_at::timestamptz FROM users ORDER BY created_at, id`)
		if err != nil {
			return err
		}
		if d.Users, err = pgx.CollectRows(rows, pgx.RowToStructByPos[M1User]); err != nil {
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
		if d.Workspaces, err = pgx.CollectRows(rows, pgx.RowToStructByPos[M1Workspace]); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`).Scan(&d.Others)
	})
	if err != nil {
		return M1Data{}, fmt.Errorf("read the first version's database: %w", err)
	}
	return d, nil
}

// HoldsM1 reports whether a database is one of the first version: nothing else
// may be put into it.
func HoldsM1(ctx context.Context, dsn string) (bool, error) {
	conn, err := connectM1(ctx, dsn)
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = checkM1(ctx, conn)
	if errors.Is(err, ErrNotM1) {
		return false, nil
	}
	return err == nil, err
}

// connectM1 also takes the address as the first version itself had it, with the
// name of a driver in its scheme.
func connectM1(ctx context.Context, dsn string) (*pgx.Conn, error) {
	if scheme, rest, ok := strings.Cut(dsn, "://"); ok {
		scheme, _, _ = strings.Cut(scheme, "+")
		dsn = scheme + "://" + rest
	}
	cfg, err := ConnConfig(dsn, "codehub-import")
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return conn, nil
}

// checkM1 tells the first version from what came after, which has tables of the
// same names.
func checkM1(ctx context.Context, in interface {
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
		return fmt.Errorf("%w: its workspaces are of a later one", ErrNotM1)
	case users < 4 || workspaces < 8:
		return fmt.Errorf("%w: it has no tables users and workspaces as that had them", ErrNotM1)
	}
	return nil
}
