package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Actions of import-m1 in the audit log.
const (
	AuditUserImport = "user.import"
	AuditImport     = "workspace.import"
)

// importKey is the advisory lock of import-m1 and move.
const importKey int64 = 0x636f646568756206

// LockImport locks the database against other imports and moves, and garbage collections,
// until release; CodeOperationInProgress if another import or move runs. A garbage collection could
// mistake a slow upload for an abandoned one. If the connection with the locks is
// lost, the claims still prevent two imports of one workspace.
func (db *DB) LockImport(ctx context.Context) (release func(), err error) {
	const verb = "take the import's lock"
	pooled, err := db.pool.Acquire(ctx)
	if err != nil {
		return nil, failed(verb, err)
	}
	// The locks belong to the session, so it does not return to the pool.
	conn := pooled.Hijack()
	release = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		// Unlock explicitly: PostgreSQL releases the locks of a closed connection
		// only some time later, and would refuse the next import until then.
		_, _ = conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`)
		_ = conn.Close(ctx)
	}
	got, err := tryLock(ctx, conn, importKey)
	if err == nil && !got {
		err = workspace.Errorf(workspace.CodeOperationInProgress, "Another import or move is running on this database.")
	}
	for err == nil {
		if got, err = tryLock(ctx, conn, collectionKey); got {
			return release, nil
		}
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(collectionPoll): // a collection takes seconds
		}
	}
	release()
	return nil, failed(verb, err)
}

const collectionPoll = 100 * time.Millisecond

func tryLock(ctx context.Context, conn *pgx.Conn, key int64) (got bool, err error) {
	err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, key).Scan(&got)
	return got, err
}

// HasAdmin reports whether there is an administrator who is not disabled.
func (db *DB) HasAdmin(ctx context.Context) (bool, error) {
	var has bool
	err := db.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM users WHERE admin AND NOT disabled)`).Scan(&has)
	return has, failed("look for administrators", err)
}

// ImportedUsers returns the ids of imported users by their ids in the first version, including
// users that were removed since.
func (db *DB) ImportedUsers(ctx context.Context) (map[string]string, error) {
	return idsByOld[string](ctx, db, "list the imported users", `SELECT old_id, user_id FROM m1_users`)
}

// Moved returns the ids of imported workspaces by their ids in the first version.
func (db *DB) Moved(ctx context.Context) (map[string]workspace.ID, error) {
	return idsByOld[workspace.ID](ctx, db, "list the imported workspaces",
		`SELECT old_id, workspace_id FROM m1_workspaces WHERE imported_at IS NOT NULL`)
}

func idsByOld[T ~string](ctx context.Context, db *DB, verb, sql string) (map[string]T, error) {
	rows, err := db.pool.Query(ctx, sql)
	if err != nil {
		return nil, failed(verb, err)
	}
	ids := map[string]T{}
	var old, id string
	_, err = pgx.ForEachRow(rows, []any{&old, &id}, func() error {
		ids[old] = T(id)
		return nil
	})
	if err != nil {
		return nil, failed(verb, err)
	}
	return ids, nil
}

// ImportUser adds a user of the first version with the id u.ID. CodeNameTaken if the
// username is taken, without regard to case.
func (db *DB) ImportUser(ctx context.Context, oldID string, u User) error {
	return db.tx(ctx, "import a user", func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO users (id, username, username_key, password_hash, admin, created_at)
			VALUES ($1, $2, $3, $4, $5, $6)`,
			u.ID, u.Username, UsernameKey(u.Username), u.PasswordHash, u.Admin, u.CreatedAt)
		if violates(err, "users_username_key") {
			return &workspace.Error{Code: workspace.CodeNameTaken, Message: fmt.Sprintf("The username %q is taken.", u.Username), Err: err}
		}
		if err != nil {
			return err
		}
		return recordUser(ctx, tx, oldID, u.ID, map[string]any{"username": u.Username, "admin": u.Admin, "old_id": oldID})
	})
}

// GrantAdmin makes a user an administrator.
func (db *DB) GrantAdmin(ctx context.Context, userID string) error {
	return db.tx(ctx, "make an administrator", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE users SET admin = true WHERE id = $1`, userID); err != nil {
			return err
		}
		return audit(ctx, tx, workspace.System, AuditUserImport, userID, map[string]any{"admin": true})
	})
}

// JoinUser records that a user of the first version is an existing user.
func (db *DB) JoinUser(ctx context.Context, oldID, userID string) error {
	return db.tx(ctx, "join a user", func(tx pgx.Tx) error {
		return recordUser(ctx, tx, oldID, userID, map[string]any{"joined": true, "old_id": oldID})
	})
}

func recordUser(ctx context.Context, tx pgx.Tx, oldID, userID string, details map[string]any) error {
	if _, err := tx.Exec(ctx, `INSERT INTO m1_users (old_id, user_id) VALUES ($1, $2)`, oldID, userID); err != nil {
		return err
	}
	return audit(ctx, tx, workspace.System, AuditUserImport, userID, details)
}

// Import is the database's record of a workspace of the first version.
type Import struct {
	OldID       string
	ID          workspace.ID
	ArchiveOpID string // of the last attempt to copy the home; empty if there was none
	Done        bool   // the workspace is imported, so its home must not be copied again
}

