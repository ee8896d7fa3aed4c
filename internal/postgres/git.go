package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/workspace"
)

// Actions on Git connections in the audit log. Their target is the user.
const (
	AuditGitConnect    = "git.connect"
	AuditGitDisconnect = "git.disconnect"
)

// MaxGitConnections bounds the connections of a user.
const MaxGitConnections = 50

type GitConnection = api.GitConnection

// GitTokens is a Git connection with its tokens, which are sealed for GitAccessOwner and
// GitRefreshOwner.
type GitTokens struct {
	GitConnection
	UserID          string
	Access, Refresh []byte // Refresh nil: none
}

// GitAccessOwner is what the access token of a connection is sealed for, and GitRefreshOwner the
// refresh token. With the host, a token that is moved to another row or host does not open.
func GitAccessOwner(id, userID, host string) string {
	return "git access " + id + " " + userID + " " + host
}

func GitRefreshOwner(id, userID, host string) string {
	return "git refresh " + id + " " + userID + " " + host
}

const (
	gitAccessOwner  = `'git access ' || c.id || ' ' || c.user_id || ' ' || c.host`
	gitRefreshOwner = `'git refresh ' || c.id || ' ' || c.user_id || ' ' || c.host`
)

const gitColumns = `c.id, c.host, c.kind, c.provider, c.login, c.error, c.created_at, c.changed_at, c.expires_at,
	CASE WHEN c.error <> '' THEN '` + api.GitFailed + `' WHEN c.expires_at IS NOT NULL AND c.refresh_token IS NULL THEN '` + api.GitExpires + `' ELSE '` + api.GitOK + `' END`

func gitTargets(c *GitConnection) []any {
	return []any{&c.ID, &c.Host, &c.Kind, &c.Provider, &c.Login, &c.Error, &c.CreatedAt, &c.ChangedAt, &c.ExpiresAt, &c.State}
}

func toGitConnection(row pgx.CollectableRow) (c GitConnection, err error) {
	return c, row.Scan(gitTargets(&c)...)
}

// GitConnections lists the caller's connections by host.
func (db *DB) GitConnections(ctx context.Context, caller workspace.Caller) ([]GitConnection, error) {
	const verb = "list the git connections"
	if !workspace.ValidID(caller.UserID) {
		return nil, forbidden()
	}
	rows, err := db.pool.Query(ctx, `SELECT `+gitColumns+` FROM git_connections c WHERE c.user_id = $1 ORDER BY c.host COLLATE "C"`, caller.UserID)
	if err != nil {
		return nil, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, toGitConnection)
	return list, failed(verb, err)
}

// ConnectGit stores a connection of the caller with the id of n, in place of that to the same host.
// CodeQuotaExceeded.
func (db *DB) ConnectGit(ctx context.Context, caller workspace.Caller, n GitTokens) (made GitConnection, err error) {
	if !workspace.ValidID(caller.UserID) {
		return made, forbidden()
	}
	err = db.tx(ctx, "store a git connection", func(tx pgx.Tx) error {
		if err := lockUser(ctx, tx, caller.UserID); err != nil {
			return err
		}
		var others int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM git_connections WHERE user_id = $1 AND host <> $2`, caller.UserID, n.Host).Scan(&others); err != nil {
			return err
		}
		if others >= MaxGitConnections {
			return quotaExceeded("git_connections", others, MaxGitConnections, "There are %d connections, and at most %d are allowed. Disconnect one first.")
		}
		if _, err := tx.Exec(ctx, `DELETE FROM git_connections WHERE user_id = $1 AND host = $2`, caller.UserID, n.Host); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `
			INSERT INTO git_connections AS c (id, user_id, host, kind, provider, login, access_token, refresh_token, expires_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING `+gitColumns,
			n.ID, caller.UserID, n.Host, n.Kind, n.Provider, n.Login, n.Access, n.Refresh, n.ExpiresAt).Scan(gitTargets(&made)...); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditGitConnect, caller.UserID, gitDetails(made))
	})
	return made, err
}

// gitDetails is what the audit log has of a connection.
func gitDetails(c GitConnection) map[string]any {
	d := map[string]any{"host": c.Host, "login": c.Login}
	if c.Provider != "" {
		d["provider"] = c.Provider
	}
	return d
}

// DisconnectGit removes a connection of the caller, which it returns. CodeNotFound.
func (db *DB) DisconnectGit(ctx context.Context, caller workspace.Caller, id string) (c GitConnection, err error) {
	if !workspace.ValidID(id) || !workspace.ValidID(caller.UserID) {
		return c, notFound("connection")
	}
	err = db.tx(ctx, "remove a git connection", func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `DELETE FROM git_connections c WHERE c.id = $1 AND c.user_id = $2 RETURNING `+gitColumns, id, caller.UserID).Scan(gitTargets(&c)...)
		if missing(err) {
			return notFound("connection")
		}
		if err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditGitDisconnect, caller.UserID, gitDetails(c))
	})
	return c, err
}

// GitTokensFor reads the connection of an active user to a host. CodeNotFound.
func (db *DB) GitTokensFor(ctx context.Context, userID, host string) (c GitTokens, err error) {
	if !workspace.ValidID(userID) {
		return c, notFound("connection")
	}
	err = db.pool.QueryRow(ctx, `
		SELECT c.user_id, c.access_token, c.refresh_token, `+gitColumns+`
		FROM git_connections c JOIN users u ON u.id = c.user_id AND u.active WHERE c.user_id = $1 AND c.host = $2`,
		userID, host).Scan(append([]any{&c.UserID, &c.Access, &c.Refresh}, gitTargets(&c.GitConnection)...)...)
	if missing(err) {
		return c, notFound("connection")
	}
	return c, failed("read a git connection", err)
}

// GitGuests reports whether a workspace is shared for use with someone who may not use its owner's
// Git connections. A program in the workspace can be of any of them.
func (db *DB) GitGuests(ctx context.Context, id workspace.ID) (refused bool, err error) {
	if !db.sharing {
		return false, nil
	}
	err = db.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workspace_shares WHERE workspace_id = $1 AND access = 'use' AND NOT git)`, id).Scan(&refused)
	return refused, failed("read the shares of a workspace", err)
}
