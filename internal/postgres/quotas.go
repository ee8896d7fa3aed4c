package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Quotas are how many workspaces, API tokens and SSH keys a user has, and may have; a
// maximum of 0 means no limit.
type Quotas struct {
	MaxRunning                int
	Workspaces, MaxWorkspaces int
	Bytes, MaxBytes           int64 // see lifecycle.OwnedSpace
	Tokens, MaxTokens         int
	SSHKeys, MaxSSHKeys       int
}

// Quotas returns the caller's quotas.
func (db *DB) Quotas(ctx context.Context, caller workspace.Caller) (Quotas, error) {
	q := Quotas{MaxTokens: db.limits.Tokens, MaxSSHKeys: db.limits.SSHKeys}
	if !workspace.ValidID(caller.UserID) {
		return q, forbidden()
	}
	err := db.pool.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM workspaces WHERE owner_user_id = $1 AND deleted_at IS NULL),
			(SELECT `+ownedBytes+` FROM workspaces w WHERE owner_user_id = $1 AND deleted_at IS NULL),
			COALESCE((SELECT max_workspaces FROM user_limits WHERE user_id = $1), $2), COALESCE((SELECT max_bytes FROM user_limits WHERE user_id = $1), $3),
			COALESCE((SELECT max_running FROM user_limits WHERE user_id = $1), $4),
			(SELECT count(*) FROM api_tokens WHERE user_id = $1),
			(SELECT count(*) FROM ssh_keys WHERE user_id = $1)`, caller.UserID, db.limits.Workspaces, db.limits.Bytes, db.limits.PerUser).
		Scan(&q.Workspaces, &q.Bytes, &q.MaxWorkspaces, &q.MaxBytes, &q.MaxRunning, &q.Tokens, &q.SSHKeys)
	return q, failed("count what a user has", err)
}

// lockUser reads a user who is not disabled, and makes this the only transaction that
// adds workspaces, tokens or SSH keys of the user, until it ends.
func lockUser(ctx context.Context, tx pgx.Tx, id string) error {
	var enabled bool
	err := tx.QueryRow(ctx, `SELECT active FROM users WHERE id = $1 FOR NO KEY UPDATE`, id).Scan(&enabled)
	if missing(err) || err == nil && !enabled {
		return forbidden()
	}
	return err
}

// checkWorkspaces returns CodeQuotaExceeded if the user may not have one more workspace.
// Deleted workspaces that still exist have a limit of their own, of twice as many in
// all, so that deleting makes room and a loop does not. The transaction holds the lock
// of lockUser.
func (db *DB) checkWorkspaces(ctx context.Context, tx pgx.Tx, owner string) error {
	if err := db.checkBytes(ctx, tx, owner); err != nil {
		return err
	}
	present, all, most, err := db.countWorkspaces(ctx, tx, owner)
	switch {
	case err != nil || most == 0:
		return err
	case present >= most:
		return tooManyWorkspaces(present, most)
	case all >= 2*most:
		return quotaExceeded("deleted_workspaces", all-present, 2*most-present, "%d of your deleted workspaces can still be undeleted, and at most %d are allowed. Try again later.")
	}
	return nil
}

// checkPresent is checkWorkspaces for an undeletion: the workspace is counted among the deleted
// ones already. It may exceed the limit of bytes, which then prevents its start. The transaction
// holds the lock of lockUser.
func (db *DB) checkPresent(ctx context.Context, tx pgx.Tx, owner string) error {
	present, _, most, err := db.countWorkspaces(ctx, tx, owner)
	if err == nil && most > 0 && present >= most {
		err = tooManyWorkspaces(present, most)
	}
	return err
}

// countWorkspaces counts the workspaces of the user that are not deleted, and with those that
// can be restored; most is how many the user may have.
func (db *DB) countWorkspaces(ctx context.Context, tx pgx.Tx, owner string) (present, all, most int, err error) {
	err = tx.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE deleted_at IS NULL), count(*), COALESCE((SELECT max_workspaces FROM user_limits WHERE user_id = $1), $2) FROM workspaces
		WHERE owner_user_id = $1 AND (deleted_at IS NULL OR phase <> 'DELETED')`, owner, db.limits.Workspaces).Scan(&present, &all, &most)
	return present, all, most, err
}

