package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Actions on shared ports in the audit log.
const (
	AuditPortShare   = "port.share"
	AuditPortUnshare = "port.unshare"
)

// maxPortShares bounds the shares of a workspace.
const maxPortShares = 100

// PortShares lists the shares of the caller's workspace that have not ended, by port.
func (db *DB) PortShares(ctx context.Context, caller workspace.Caller, id workspace.ID) ([]workspace.PortShare, error) {
	if _, err := db.Workspace(ctx, caller, id); err != nil {
		return nil, err
	}
	rows, err := db.pool.Query(ctx, `
		SELECT port, visible_to, created_at, expires_at FROM port_shares
		WHERE workspace_id = $1 AND (expires_at IS NULL OR expires_at > now()) ORDER BY port`, id)
	if err != nil {
		return nil, failed("list shared ports", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s workspace.PortShare, err error) {
		return s, row.Scan(&s.Port, &s.With, &s.CreatedAt, &s.ExpiresAt)
	})
	return list, failed("list shared ports", err)
}

// OpenPorts lists the shares of a workspace that are in effect, for the proxy: they have not
// ended, and the owner is neither disabled nor suspended. Their ends
// are by the clock of this process, whose time may differ from the database's.
func (db *DB) OpenPorts(ctx context.Context, id workspace.ID) ([]workspace.PortShare, error) {
	asked := time.Now()
	rows, err := db.pool.Query(ctx, `
		SELECT p.port, p.visible_to, p.created_at, p.expires_at - now()
		FROM port_shares p JOIN workspaces w ON w.id = p.workspace_id JOIN users u ON u.id = w.owner_user_id
		WHERE p.workspace_id = $1 AND (p.expires_at IS NULL OR p.expires_at > now()) AND u.active`, id)
	if err != nil {
		return nil, failed("read shared ports", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s workspace.PortShare, err error) {
		var left *time.Duration
		if err := row.Scan(&s.Port, &s.With, &s.CreatedAt, &left); err != nil {
			return s, err
		}
		if left != nil {
			end := asked.Add(*left)
			s.ExpiresAt = &end
		}
		return s, nil
	})
	return list, failed("read shared ports", err)
}

// SharePort shares a port of the caller's workspace, for lasting, or without an end if
// that is 0. It replaces an earlier share of the port. A share by an API token with limits ends with
// the token. What may be shared is checked by package ports.
func (db *DB) SharePort(ctx context.Context, caller workspace.Caller, id workspace.ID, port int, with workspace.Visibility, lasting time.Duration) (workspace.PortShare, error) {
	var s workspace.PortShare
	err := db.tx(ctx, "share a port", func(tx pgx.Tx) error {
		w, _, err := lockWorkspace(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		if w.DeletedAt != nil {
			return workspace.Errorf(workspace.CodeGone, "The workspace is deleted.")
		}
		if _, err := tx.Exec(ctx, `DELETE FROM port_shares WHERE workspace_id = $1 AND expires_at <= now()`, id); err != nil {
			return err
		}
		var others int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM port_shares WHERE workspace_id = $1 AND port <> $2`, id, port).Scan(&others); err != nil {
			return err
		}
		if others >= maxPortShares {
			return workspace.Errorf(workspace.CodeQuotaExceeded, "A workspace can share at most %d ports.", maxPortShares)
		}
		var seconds *float64
		if lasting > 0 {
			of := lasting.Seconds()
			seconds = &of
		}
		var token *string
		var expires, until *time.Time // of the token, and of the share by one with limits
		if caller.Token != "" {
			err := tx.QueryRow(ctx, `SELECT expires_at FROM api_tokens WHERE id = $1 FOR KEY SHARE`, caller.Token).Scan(&expires)
			if missing(err) {
				return unauthenticated()
			}
			if err != nil {
				return err
			}
		}
		if caller.Limited() {
			token, until = &caller.Token, expires
		}
		err = tx.QueryRow(ctx, `
			INSERT INTO port_shares (workspace_id, port, visible_to, expires_at, token_id) VALUES ($1, $2, $3, LEAST(now() + make_interval(secs => $4), $5), $6)
			ON CONFLICT (workspace_id, port) DO UPDATE
				SET visible_to = EXCLUDED.visible_to, created_at = now(), expires_at = EXCLUDED.expires_at, token_id = EXCLUDED.token_id
			RETURNING port, visible_to, created_at, expires_at`, id, port, with, seconds, until, token).Scan(&s.Port, &s.With, &s.CreatedAt, &s.ExpiresAt)
		if err != nil {
			return err
		}
		details := map[string]any{"port": port, "visible_to": with}
		if s.ExpiresAt != nil {
			details["expires_at"] = s.ExpiresAt.UTC().Format(time.RFC3339)
		}
		return audit(ctx, tx, caller, AuditPortShare, string(id), details)
	})
	return s, err
}

// UnsharePort ends the share of a port. CodeNotFound if the port is not shared.
func (db *DB) UnsharePort(ctx context.Context, caller workspace.Caller, id workspace.ID, port int) error {
	return db.tx(ctx, "end the share of a port", func(tx pgx.Tx) error {
		if _, _, err := lockWorkspace(ctx, tx, caller, id); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `DELETE FROM port_shares WHERE workspace_id = $1 AND port = $2`, id, port)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return workspace.Errorf(workspace.CodeNotFound, "Port %d is not shared.", port)
		}
		return audit(ctx, tx, caller, AuditPortUnshare, string(id), map[string]any{"port": port})
	})
}
