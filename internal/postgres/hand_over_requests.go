package postgres

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// HandOverRequest is a hand-over that an administrator has requested and that needs the owner's
// consent. A later request, the owner's acceptance and a withdrawal end it.
type HandOverRequest = api.HandOverRequest

// Actions in the audit log.
const (
	AuditHandOverRequest  = "workspace.hand_over_request"
	AuditHandOverDecline  = "workspace.hand_over_decline"
	AuditHandOverWithdraw = "workspace.hand_over_withdraw"
)

// requestHandOver stores a hand-over of w, whose row the transaction holds, for its owner to
// accept. The workspace need not be at rest yet.
func requestHandOver(ctx context.Context, tx pgx.Tx, caller workspace.Caller, w workspace.Workspace, owner string, to receiver, h HandOver) error {
	switch _, err := lifecycle.HandOver(w, to.id, h.Name); workspace.CodeOf(err) {
	case "", workspace.CodeOperationInProgress, workspace.CodeNotStopped:
	default:
		return err
	}
	if h.Name == w.Name {
		h.Name = ""
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO hand_over_requests (workspace_id, user_id, to_user_id, name, by_username, message) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (workspace_id) DO UPDATE SET user_id = EXCLUDED.user_id, to_user_id = EXCLUDED.to_user_id, name = EXCLUDED.name,
			by_username = EXCLUDED.by_username, message = EXCLUDED.message, requested_at = EXCLUDED.requested_at, declined_at = NULL`,
		w.ID, w.OwnerID, to.id, clean(h.Name), clean(caller.Username), clean(h.Message))
	if err != nil {
		return err
	}
	details := map[string]any{"name": w.Name, "owner": owner, "to": to.username}
	if h.Message != "" {
		details["message"] = h.Message
	}
	return audit(ctx, tx, caller, AuditHandOverRequest, string(w.ID), details)
}

// HandOverRequest returns the requested hand-over of the caller's workspace that the caller has
// not answered. CodeNotFound if there is none.
func (db *DB) HandOverRequest(ctx context.Context, caller workspace.Caller, id workspace.ID) (HandOverRequest, error) {
	w, err := db.Workspace(ctx, caller, id)
	if err != nil {
		return HandOverRequest{}, err
	}
	_, r, err := handOverRequest(ctx, db.pool, w.OwnerID, id)
	return r, failed("read a requested hand-over", err)
}

// handOverRequest returns the hand-over that the owner is asked to accept, with the id of the new
// owner; CodeNotFound.
func handOverRequest(ctx context.Context, in querier, owner string, id workspace.ID) (to string, r HandOverRequest, err error) {
	err = in.QueryRow(ctx, `
		SELECT u.id, u.username, r.name, r.by_username, r.message, r.requested_at
		FROM hand_over_requests r JOIN users u ON u.id = r.to_user_id JOIN workspaces w ON w.id = r.workspace_id AND w.owner_user_id = r.user_id AND w.deleted_at IS NULL
		WHERE r.workspace_id = $1 AND r.user_id = $2 AND r.declined_at IS NULL`, id, owner).Scan(&to, &r.To, &r.Name, &r.By, &r.Message, &r.RequestedAt)
	if missing(err) {
		err = notFound("request for a hand-over")
	}
	return to, r, err
}

// AnswerHandOver accepts the requested hand-over of the caller's workspace, which is then carried
// out at once, or declines it. A workspace whose name is taken there gets the caller's name
// appended. The errors are CodeNotFound and, on acceptance, those of HandOver.
func (db *DB) AnswerHandOver(ctx context.Context, caller workspace.Caller, id workspace.ID, accept bool) error {
	if _, err := db.Workspace(ctx, caller, id); err != nil {
		return err
	}
	return db.tx(ctx, "answer a requested hand-over", func(tx pgx.Tx) error {
		toID, _, err := handOverRequest(ctx, tx, caller.UserID, id)
		if err != nil {
			return err
		}
		var to receiver
		if accept { // users before workspaces
			if to, err = lockReceiver(ctx, tx, caller, toID); err != nil {
				return err
			}
		}
		w, _, err := lockWorkspace(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		again, r, err := handOverRequest(ctx, tx, caller.UserID, id)
		if err == nil && again != toID {
			err = notFound("request for a hand-over") // another one has replaced it
		}
		if err != nil {
			return err
		}
		if !accept {
			if _, err := tx.Exec(ctx, `UPDATE hand_over_requests SET declined_at = clock_timestamp() WHERE workspace_id = $1`, id); err != nil {
				return err
			}
			return audit(ctx, tx, caller, AuditHandOverDecline, string(id), map[string]any{"name": w.Name, "to": r.To, "requested_by": r.By})
		}
		name, err := freeNameFor(ctx, tx, to.id, cmp.Or(r.Name, w.Name), caller.Username)
		if err != nil {
			return err
		}
		return handOver(ctx, tx, caller, w, to, HandOver{To: to.id, Name: name, Message: r.Message, by: r.By})
	})
}

// WithdrawHandOver removes the requested hand-over of a workspace of any user, also one that the
// owner has declined. CodeNotFound.
func (db *DB) WithdrawHandOver(ctx context.Context, caller workspace.Caller, id workspace.ID) (AnyWorkspace, error) {
	if err := db.administers(ctx, caller); err != nil {
		return AnyWorkspace{}, err
	}
	err := db.tx(ctx, "withdraw a requested hand-over", func(tx pgx.Tx) error {
		w, _, err := lockWorkspace(ctx, tx, workspace.System, id)
		if err != nil {
			return err
		}
		owner, err := administered(ctx, tx, caller, w)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `DELETE FROM hand_over_requests WHERE workspace_id = $1 AND user_id = $2`, id, w.OwnerID)
		if err == nil && tag.RowsAffected() == 0 {
			err = notFound("request for a hand-over")
		}
		if err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditHandOverWithdraw, string(id), map[string]any{"name": w.Name, "owner": owner})
	})
	if err != nil {
		return AnyWorkspace{}, err
	}
	return db.anyWorkspace(ctx, id)
}

// readAsked adds the requested hand-overs to the workspaces.
func readAsked(ctx context.Context, in querier, list []AnyWorkspace) error {
	if len(list) == 0 {
		return nil
	}
	at, ids := make(map[workspace.ID]int, len(list)), make([]workspace.ID, len(list))
	for i, w := range list {
		at[w.ID], ids[i] = i, w.ID
	}
	rows, err := in.Query(ctx, `
		SELECT r.workspace_id, u.username, r.name, r.by_username, r.message, r.requested_at, r.declined_at
		FROM hand_over_requests r JOIN users u ON u.id = r.to_user_id JOIN workspaces w ON w.id = r.workspace_id AND w.owner_user_id = r.user_id AND w.deleted_at IS NULL
		WHERE r.workspace_id = ANY ($1)`, ids)
	if err != nil {
		return err
	}
	var id workspace.ID
	var r HandOverRequest
	_, err = pgx.ForEachRow(rows, []any{&id, &r.To, &r.Name, &r.By, &r.Message, &r.RequestedAt, &r.DeclinedAt}, func() error {
		found := r
		list[at[id]].Asked = &found
		return nil
	})
	return err
}
