package server

import (
	"context"

	"codehub/internal/bus"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// reload reads for event streams what has changed.
func reload(db *postgres.DB) func(context.Context, []bus.Wanted) ([]workspace.Workspace, error) {
	return func(ctx context.Context, wanted []bus.Wanted) ([]workspace.Workspace, error) {
		owners, ids := make([]string, len(wanted)), make([]workspace.ID, len(wanted))
		for i, w := range wanted {
			owners[i], ids[i] = w.Owner, w.ID
		}
		return db.Reload(ctx, owners, ids)
	}
}
