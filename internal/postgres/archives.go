package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
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
// the current one, and returns the cursor of the next page, "" at the end. It omits archives
// that were missing when the bucket was last listed.
func (db *DB) Archives(ctx context.Context, caller workspace.Caller, id workspace.ID, page Page) (list []workspace.Archive, next string, err error) {
	if _, err := db.Workspace(ctx, caller, id); err != nil {
		return nil, "", err
	}
	const verb = "list archives"
	var q where
	q.add(`workspace_id = ?`, id)
	q.add(`missing_since IS NULL AND ` + recoverable)
	if page.Cursor != "" {
		p, err := parseCursor(page.Cursor)
		if err != nil {
			return nil, "", err
		}
		q.add(`(created_at, archive_op_id) < (?, ?)`, p.At, p.ID)
	}
	rows, err := db.pool.Query(ctx, fmt.Sprintf(`SELECT %s FROM archives WHERE %s ORDER BY created_at DESC, archive_op_id DESC LIMIT %d`,
		archiveColumns, strings.Join(q.parts, ` AND `), page.Size()+1), q.args...)
	if err != nil {
		return nil, "", failed(verb, err)
	}
	list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (a workspace.Archive, err error) {
		return a, row.Scan(archiveTargets(&a)...)
	})
	if err != nil {
		return nil, "", failed(verb, err)
	}
	list, next = cutPage(list, page.Size(), func(a workspace.Archive) place { return place{At: a.CreatedAt, ID: a.OpID} })
	return list, next, nil
}

// Archive reads one of the archives that Archives lists. CodeArchiveNotFound.
func (db *DB) Archive(ctx context.Context, caller workspace.Caller, id workspace.ID, opID string) (workspace.Archive, error) {
	var a workspace.Archive
	if _, err := db.Workspace(ctx, caller, id); err != nil {
		return a, err
	}
	if !workspace.ValidID(opID) {
		return a, lifecycle.NoSuchArchive()
	}
	err := db.pool.QueryRow(ctx, `
		SELECT `+archiveColumns+` FROM archives
		WHERE workspace_id = $1 AND archive_op_id = $2 AND missing_since IS NULL AND `+recoverable+`
		ORDER BY created_at DESC LIMIT 1`, id, opID).Scan(archiveTargets(&a)...)
	if missing(err) {
		return a, lifecycle.NoSuchArchive()
	}
	return a, failed("read an archive", err)
}

// chooseArchive protects one of a workspace's archives or backups, to recover from it; nil if there is
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
		a, err = chooseBackup(ctx, tx, id, opID)
		if workspace.CodeOf(err) == workspace.CodeNotFound {
			return nil, nil
		}
	}
	return &a, err
}

// archiveBeingRemoved reports whether the archive is being removed. The transaction holds the row of
// its workspace.
func archiveBeingRemoved(ctx context.Context, tx pgx.Tx, key string) (going bool, err error) {
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM archives WHERE key = $1 AND deleting_at IS NOT NULL)`, key).Scan(&going)
	return going, err
}
