package postgres

import (
	"bytes"
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// TicketLifetime is how long a ticket can be redeemed.
const TicketLifetime = time.Minute

const (
	// maxTickets and maxWorkspaceSessions bound what one session can leave in the
	// database by opening workspaces again and again; the newest are kept.
	maxTickets           = 32
	maxWorkspaceSessions = 16
)

// CreateTicket stores a ticket for a host, bound to a session and to the nonce of the
// browser that asked for it, all as SHA-256. CodeUnauthenticated if the session has
// ended.
func (db *DB) CreateTicket(ctx context.Context, ticket, session []byte, host workspace.Host, nonce []byte) error {
	return db.tx(ctx, "create a ticket", func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			DELETE FROM tickets WHERE session_hash = $1 AND (expires_at <= now() OR hash IN (
				SELECT hash FROM tickets WHERE session_hash = $1 ORDER BY created_at DESC OFFSET $2))`, session, maxTickets-1)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO tickets (hash, user_id, session_hash, workspace_id, port, nonce_hash, expires_at)
			SELECT $1, u.id, s.hash, $3, $4, $5, now() + $6 FROM sessions s JOIN users u ON u.id = s.user_id
			WHERE s.hash = $2 AND s.expires_at > now() AND u.active`,
			ticket, session, host.ID, host.Port, nonce, TicketLifetime)
		if err == nil && tag.RowsAffected() == 0 {
			return unauthenticated()
		}
		return err
	})
}

// RedeemTicket ends a ticket and creates the session of its host, which has this hash.
// It returns the time at which that session expires. Only the owner of the workspace
// and guests who may use it get one, and on the host of a shared port any user. A ticket that
// is unknown, expired, or of another host or nonce is CodeUnauthenticated, and is ended as well.
func (db *DB) RedeemTicket(ctx context.Context, ticket []byte, host workspace.Host, nonce, hash []byte) (time.Time, error) {
	var expires time.Time
	redeemed := false
	err := db.tx(ctx, "redeem a ticket", func(tx pgx.Tx) error {
		redeemed = false
		var session, bound []byte
		var of workspace.Host
		var valid bool
		err := tx.QueryRow(ctx, `
			DELETE FROM tickets WHERE hash = $1 RETURNING session_hash, workspace_id, port, nonce_hash, expires_at > now()`, ticket).
			Scan(&session, &of.ID, &of.Port, &bound, &valid)
		if missing(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if !valid || of != host || !bytes.Equal(bound, nonce) {
			return nil // the ticket's end is kept
		}
		var w workspace.Workspace
		var user string
		var shared bool
		err = tx.QueryRow(ctx, `
			SELECT u.id, w.id, w.owner_user_id, s.expires_at, EXISTS (
				SELECT FROM port_shares p JOIN users o ON o.id = w.owner_user_id
				WHERE p.workspace_id = w.id AND p.port = $3 AND (p.expires_at IS NULL OR p.expires_at > now()) AND o.active)
			FROM sessions s JOIN users u ON u.id = s.user_id JOIN workspaces w ON w.id = $2
			WHERE s.hash = $1 AND s.expires_at > now() AND u.active FOR KEY SHARE OF s, w`, session, host.ID, host.Port).
			Scan(&user, &w.ID, &w.OwnerID, &expires, &shared)
		if missing(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if !shared {
			err := db.enters(ctx, tx, workspace.Caller{UserID: user}, w)
			if workspace.CodeOf(err) == workspace.CodeForbidden {
				return nil
			}
			if err != nil {
				return err
			}
		}
		if _, err = tx.Exec(ctx, `INSERT INTO workspace_sessions (hash, session_hash, workspace_id, port) VALUES ($1, $2, $3, $4)`, hash, session, host.ID, host.Port); err != nil {
			return err
		}
		redeemed = true
		_, err = tx.Exec(ctx, `
			DELETE FROM workspace_sessions WHERE hash IN (
				SELECT hash FROM workspace_sessions WHERE session_hash = $1 AND workspace_id = $2 AND port = $3
				ORDER BY created_at DESC OFFSET $4)`, session, host.ID, host.Port, maxWorkspaceSessions)
		return err
	})
	if err == nil && !redeemed {
		err = unauthenticated()
	}
	return expires, err
}

// WorkspaceSession is a session on the host of a workspace.
type WorkspaceSession struct {
	User    User
	Session []byte // SHA-256 of the session that it ends with
	Host    workspace.Host
	Expires time.Time
}

// WorkspaceSession returns the session of a host; CodeUnauthenticated if it or the
// session that it was made from has ended, or its user is disabled.
func (db *DB) WorkspaceSession(ctx context.Context, hash []byte) (WorkspaceSession, error) {
	var s WorkspaceSession
	err := db.pool.QueryRow(ctx, `
		SELECT h.session_hash, h.workspace_id, h.port, s.expires_at, `+userColumns+`
		FROM workspace_sessions h JOIN sessions s ON s.hash = h.session_hash JOIN users u ON u.id = s.user_id
		WHERE h.hash = $1 AND s.expires_at > now() AND u.active`, hash).
		Scan(append([]any{&s.Session, &s.Host.ID, &s.Host.Port, &s.Expires}, s.User.targets()...)...)
	if missing(err) {
		return WorkspaceSession{}, unauthenticated()
	}
	return s, failed("read the session of a workspace", err)
}

// DeleteExpiredTickets removes the expired tickets and returns their number.
func (db *DB) DeleteExpiredTickets(ctx context.Context) (int64, error) {
	tag, err := db.pool.Exec(ctx, `
		DELETE FROM tickets WHERE hash IN (SELECT hash FROM tickets WHERE expires_at <= now() FOR UPDATE SKIP LOCKED)`)
	return tag.RowsAffected(), failed("remove expired tickets", err)
}