func tooManyWorkspaces(present, most int) error {
	return quotaExceeded("workspaces", present, most, "You have %d workspaces, and at most %d are allowed. Delete one first.")
}

// ownedBytes sums what workspaces w count for the limit of their owner; see lifecycle.OwnedSpace.
// A home of 0 bytes was last measured while there was none.
const ownedBytes = `COALESCE(sum(CASE WHEN w.phase <> 'ARCHIVED' AND w.home_bytes > 0 THEN w.home_bytes ELSE w.archive_size END), 0)::bigint`

// ownedSpace returns how much space the workspaces of a user use and may use. Deleted workspaces
// do not count. Without a limit, or if homes are not measured, it is the zero value, and nothing is
// summed: each start waits for this statement.
func (db *DB) ownedSpace(ctx context.Context, in querier, owner string) (s lifecycle.OwnedSpace, err error) {
	if db.sizes.Unmeasured {
		return s, nil
	}
	err = in.QueryRow(ctx, `
		SELECT most, CASE WHEN most > 0 THEN (SELECT `+ownedBytes+` FROM workspaces w WHERE owner_user_id = $1 AND deleted_at IS NULL) ELSE 0 END
		FROM COALESCE((SELECT max_bytes FROM user_limits WHERE user_id = $1), $2) most`, owner, db.limits.Bytes).Scan(&s.Limit, &s.Used)
	return s, err
}

// checkBytes returns CodeQuotaExceeded if the workspaces of the user use as much space as allowed,
// so that none is added.
func (db *DB) checkBytes(ctx context.Context, tx pgx.Tx, owner string) error {
	owned, err := db.ownedSpace(ctx, tx, owner)
	if err != nil {
		return err
	}
	return owned.Check()
}

// checkTokens returns CodeQuotaExceeded if the user may not have one more API token. It
// removes expired tokens when there would be no room otherwise. The transaction holds
// the lock of lockUser.
func (db *DB) checkTokens(ctx context.Context, tx pgx.Tx, userID string) error {
	most := db.limits.Tokens
	if most == 0 {
		return nil
	}
	count := func() (n int, err error) {
		err = tx.QueryRow(ctx, `SELECT count(*) FROM api_tokens WHERE user_id = $1`, userID).Scan(&n)
		return n, err
	}
	n, err := count()
	if err != nil || n < most {
		return err
	}
	if _, err := tx.Exec(ctx, `DELETE FROM api_tokens WHERE user_id = $1 AND expires_at <= now()`, userID); err != nil {
		return err
	}
	if n, err = count(); err != nil || n < most {
		return err
	}
	return quotaExceeded("tokens", n, most, "You have %d API tokens, and at most %d are allowed. Delete one first.")
}

// checkSSHKeys returns CodeQuotaExceeded if the user may not have one more SSH key. The
// transaction holds the lock of lockUser.
func (db *DB) checkSSHKeys(ctx context.Context, tx pgx.Tx, userID string) error {
	most := db.limits.SSHKeys
	if most == 0 {
		return nil
	}
	var n int
	if err := tx.QueryRow(ctx, `SELECT count(*) FROM ssh_keys WHERE user_id = $1`, userID).Scan(&n); err != nil || n < most {
		return err
	}
	return quotaExceeded("ssh_keys", n, most, "You have %d SSH keys, and at most %d are allowed. Remove one first.")
}

func quotaExceeded(kind string, current, most int, message string) error {
	e := workspace.Errorf(workspace.CodeQuotaExceeded, message, current, most)
	e.Details = map[string]any{"limit_type": kind, "current": current, "max": most}
	return e
}
