package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/workspace"
)

// AuditDotfiles is the action of a change of a user's dotfiles in the audit log.
const AuditDotfiles = "user.dotfiles"

// Dotfiles returns the caller's dotfiles; without a URL there are none.
func (db *DB) Dotfiles(ctx context.Context, caller workspace.Caller) (api.Dotfiles, error) {
	if !workspace.ValidID(caller.UserID) {
		return api.Dotfiles{}, forbidden()
	}
	return db.dotfiles(ctx, `SELECT url, branch FROM dotfiles WHERE user_id = $1`, caller.UserID)
}

// LaunchDotfiles returns the dotfiles of a workspace's owner, as Dotfiles does.
func (db *DB) LaunchDotfiles(ctx context.Context, id workspace.ID) (api.Dotfiles, error) {
	return db.dotfiles(ctx, `SELECT d.url, d.branch FROM dotfiles d JOIN workspaces w ON w.owner_user_id = d.user_id WHERE w.id = $1`, id)
}

func (db *DB) dotfiles(ctx context.Context, query string, id any) (api.Dotfiles, error) {
	const verb = "read the dotfiles"
	rows, err := db.pool.Query(ctx, query, id)
	if err != nil {
		return api.Dotfiles{}, failed(verb, err)
	}
	d, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[api.Dotfiles])
	if missing(err) {
		return d, nil
	}
	return d, failed(verb, err)
}

// SetDotfiles replaces the caller's dotfiles. CodeInvalid for a repository that cannot be cloned.
func (db *DB) SetDotfiles(ctx context.Context, caller workspace.Caller, in api.Dotfiles) (api.Dotfiles, error) {
	if !workspace.ValidID(caller.UserID) {
		return in, forbidden()
	}
	if err := (workspace.Repository{URL: in.URL, Branch: in.Branch}).Check(); err != nil {
		return in, err
	}
	return in, db.tx(ctx, "store the dotfiles", func(tx pgx.Tx) error {
		if err := lockUser(ctx, tx, caller.UserID); err != nil {
			return err
		}
		done, err := tx.Exec(ctx, `
			INSERT INTO dotfiles AS d (user_id, url, branch) VALUES ($1, $2, $3)
			ON CONFLICT (user_id) DO UPDATE SET url = $2, branch = $3, changed_at = clock_timestamp() WHERE d.url <> $2 OR d.branch <> $3`,
			caller.UserID, in.URL, in.Branch)
		if err != nil || done.RowsAffected() == 0 {
			return err
		}
		return audit(ctx, tx, caller, AuditDotfiles, caller.UserID, map[string]any{"repository": in.URL, "branch": in.Branch})
	})
}

// RemoveDotfiles removes the caller's dotfiles, if there are any. What workspaces have of them stays.
func (db *DB) RemoveDotfiles(ctx context.Context, caller workspace.Caller) error {
	if !workspace.ValidID(caller.UserID) {
		return forbidden()
	}
	return db.tx(ctx, "remove the dotfiles", func(tx pgx.Tx) error {
		done, err := tx.Exec(ctx, `DELETE FROM dotfiles WHERE user_id = $1`, caller.UserID)
		if err != nil || done.RowsAffected() == 0 {
			return err
		}
		return audit(ctx, tx, caller, AuditDotfiles, caller.UserID, map[string]any{"repository": ""})
	})
}
