package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// AuditNodeDead is the audit log's action of an administrator who confirms that a node is dead.
const AuditNodeDead = "node.dead"

// NamedWorkspace is a workspace's name and its owner's username.
type NamedWorkspace struct {
	ID          workspace.ID
	Name, Owner string
}

// NamesOf returns the names of workspaces, in order of their ids; unknown ones are left out.
// CodeForbidden unless the caller is an administrator.
func (db *DB) NamesOf(ctx context.Context, caller workspace.Caller, ids []workspace.ID) ([]NamedWorkspace, error) {
	if err := db.administers(ctx, caller); err != nil {
		return nil, err
	}
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = string(id)
	}
	rows, err := db.pool.Query(ctx, `
		SELECT w.id::text, w.name, u.username FROM workspaces w JOIN users u ON u.id = w.owner_user_id
		WHERE w.id::text = ANY ($1) ORDER BY w.id`, texts)
	if err != nil {
		return nil, failed("read the names of workspaces", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[NamedWorkspace])
	if err != nil {
		return nil, failed("read the names of workspaces", err)
	}
	return list, nil
}

// RecordDeadNode records that the caller confirms that a node is dead. CodeForbidden unless the
// caller is an administrator.
func (db *DB) RecordDeadNode(ctx context.Context, caller workspace.Caller, node string) error {
	if err := db.administers(ctx, caller); err != nil {
		return err
	}
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		return audit(ctx, tx, caller, AuditNodeDead, node, nil)
	})
	if err != nil {
		return failed("record that a node is dead", err)
	}
	return nil
}
