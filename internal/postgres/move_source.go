package postgres

import (
	"context"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// The methods of this file serve `codehub import` in the installation that workspaces leave.
// Each one checks that the caller is an administrator with an API token and that moves are
// allowed (AllowMoves).

// Actions of moves in the audit log of the source.
const (
	AuditMovesAllow = "moves.allow"
	AuditMoveRead   = "workspace.move_read"  // its settings, with the values of its variables
	AuditMoveFetch  = "workspace.move_fetch" // its archive
	AuditUserRead   = "user.move_read"       // the user's identities
)

// AllowMoves allows administrators to move workspaces away for a time from now on, and
// returns until when; 0 ends that. It is called on the server's machine only: the right
// to administer users does not include reading their homes.
func (db *DB) AllowMoves(ctx context.Context, d time.Duration) (until *time.Time, err error) {
	if _, err := db.Installation(ctx); err != nil { // makes the row
		return nil, err
	}
	err = db.tx(ctx, "allow moves", func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `
			UPDATE installation SET moves_until = CASE WHEN $1 > 0 THEN clock_timestamp() + make_interval(secs => $1) END
			RETURNING moves_until`, d.Seconds()).Scan(&until)
		if err != nil {
			return err
		}
		return audit(ctx, tx, workspace.System, AuditMovesAllow, "", map[string]any{"until": until})
	})
	return until, err
}

// MoveSource is an installation as the source of moves.
type MoveSource = api.MoveSource

// MoveSource returns this installation. Only administrators may call it, also while moves
// are not allowed.
func (db *DB) MoveSource(ctx context.Context, caller workspace.Caller) (s MoveSource, err error) {
	if err := db.administers(ctx, caller); err != nil {
		return s, err
	}
	if s.Installation, err = db.Installation(ctx); err != nil {
		return s, err
	}
	err = db.pool.QueryRow(ctx, `SELECT max(moves_until) FILTER (WHERE moves_until > clock_timestamp()) FROM installation`).Scan(&s.OpenUntil)
	return s, failed("read whether moves are allowed", err)
}

// mover returns CodeForbidden unless the caller may move workspaces away now.
func (db *DB) mover(ctx context.Context, caller workspace.Caller) error {
	return failed("check whether a move is allowed", checkMover(ctx, db.pool, caller))
}

