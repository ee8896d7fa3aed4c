package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// limitsKey is the advisory lock of the running limits.
const limitsKey int64 = 0x636f646568756202

// lockLimits makes this the only transaction that may start a workspace, until it ends. It must
// come before any row lock.
func lockLimits(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, limitsKey)
	return err
}

// checkLimits returns CodeLimitExceeded or CodeQuotaExceeded unless the owner may have and run one
// more workspace, id. The transaction holds the limits' lock.
func (db *DB) checkLimits(ctx context.Context, tx pgx.Tx, owner string, id workspace.ID) error {
	if err := db.checkBytes(ctx, tx, owner); err != nil {
		return err
	}
	return db.checkRunning(ctx, tx, owner, id)
}

// checkStart returns what to save of an intent that needs a slot: CodeQuotaExceeded of
// lifecycle.CheckOwned, or CodeLimitExceeded of checkRunning. The transaction holds the limits'
// lock.
func (db *DB) checkStart(ctx context.Context, tx pgx.Tx, w workspace.Workspace, out lifecycle.Intent, now time.Time) (lifecycle.Intent, error) {
	owned, err := db.ownedSpace(ctx, tx, w.OwnerID)
	if err != nil {
		return out, err
	}
	if out, err = lifecycle.CheckOwned(w, out, owned, now); err != nil {
		return out, err
	}
	return out, db.checkRunning(ctx, tx, w.OwnerID, w.ID)
}

// orQueued returns an intent with its start queued if the running limits refuse it.
func (db *DB) orQueued(ctx context.Context, tx pgx.Tx, w workspace.Workspace, out lifecycle.Intent, now time.Time) (lifecycle.Intent, error) {
	if !out.NeedsSlot {
		return out, nil
	}
	checked, err := db.checkStart(ctx, tx, w, out, now)
	if workspace.CodeOf(err) == workspace.CodeLimitExceeded {
		return lifecycle.AwaitSlot(w, checked), nil
	}
	return checked, err
}

// checkRunning returns CodeLimitExceeded unless the owner may run one more workspace, not
// counting id. The column holds_slot marks the workspaces that count. The transaction holds the
// limits' lock.
func (db *DB) checkRunning(ctx context.Context, tx pgx.Tx, owner string, id workspace.ID) error {
	var perUser, ofUser, all int
	// Without a limit nothing is counted: each start waits for this statement.
	err := tx.QueryRow(ctx, `
		SELECT per_user,
			CASE WHEN per_user > 0 THEN (SELECT count(*) FROM workspaces WHERE holds_slot AND owner_user_id = $1 AND id IS DISTINCT FROM $2) ELSE 0 END,
			CASE WHEN $4 > 0 THEN (SELECT count(*) FROM workspaces WHERE holds_slot AND id IS DISTINCT FROM $2) ELSE 0 END
		FROM COALESCE((SELECT max_running FROM user_limits WHERE user_id = $1), $3) per_user`,
		owner, nullable(id), db.limits.PerUser, db.limits.Global).Scan(&perUser, &ofUser, &all)
	if err != nil {
		return err
	}
	if perUser > 0 && ofUser >= perUser {
		running, err := runningOf(ctx, tx, owner, id)
		if err != nil {
			return err
		}
		return limitExceeded("per_user", ofUser, perUser, running)
	}
	if db.limits.Global > 0 && all >= db.limits.Global {
		return limitExceeded("global", all, db.limits.Global, nil)
	}
	return nil
}

func limitExceeded(kind string, current, limit int, running []workspace.Workspace) error {
	details := map[string]any{"limit_type": kind, "current": current, "max": limit}
	message := "The server has reached its running limit. Try again later."
	if kind == "per_user" {
		message = "You have reached your running limit. Stop a workspace first."
		list := make([]map[string]any, len(running))
		for i, w := range running {
			list[i] = map[string]any{"id": string(w.ID), "name": w.Name}
		}
		details["running_workspaces"] = list
	}
	return &workspace.Error{Code: workspace.CodeLimitExceeded, Message: message, Details: details}
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func runningOf(ctx context.Context, in querier, owner string, except workspace.ID) ([]workspace.Workspace, error) {
	rows, err := in.Query(ctx, `
		SELECT `+workspaceColumns+` FROM workspaces
		WHERE holds_slot AND owner_user_id = $1 AND id IS DISTINCT FROM $2
		ORDER BY created_at DESC, id DESC`, owner, nullable(except))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, toWorkspace)
}

// forCaller removes from a refusal of checkLimits the workspaces that the caller's token is not
// for.
func forCaller(caller workspace.Caller, err error) error {
	var e *workspace.Error
	if caller.Only != "" && errors.As(err, &e) {
		delete(e.Details, "running_workspaces")
	}
	return err
}

// MayRun returns the CodeLimitExceeded or CodeQuotaExceeded with which a start of the caller's
// workspace would be refused now; an empty id is a workspace that does not exist yet. It reserves
// nothing.
func (db *DB) MayRun(ctx context.Context, caller workspace.Caller, id workspace.ID) error {
	return db.tx(ctx, "look at the limits", func(tx pgx.Tx) error {
		if id == "" {
			return forCaller(caller, db.checkLimits(ctx, tx, caller.UserID, id))
		}
		var now time.Time
		var w workspace.Workspace
		err := tx.QueryRow(ctx, `SELECT clock_timestamp(), `+workspaceColumns+` FROM workspaces WHERE id = $1`, id).
			Scan(append([]any{&now}, workspaceTargets(&w)...)...)
		if missing(err) {
			return notFound("workspace")
		}
		if err != nil {
			return err
		}
		w.OwnerID = caller.UserID // whose limits count
		_, err = db.checkStart(ctx, tx, w, lifecycle.Intent{Workspace: w, NeedsSlot: true}, now)
		return forCaller(caller, err)
	})
}

// RunningOf lists the user's workspaces that count against the limits, newest first.
func (db *DB) RunningOf(ctx context.Context, userID string) ([]workspace.Workspace, error) {
	if !workspace.ValidID(userID) {
		return nil, notFound("user")
	}
	list, err := runningOf(ctx, db.pool, userID, "")
	return list, failed("list running workspaces", err)
}
