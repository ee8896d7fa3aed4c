package postgres

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// AuditAdopt is the audit entry of a workspace that adopt-archives created.
const AuditAdopt = "workspace.adopt"

// HasWorkspaces reports whether there is any workspace, including deleted ones.
func (db *DB) HasWorkspaces(ctx context.Context) (has bool, err error) {
	err = db.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workspaces)`).Scan(&has)
	return has, failed("look for workspaces", err)
}

// TakeInstallation gives this database the id of another installation, whose containers,
// volumes and archives it then owns. CodeForbidden if the database has a workspace or an
// archive. No server may be running.
func (db *DB) TakeInstallation(ctx context.Context, id string) error {
	return db.tx(ctx, "take over an installation", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `LOCK TABLE workspaces, archives IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return err
		}
		var used bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workspaces) OR EXISTS (SELECT FROM archives)`).Scan(&used); err != nil {
			return err
		}
		if used {
			return workspace.Errorf(workspace.CodeForbidden, "This database already has workspaces.")
		}
		if _, err := tx.Exec(ctx, `INSERT INTO installation (id) VALUES ($1) ON CONFLICT (only_row) DO UPDATE SET id = EXCLUDED.id`, id); err != nil {
			return err
		}
		// The marks in Docker are those of the lost database.
		_, err := tx.Exec(ctx, `UPDATE gc_state SET take_over = true, taken_over_at = clock_timestamp(), restored_at = clock_timestamp()`)
		return err
	})
}

// Adoption is a workspace to create from its archives.
type Adoption struct {
	ID             workspace.ID
	OwnerID        string
	Name           string // extended by a number if it is taken
	ImageRef       string
	StorageBackend string
	CreatedAt      time.Time
	Archives       []workspace.Archive // newest first, at least one
}

// Adopt adds the row of a lost workspace: archived, with the newest archive as the current one
// and the others as earlier generations. adopted is false, and nothing changes, if the
// workspace exists.
func (db *DB) Adopt(ctx context.Context, a Adoption) (name string, adopted bool, err error) {
	err = db.tx(ctx, "adopt a workspace", func(tx pgx.Tx) error {
		name, adopted = "", false
		// The lock keeps other transactions from taking a name of the owner.
		if _, err := tx.Exec(ctx, `SELECT FROM users WHERE id = $1 FOR UPDATE`, a.OwnerID); err != nil {
			return err
		}
		free, err := freeName(ctx, tx, a.OwnerID, a.Name)
		if err != nil {
			return err
		}
		current := a.Archives[0]
		tag, err := tx.Exec(ctx, `
			INSERT INTO workspaces (id, owner_user_id, name, image_ref, storage_backend, desired_state,
				archive_op_id, archive_key, archive_digest, archive_size, created_at)
			VALUES ($1, $2, $3, $4, $5, 'ARCHIVED', $6, $7, $8, $9, $10) ON CONFLICT (id) DO NOTHING`,
			a.ID, a.OwnerID, free, a.ImageRef, a.StorageBackend,
			current.OpID, current.Key, current.Digest, current.Size, a.CreatedAt)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		if err := recordAdopted(ctx, tx, a.Archives); err != nil {
			return err
		}
		name, adopted = free, true
		return audit(ctx, tx, workspace.System, AuditAdopt, string(a.ID), map[string]any{"name": free, "archive_key": current.Key})
	})
	return name, adopted, err
}

// recordAdopted records archives, newest first. Each supersedes the next.
func recordAdopted(ctx context.Context, tx pgx.Tx, list []workspace.Archive) error {
	for i, r := range list {
		var superseded *time.Time
		if i > 0 {
			superseded = &list[i-1].CreatedAt
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO archives (key, workspace_id, archive_op_id, origin, digest, size, entries, skipped, created_at, complete_at, superseded_at)
			VALUES ($1, $2, $3, 'found', $4, $5, $6, $7, $8, clock_timestamp(), $9)
			ON CONFLICT (key) DO UPDATE SET digest = EXCLUDED.digest, size = EXCLUDED.size, entries = EXCLUDED.entries,
				skipped = EXCLUDED.skipped, complete_at = COALESCE(archives.complete_at, EXCLUDED.complete_at), unprotected_since = NULL, missing_since = NULL
			WHERE archives.deleting_at IS NULL`,
			r.Key, r.WorkspaceID, r.OpID, r.Digest, r.Size, r.Entries, r.Skipped, r.CreatedAt, superseded)
		if err != nil {
			return err
		}
	}
	return nil
}

// freeName returns name, or name with a number if the owner has a workspace of that name.
func freeName(ctx context.Context, tx pgx.Tx, ownerID, name string) (string, error) {
	name = clean(name)
	for n := 1; ; n++ {
		candidate := name
		if n > 1 {
			suffix := fmt.Sprintf(" (%d)", n)
			candidate = cut(name, workspace.MaxName-len(suffix)) + suffix
		} else {
			candidate = cut(name, workspace.MaxName)
		}
		var taken bool
		err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workspaces WHERE owner_user_id = $1 AND name = $2 AND deleted_at IS NULL)`,
			ownerID, candidate).Scan(&taken)
		if err != nil || !taken {
			return candidate, err
		}
	}
}

// cut returns at most n characters of s.
func cut(s string, n int) string {
	for utf8.RuneCountInString(s) > n {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}

// Revive undoes a deletion in a restored backup if archives were made since. They become the
// workspace's archives, the newest as the current one. It returns false if the workspace is not
// deleted, or its home exists or is being removed.
func (db *DB) Revive(ctx context.Context, id workspace.ID, archives []workspace.Archive) (name string, revived bool, err error) {
	err = db.tx(ctx, "revive a workspace", func(tx pgx.Tx) error {
		name, revived = "", false
		w, _, err := lockWorkspace(ctx, tx, workspace.System, id)
		if err != nil {
			return err
		}
		if w.DeletedAt == nil || !lifecycle.OnlyArchives(w.Operation, w.Home.State) || !archives[0].CreatedAt.After(*w.DeletedAt) {
			return nil
		}
		if name, err = freeName(ctx, tx, w.OwnerID, w.Name); err != nil {
			return err
		}
		if err := recordAdopted(ctx, tx, archives); err != nil {
			return err
		}
		current := archives[0]
		_, err = tx.Exec(ctx, `
			UPDATE workspaces SET name = $2, deleted_at = NULL, desired_state = 'ARCHIVED', desired_cause = NULL, next_desired_state = NULL, phase = 'PENDING',
				phase_changed_at = clock_timestamp(), conditions = '{}', archive_key = $3, archive_digest = $4, archive_size = $5,
				error_reason = NULL, error_message = NULL, error_count = 0, retry_at = NULL, recover_requested_at = NULL, recover_action = NULL,
				recover_archive = NULL, cancel_requested_at = NULL, force_stop_requested_at = NULL, updated_at = clock_timestamp()
			WHERE id = $1`, id, name, current.Key, current.Digest, current.Size)
		if err != nil {
			return err
		}
		revived = true
		return audit(ctx, tx, workspace.System, AuditAdopt, string(id), map[string]any{"name": name, "archive_key": current.Key, "deleted_at": w.DeletedAt})
	})
	return name, revived, err
}