// checkMover is mover in a transaction. A check before the transaction alone would let an
// administrator through who was demoted, or after moves were ended, while the transaction
// waited for the workspace.
func checkMover(ctx context.Context, in rowQuerier, caller workspace.Caller) error {
	if !workspace.ValidID(caller.UserID) {
		return notAdmin()
	}
	var admin, open, hold bool
	err := in.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM users WHERE id = $1 AND admin AND active),
			EXISTS (SELECT FROM installation WHERE moves_until > clock_timestamp()),
			EXISTS (SELECT FROM gc_state WHERE hold IS NOT NULL)`, caller.UserID).Scan(&admin, &open, &hold)
	switch {
	case err != nil:
		return err
	case !admin:
		return notAdmin()
	case caller.Token == "":
		// A browser sends its cookie with the requests of any page.
		return workspace.Errorf(workspace.CodeForbidden, "This endpoint needs an API token.")
	case !open:
		return workspace.Errorf(workspace.CodeForbidden, "Moves are not allowed on this server now. Run codehub allow-moves on its machine.")
	case hold:
		// A restored database has old archives as the current ones, and a deletion that it
		// records now would count as the owner's.
		return workspace.Errorf(workspace.CodeForbidden, "This server is on hold. Run codehub reconcile-restore first.")
	}
	return nil
}

// rowQuerier is the database or a transaction.
type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// WorkspacesToMove lists the workspaces of all users that are not deleted, newest first,
// and returns the cursor of the next page, "" at the end.
func (db *DB) WorkspacesToMove(ctx context.Context, caller workspace.Caller, page Page) (list []workspace.Workspace, next string, err error) {
	if err := db.mover(ctx, caller); err != nil {
		return nil, "", err
	}
	return db.ListWorkspaces(ctx, workspace.System, Filter{Limit: page.Limit, Cursor: page.Cursor})
}

// WorkspaceToMove reads one workspace. CodeNotFound if it is deleted.
func (db *DB) WorkspaceToMove(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	if err := db.mover(ctx, caller); err != nil {
		return workspace.Workspace{}, err
	}
	w, err := db.Workspace(ctx, workspace.System, id)
	if err == nil {
		err = lifecycle.Present(w)
	}
	return w, err
}

// UserToMove lists the identities of a user, and records that. CodeNotFound.
func (db *DB) UserToMove(ctx context.Context, caller workspace.Caller, id string) (list []Identity, err error) {
	if err := db.mover(ctx, caller); err != nil {
		return nil, err
	}
	if !workspace.ValidID(id) {
		return nil, notFound("user")
	}
	err = db.tx(ctx, "read a user to move", func(tx pgx.Tx) error {
		if err := checkMover(ctx, tx, caller); err != nil {
			return err
		}
		var name string
		err := tx.QueryRow(ctx, `SELECT username FROM users WHERE id = $1 AND removed_at IS NULL`, id).Scan(&name)
		if missing(err) {
			return notFound("user")
		}
		if err != nil {
			return err
		}
		if list, err = identitiesOf(ctx, tx, id); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditUserRead, id, map[string]any{"username": name, "identities": len(list)})
	})
	return list, err
}

// ArchiveToMove is lifecycle.ArchiveToMove, after a running operation.
func (db *DB) ArchiveToMove(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	return db.applyMove(ctx, caller, id, "archive a workspace to move it", lifecycle.ArchiveToMove)
}

// applyMove applies an intent for a mover to any workspace. The audit log has the caller and
// that it was for a move.
func (db *DB) applyMove(ctx context.Context, caller workspace.Caller, id workspace.ID, verb string, f func(workspace.Workspace, time.Time) (lifecycle.Intent, error)) (workspace.Workspace, error) {
	if err := db.mover(ctx, caller); err != nil {
		return workspace.Workspace{}, err
	}
	w, _, err := db.applyFor(ctx, workspace.System, caller, id, verb, needsNoSlot, func(ctx context.Context, tx pgx.Tx, w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		if err := checkMover(ctx, tx, caller); err != nil {
			return lifecycle.Intent{}, err
		}
		out, err := f(w, now)
		if err == nil && out.Audit.Action != "" {
			out.Audit.Details = maps.Clone(out.Audit.Details)
			if out.Audit.Details == nil {
				out.Audit.Details = map[string]any{}
			}
			out.Audit.Details["move"] = true
		}
		return out, err
	})
	return w, err
}

// ReadToMove reads a movable workspace with the values of its environment variables, and
// records that. CodeOperationInProgress if it is not movable now.
func (db *DB) ReadToMove(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	return db.recordedMove(ctx, caller, id, nil, AuditMoveRead)
}

// FetchToMove is ReadToMove for reading the archive of this version of a workspace.
func (db *DB) FetchToMove(ctx context.Context, caller workspace.Caller, id workspace.ID, version string) (workspace.Workspace, error) {
	return db.recordedMove(ctx, caller, id, &version, AuditMoveFetch)
}

// recordedMove reads a workspace in the transaction of the audit entry: what was not
// recorded is not read.
func (db *DB) recordedMove(ctx context.Context, caller workspace.Caller, id workspace.ID, version *string, action string) (w workspace.Workspace, err error) {
	if err := db.mover(ctx, caller); err != nil {
		return w, err
	}
	err = db.tx(ctx, "read a workspace to move it", func(tx pgx.Tx) error {
		if w, _, err = lockWorkspace(ctx, tx, workspace.System, id); err != nil {
			return err
		}
		if err := checkMover(ctx, tx, caller); err != nil {
			return err
		}
		if err := movableAt(w, version); err != nil {
			return err
		}
		return audit(ctx, tx, caller, action, string(id), map[string]any{"name": w.Name, "archive_key": w.ArchiveKey})
	})
	return w, err
}

// DeleteMoved deletes a workspace that has been moved, as its owner would.
// CodeOperationInProgress, and it stays, unless it is still the version that was moved.
func (db *DB) DeleteMoved(ctx context.Context, caller workspace.Caller, id workspace.ID, version string) (workspace.Workspace, error) {
	return db.applyMove(ctx, caller, id, "delete a moved workspace", func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		if err := movableAt(w, &version); err != nil {
			return lifecycle.Intent{}, err
		}
		return lifecycle.Delete(w, now, false)
	})
}

// movableAt returns an error unless a workspace is movable, and has this version unless
// that is nil.
func movableAt(w workspace.Workspace, version *string) error {
	if err := lifecycle.Present(w); err != nil {
		return err
	}
	if !lifecycle.Movable(w) {
		return workspace.Errorf(workspace.CodeOperationInProgress, "The workspace is not archived, or it is about to be restored.")
	}
	if version != nil && *version != lifecycle.MoveVersion(w) {
		return workspace.Errorf(workspace.CodeOperationInProgress, "The workspace has changed since it was read.")
	}
	return nil
}
