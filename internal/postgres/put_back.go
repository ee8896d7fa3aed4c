package postgres

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// AuditPutBack is the action of a user who puts a file or folder of a backup into a workspace.
const AuditPutBack = "workspace.put_back"

// RecordPutBack records that the caller puts a file or folder of a backup into a workspace of their own,
// which the caller of RecordPutBack does then.
func (db *DB) RecordPutBack(ctx context.Context, caller workspace.Caller, id workspace.ID, backup, path, to string, replace bool) error {
	return db.tx(ctx, "record that a file was put back", func(tx pgx.Tx) error {
		if _, _, err := lockWorkspace(ctx, tx, caller, id); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditPutBack, string(id), map[string]any{
			"backup": backup, "path": strings.ToValidUTF8(path, "\uFFFD"), "to": strings.ToValidUTF8(to, "\uFFFD"), "replace": replace,
		})
	})
}
