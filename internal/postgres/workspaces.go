package postgres

import (
	"context"

	"codehub/internal/workspace"
)

// Workspace reads one workspace, also a deleted one until it is DELETED.
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
	case !caller.Uses(w.OwnerID, w.ID):
		return workspace.Workspace{}, forbidden()
	}
	return w, nil
}