// Imports lists the imports that have begun, by the workspaces' ids in the first
// version.
func (db *DB) Imports(ctx context.Context) (map[string]Import, error) {
	const verb = "list the imports"
	rows, err := db.pool.Query(ctx, `SELECT old_id, workspace_id, archive_op_id, imported_at IS NOT NULL FROM m1_workspaces`)
	if err != nil {
		return nil, failed(verb, err)
	}
	imports := map[string]Import{}
	var i Import
	_, err = pgx.ForEachRow(rows, []any{&i.OldID, &i.ID, orEmpty(&i.ArchiveOpID), &i.Done}, func() error {
		imports[i.OldID] = i
		return nil
	})
	if err != nil {
		return nil, failed(verb, err)
	}
	return imports, nil
}

// ClaimImport records that the home of i is about to be copied under i.ArchiveOpID; each
// attempt has its own. It returns those of earlier attempts, which can no longer finish; the
// caller removes their objects. CodeGone if the import is done.
func (db *DB) ClaimImport(ctx context.Context, i Import) (abandoned []string, err error) {
	err = db.pool.QueryRow(ctx, `
		INSERT INTO m1_workspaces AS m (old_id, workspace_id, archive_op_id) VALUES ($1, $2, $3)
		ON CONFLICT (old_id) DO UPDATE SET archive_op_id = EXCLUDED.archive_op_id,
			abandoned = array_remove(m.abandoned || m.archive_op_id, NULL)
		WHERE m.imported_at IS NULL AND m.workspace_id = EXCLUDED.workspace_id
		RETURNING abandoned::text[]`,
		i.OldID, i.ID, nullable(i.ArchiveOpID)).Scan(&abandoned)
	if missing(err) {
		return nil, importOver()
	}
	return abandoned, failed("claim an import", err)
}

// ForgetAbandoned records that the objects of earlier attempts are removed.
func (db *DB) ForgetAbandoned(ctx context.Context, oldID string, abandoned []string) error {
	_, err := db.pool.Exec(ctx, `
		UPDATE m1_workspaces SET abandoned = ARRAY(SELECT unnest(abandoned) EXCEPT SELECT unnest($2::uuid[]))
		WHERE old_id = $1`, oldID, abandoned)
	return failed("forget unfinished copies", err)
}

func importOver() error {
	return workspace.Errorf(workspace.CodeGone, "Another import-m1 imported this workspace.")
}

// ImportedWorkspace is a workspace for FinishImport.
type ImportedWorkspace struct {
	Import
	NewWorkspace
	OwnerID   string
	CreatedAt time.Time
	// Named returns the name for attempt n, after NewWorkspace.Name and n-1 others
	// were taken.
	Named func(n int) string
	// Home is the verified archive of the home; nil if there is no home yet.
	Home *workspace.Archive
}

// FinishImport creates the workspace under the claim of its Import, which ends the
// import. Its home is its archive; the controller restores it like any other. If the
// running limits or that of its owner's bytes do not allow it to run, its desired state is STANDBY. CodeGone if
// another attempt holds the claim.
func (db *DB) FinishImport(ctx context.Context, n ImportedWorkspace) (w workspace.Workspace, err error) {
	err = db.tx(ctx, "finish an import", func(tx pgx.Tx) error {
		desired := n.Desired
		if desired == workspace.DesiredRunning {
			if err := lockLimits(ctx, tx); err != nil {
				return err
			}
			switch err := db.checkLimits(ctx, tx, n.OwnerID, n.ID); {
			case workspace.CodeOf(err) == workspace.CodeLimitExceeded, workspace.CodeOf(err) == workspace.CodeQuotaExceeded:
				desired = workspace.DesiredStandby
			case err != nil:
				return err
			}
		}
		tag, err := tx.Exec(ctx, `
			UPDATE m1_workspaces SET imported_at = now()
			WHERE old_id = $1 AND workspace_id = $2 AND archive_op_id IS NOT DISTINCT FROM $3 AND imported_at IS NULL`,
			n.OldID, n.ID, nullable(n.ArchiveOpID))
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return importOver()
		}
		if w, err = insertImported(ctx, tx, n, desired); err != nil {
			return err
		}
		return audit(ctx, tx, workspace.System, AuditImport, string(n.ID),
			map[string]any{"name": w.Name, "desired_state": w.DesiredState, "old_id": n.OldID, "owner": n.OwnerID})
	})
	return w, err
}

// maxNames bounds how many names are tried.
const maxNames = 10_000

func insertImported(ctx context.Context, tx pgx.Tx, n ImportedWorkspace, desired workspace.DesiredState) (workspace.Workspace, error) {
	a := arrival{NewWorkspace: n.NewWorkspace, ID: n.ID, OwnerID: n.OwnerID, CreatedAt: n.CreatedAt, Home: n.Home}
	a.Desired = desired
	for try := range maxNames {
		if try > 0 {
			a.Name = n.Named(try)
		}
		w, err := a.insert(ctx, tx)
		if workspace.CodeOf(err) != workspace.CodeNameTaken {
			return w, err
		}
	}
	return workspace.Workspace{}, nameTaken(n.Name, nil)
}
