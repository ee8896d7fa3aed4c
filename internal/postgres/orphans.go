package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Orphan is a resource in Docker without a workspace.
type Orphan struct {
	Kind        string // container, volume, job or set-aside
	Name        string // unique within its kind
	WorkspaceID string // of its label; the workspace does not exist, or does not use it (set-aside)
	Detail      string // text for administrators
	Kept        bool   // it is not removed automatically
	FirstSeenAt time.Time
	Age         time.Duration // since it was first seen, by the database's clock, when the leader read it
}

// Orphans lists the orphans that the leader found, oldest first, and returns the cursor of the
// next page, "" at the end. Only administrators may call it.
func (db *DB) Orphans(ctx context.Context, caller workspace.Caller, page Page) (list []Orphan, next string, err error) {
	if err := db.administers(ctx, caller); err != nil {
		return nil, "", err
	}
	const verb = "list the orphans"
	var after place
	if page.Cursor != "" {
		if after, err = parsePlace(page.Cursor); err != nil {
			return nil, "", err
		}
	}
	rows, err := db.pool.Query(ctx, selectOrphans+` WHERE $1 OR (first_seen_at, kind, name) > ($2, $3, $4)`+orderOrphans+` LIMIT $5`,
		page.Cursor == "", after.At, after.Kind, after.ID, page.Size()+1)
	if err != nil {
		return nil, "", failed(verb, err)
	}
	if list, err = pgx.CollectRows(rows, toOrphan); err != nil {
		return nil, "", failed(verb, err)
	}
	list, next = cutPage(list, page.Size(), func(o Orphan) place { return place{At: o.FirstSeenAt, Kind: o.Kind, ID: o.Name} })
	return list, next, nil
}

const (
	selectOrphans = `
	SELECT kind, name, workspace_id, detail, kept, first_seen_at, GREATEST(clock_timestamp() - GREATEST(first_seen_at, (SELECT restored_at FROM gc_state)), '0')
	FROM orphans`
	orderOrphans = ` ORDER BY first_seen_at, kind, name`
)

func toOrphan(row pgx.CollectableRow) (o Orphan, err error) {
	err = row.Scan(&o.Kind, &o.Name, &o.WorkspaceID, &o.Detail, &o.Kept, &o.FirstSeenAt, &o.Age)
	return o, err
}

// SaveOrphans replaces the recorded orphans by seen and returns them. A known orphan keeps the
// time at which it was first seen, so a change of leaders restarts no delay.
func (c *Controller) SaveOrphans(ctx context.Context, seen []Orphan) (list []Orphan, err error) {
	var kinds, names, workspaces, details []string
	var kept []bool
	for _, o := range seen {
		kinds, names, workspaces = append(kinds, o.Kind), append(names, clean(o.Name)), append(workspaces, clean(o.WorkspaceID))
		details, kept = append(details, clean(o.Detail)), append(kept, o.Kept)
	}
	err = c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `
				DELETE FROM orphans o WHERE NOT EXISTS (
					SELECT FROM unnest($1::text[], $2::text[]) AS s (kind, name) WHERE s.kind = o.kind AND s.name = o.name)`, kinds, names)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `
				INSERT INTO orphans AS o (kind, name, workspace_id, detail, kept)
				SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[])
				ON CONFLICT (kind, name) DO UPDATE SET workspace_id = EXCLUDED.workspace_id, detail = EXCLUDED.detail, kept = EXCLUDED.kept
				WHERE (o.workspace_id, o.detail, o.kept) IS DISTINCT FROM (EXCLUDED.workspace_id, EXCLUDED.detail, EXCLUDED.kept)`,
				kinds, names, workspaces, details, kept)
			if err != nil {
				return err
			}
			rows, err := tx.Query(ctx, selectOrphans+orderOrphans)
			if err != nil {
				return err
			}
			list, err = pgx.CollectRows(rows, toOrphan)
			return err
		})
	})
	return list, failed("write the orphans", err)
}

// Owned reports whether a workspace with that id exists that is not DELETED.
func (c *Controller) Owned(ctx context.Context, id workspace.ID) (owned bool, err error) {
	if !workspace.ValidID(string(id)) {
		return false, nil
	}
	err = c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workspaces WHERE id = $1 AND phase <> 'DELETED')`, id).Scan(&owned)
	})
	return owned, failed("look for a workspace", err)
}
