package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Columns of an archive, in the order of archiveTargets.
const archiveColumns = `key, workspace_id, archive_op_id, digest, size, entries, skipped, created_at, origin = 'found'`

func archiveTargets(a *workspace.Archive) []any {
	return []any{&a.Key, &a.WorkspaceID, &a.OpID, &a.Digest, &a.Size, &a.Entries, &a.Skipped, &a.CreatedAt, &a.Found}
}

// recoverable selects the archives that a workspace can be recovered from: those that are
// complete and not being removed.
const recoverable = `deleting_at IS NULL AND (verified_at IS NOT NULL OR complete_at IS NOT NULL)`

// Archives lists the archives that a workspace can be recovered from, newest first, including
// the current one. It omits archives that were missing when the bucket was last listed.
func (db *DB) Archives(ctx context.Context, caller workspace.Caller, id workspace.ID) ([]workspace.Archive, error) {
	if _, err := db.Workspace(ctx, caller, id); err != nil {
		return nil, err
	}
	const verb = "list archives"
	rows, err := db.pool.Query(ctx, `
		SELECT `+archiveColumns+` FROM archives
		WHERE workspace_id = $1 AND missing_since IS NULL AND `+recoverable+`
		ORDER BY created_at DESC, archive_op_id DESC`, id)
	if err != nil {
		return nil, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a workspace.Archive, err error) {
		return a, row.Scan(archiveTargets(&a)...)
	})
	return list, failed(verb, err)
}

// chooseArchive protects one of a workspace's archives, to recover from it; nil if there is
// none with this ID. The transaction holds the workspace's row, as garbage collection does
// before it marks an archive.
func chooseArchive(ctx context.Context, tx pgx.Tx, id workspace.ID, opID string) (*workspace.Archive, error) {
	if !workspace.ValidID(opID) {
		return nil, nil
	}
	var a workspace.Archive
	err := tx.QueryRow(ctx, `
		UPDATE archives SET unprotected_since = NULL
		WHERE key = (
			SELECT key FROM archives WHERE workspace_id = $1 AND archive_op_id = $2 AND `+recoverable+`
			ORDER BY created_at DESC LIMIT 1)
		RETURNING `+archiveColumns, id, opID).Scan(archiveTargets(&a)...)
	if missing(err) {
		return nil, nil
	}
	return &a, err
}

// archiveBeingRemoved reports whether the archive is being removed. The transaction holds the row of
// its workspace.
func archiveBeingRemoved(ctx context.Context, tx pgx.Tx, key string) (going bool, err error) {
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM archives WHERE key = $1 AND deleting_at IS NOT NULL)`, key).Scan(&going)
	return going, err
}
