package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Reload reads workspaces for their owners' event streams: ids[i] of owners[i].
// Workspaces that do not exist or have another owner are left out.
func (db *DB) Reload(ctx context.Context, owners []string, ids []workspace.ID) ([]workspace.Workspace, error) {
	const verb = "read changed workspaces"
	rows, err := db.pool.Query(ctx, `SELECT `+workspaceColumns+` FROM workspaces
		WHERE (id, owner_user_id) IN (SELECT * FROM unnest($1::text[]::uuid[], $2::text[]::uuid[])) AND phase <> 'DELETED'`, valid(ids), valid(owners))
	if err != nil {
		return nil, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, toWorkspace)
	return list, failed(verb, err)
}

// valid replaces invalid ids by one that no workspace has.
func valid[T ~string](ids []T) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		if out[i] = string(id); !workspace.ValidID(out[i]) {
			out[i] = "00000000-0000-0000-0000-000000000000"
		}
	}
	return out
}

// RecentlyDeleted lists the caller's workspaces that are being deleted or were
// deleted within a day, so that a client that reconnects learns of them.
func (db *DB) RecentlyDeleted(ctx context.Context, caller workspace.Caller) ([]workspace.ID, error) {
	if !workspace.ValidID(caller.UserID) {
		return nil, forbidden()
	}
	const verb = "list deleted workspaces"
	rows, err := db.pool.Query(ctx, fmt.Sprintf(`SELECT id FROM workspaces WHERE owner_user_id = $1 AND ($2 = '' OR id::text = $2) AND deleted_at IS NOT NULL
		AND (phase <> 'DELETED' OR deleted_at > now() - interval '1 day') ORDER BY deleted_at DESC LIMIT %d`, maxRecentlyDeleted), caller.UserID, string(caller.Only))
	if err != nil {
		return nil, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[workspace.ID])
	return list, failed(verb, err)
}

const maxRecentlyDeleted = 1000
