package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Columns of an archive as its owner sees it, in the order of archiveTargets.
const archiveColumns = `key, workspace_id, archive_op_id, digest, size, entries, skipped, created_at, origin = 'found'`

func archiveTargets(a *workspace.Archive) []any {
	return []any{&a.Key, &a.WorkspaceID, &a.OpID, &a.Digest, &a.Size, &a.Entries, &a.Skipped, &a.CreatedAt, &a.Found}
}

// choosable is what an archive must be to be recovered from: complete as far
// as anybody knows, and not on its way out.
const choosable = `deleting_at IS NULL AND (verified_at IS NOT NULL OR complete_at IS NOT NULL)`

// Archives lists the archives that a workspace can be recovered from, newest
// first, the current one included. One that the bucket did not have when it
// was last listed is left out.
func (db *DB) Archives(ctx context.Context, caller workspace.Caller, id workspace.ID) ([]workspace.Archive, error) {
	if _, err := db.Workspace(ctx, caller, id); err != nil {
		return nil, err
	}
	const verb = "list archives"
	rows, err := db.pool.Query(ctx, `
		SELECT `+archiveColumns+` FROM archives
		WHERE workspace_id = $1 AND missing_since IS NULL AND `+choosable+`
		ORDER BY created_at DESC, archive_op_id DESC`, id)
	if err != nil {
		return nil, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a workspace.Archive, err error) {
		return a, row.Scan(archiveTargets(&a)...)
	})
	return list, failed(verb, err)
}

// chooseArchive takes one of a workspace's archives to recover from, so that it
// stays; nil if there is none with this ID. The transaction holds the workspace's
// row, as garbage collection does before it marks an archive.
func chooseArchive(ctx context.Context, tx pgx.Tx, id workspace.ID, opID string) (*workspace.Archive, error) {
	if !workspace.ValidID(opID) {
		return nil, nil
	}
	var a workspace.Archive
	err := tx.QueryRow(ctx, `
		UPDATE archives SET unprotected_since = NULL
		WHERE key = (
			SELECT key FROM archives WHERE workspace_id = $1 AND archive_op_id = $2 AND `+choosable+`
			ORDER BY created_at DESC LIMIT 1)
		RETURNING `+archiveColumns, id, opID).Scan(archiveTargets(&a)...)
	if missing(err) {
		return nil, nil
	}
	return &a, err
}

// goingArchive reports whether the archive is being removed. The transaction
// holds the row of its workspace.
func goingArchive(ctx context.Context, tx pgx.Tx, key string) (going bool, err error) {
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM archives WHERE key = $1 AND deleting_at IS NOT NULL)`, key).Scan(&going)
	return going, err
}
