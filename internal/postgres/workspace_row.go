package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

func toWorkspace(row pgx.CollectableRow) (w workspace.Workspace, err error) {
	return w, row.Scan(workspaceTargets(&w)...)
}

// jsonOf encodes v for a jsonb column; nil becomes NULL.
func jsonOf[T any](v *T) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return storableJSON(b), nil
}

// lockWorkspace reads a workspace for a change, with the database's time, and checks that the
// caller may change it: a user whose access has ended while the request waited may not. It locks
// the row until the transaction ends.
func lockWorkspace(ctx context.Context, tx pgx.Tx, caller workspace.Caller, id workspace.ID) (w workspace.Workspace, now time.Time, err error) {
	if !workspace.ValidID(string(id)) {
		return w, now, notFound("workspace")
	}
	err = tx.QueryRow(ctx, `
		SELECT clock_timestamp(), `+workspaceColumns+` FROM workspaces WHERE id = $1 FOR NO KEY UPDATE`, id).
		Scan(append([]any{&now}, workspaceTargets(&w)...)...)
	switch {
	case missing(err):
		return w, now, notFound("workspace")
	case err != nil:
		return w, now, err
	case !caller.Uses(w.OwnerID, w.ID):
		return w, now, forbidden()
	}
	return w, now, checkActive(ctx, tx, caller)
}

// checkActive returns CodeForbidden for a user who is disabled, suspended or deleted. A statement
// that waited for a lock does not see what its holder changed in other tables, so this is one of
// its own, after the lock.
func checkActive(ctx context.Context, tx pgx.Tx, caller workspace.Caller) error {
	if caller == workspace.System {
		return nil
	}
	active, err := isActive(ctx, tx, caller.UserID)
	if err == nil && !active {
		err = forbidden()
	}
	return err
}

// isActive reports whether there is such a user, who is neither disabled, suspended nor deleted.
func isActive(ctx context.Context, tx pgx.Tx, user string) (active bool, err error) {
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM users WHERE id = $1 AND active)`, user).Scan(&active)
	return active, err
}

// saveWorkspace writes the API layer's columns of w, whose row the transaction holds, and no
// others.
func saveWorkspace(ctx context.Context, tx pgx.Tx, w workspace.Workspace, updated bool) (saved workspace.Workspace, err error) {
	u := update{}
	for _, c := range columns {
		if c.by == apiLayer {
			if err := u.set(c, &w); err != nil {
				return saved, err
			}
		}
	}
	if updated {
		u.sets = append(u.sets, "updated_at = clock_timestamp()")
	}
	err = tx.QueryRow(ctx, `UPDATE workspaces SET `+strings.Join(u.sets, ", ")+` WHERE id = `+u.arg(w.ID)+` RETURNING `+workspaceColumns, u.args...).
		Scan(workspaceTargets(&saved)...)
	if violates(err, "workspaces_name") {
		return saved, nameTaken(w.Name, err)
	}
	return saved, err
}

func nameTaken(name string, err error) error {
	return &workspace.Error{Code: workspace.CodeNameTaken, Message: fmt.Sprintf("You already have a workspace named %q.", name), Err: err}
}
