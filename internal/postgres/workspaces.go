package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// NewWorkspace is what a workspace is made of.
type NewWorkspace struct {
	Name           string
	Description    string
	Memo           string
	ImageRef       string
	StorageBackend string
	Desired        workspace.DesiredState
	StandbyTTL     *int // seconds; nil = the server's default, 0 = never
	ArchiveTTL     *int
}

// CreateWorkspace adds a workspace of the caller's. CodeNameTaken;
// CodeLimitExceeded if RUNNING is wanted and no more may run, and then there
// is nothing added.
func (db *DB) CreateWorkspace(ctx context.Context, caller workspace.Caller, n NewWorkspace) (workspace.Workspace, error) {
	if !workspace.ValidID(caller.UserID) {
		return workspace.Workspace{}, forbidden()
	}
	made, err := uuid.NewV7()
	if err != nil {
		return workspace.Workspace{}, fmt.Errorf("make an id: %w", err)
	}
	id := workspace.ID(made.String())
	var w workspace.Workspace
	err = db.tx(ctx, "create a workspace", func(tx pgx.Tx) error {
		if n.Desired == workspace.DesiredRunning {
			if err := lockLimits(ctx, tx); err != nil {
				return err
			}
			if err := db.checkLimits(ctx, tx, caller.UserID, id); err != nil {
				return err
			}
		}
		var err error
		if w, err = insertWorkspace(ctx, tx, caller, id, n); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditCreate, string(id), map[string]any{"name": w.Name, "desired_state": w.DesiredState})
	})
	return w, err
}

func insertWorkspace(ctx context.Context, tx pgx.Tx, caller workspace.Caller, id workspace.ID, n NewWorkspace) (w workspace.Workspace, err error) {
	err = tx.QueryRow(ctx, `
		INSERT INTO workspaces (id, owner_user_id, name, description, memo, image_ref, storage_backend,
			desired_state, standby_ttl_seconds, archive_ttl_seconds)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING `+workspaceColumns,
		id, caller.UserID, n.Name, n.Description, n.Memo, n.ImageRef, n.StorageBackend,
		n.Desired, n.StandbyTTL, n.ArchiveTTL).Scan(workspaceTargets(&w)...)
	switch {
	case violates(err, "workspaces_name"):
		return w, nameTaken(n.Name, err)
	case violates(err, "workspaces_owner"):
		return w, forbidden()
	}
	return w, err
}

// Workspace reads one workspace; deleted ones too, until nothing is left of
// them.
func (db *DB) Workspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	if !workspace.ValidID(string(id)) {
		return workspace.Workspace{}, notFound("workspace")
	}
	var w workspace.Workspace
	err := db.pool.QueryRow(ctx, `SELECT `+workspaceColumns+` FROM workspaces WHERE id = $1`, id).Scan(workspaceTargets(&w)...)
	switch {
	case missing(err), err == nil && w.Phase == workspace.PhaseDeleted:
		return workspace.Workspace{}, notFound("workspace")
	case err != nil:
		return workspace.Workspace{}, failed("read a workspace", err)
	case !caller.Owns(w.OwnerID):
		return workspace.Workspace{}, forbidden()
	}
	return w, nil
}
