package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// arrival is a workspace that comes from another installation or version, with its home
// as an archive in this installation's bucket.
type arrival struct {
	NewWorkspace
	ID                workspace.ID
	OwnerID           string
	AwakeWhileWorking bool
	LastAccessAt      *time.Time
	LastAccess        string
	CreatedAt         time.Time
	// Home is the verified archive of the home; nil if there is no home yet. The database
	// sets its time of creation.
	Home *workspace.Archive
}

// insert adds the workspace with its archive. CodeNameTaken, and nothing is added, if the
// owner has a workspace of this name.
func (a arrival) insert(ctx context.Context, tx pgx.Tx) (w workspace.Workspace, err error) {
	env, err := envValue(a.Env)
	if err != nil {
		return w, err
	}
	home := workspace.Archive{}
	if a.Home != nil {
		home = *a.Home
	}
	err = tx.QueryRow(ctx, `
		INSERT INTO workspaces (id, owner_user_id, name, description, memo, image_ref, size, storage_backend, desired_state,
			standby_ttl_seconds, archive_ttl_seconds, env, time_zone, awake_while_working, last_access_at, last_access_kind,
			created_at, archive_op_id, archive_key, archive_digest, archive_size)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
		ON CONFLICT (owner_user_id, name) WHERE deleted_at IS NULL DO NOTHING RETURNING `+workspaceColumns,
		a.ID, a.OwnerID, a.Name, a.Description, a.Memo, a.ImageRef, nullable(a.Size), a.StorageBackend, a.Desired,
		a.StandbyTTL, a.ArchiveTTL, env, nullable(a.TimeZone), a.AwakeWhileWorking, a.LastAccessAt, nullable(a.LastAccess),
		a.CreatedAt, nullable(home.OpID), nullable(home.Key), home.Digest, home.Size).
		Scan(workspaceTargets(&w)...)
	if missing(err) {
		return w, nameTaken(a.Name, nil)
	}
	if err != nil || a.Home == nil {
		return w, err
	}
	// The archive is created now: garbage collection compares its time with times of this
	// database, such as that of an earlier deletion of the workspace here.
	_, err = tx.Exec(ctx, `
		INSERT INTO archives (key, workspace_id, archive_op_id, digest, size, entries, skipped, verified_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, now())`,
		home.Key, a.ID, home.OpID, home.Digest, home.Size, home.Entries, home.Skipped)
	return w, err
}
