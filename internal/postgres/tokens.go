package postgres

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Token is an API token.
type Token struct {
	ID         string
	UserID     string
	Name       string
	Hash       []byte // SHA-256
	CreatedAt  time.Time
	ExpiresAt  *time.Time // nil: never
	LastUsedAt *time.Time
	Scope      workspace.Scope // empty in CreateToken: ScopeAdmin
	Workspace  workspace.ID    // the only one that the token is for; empty: all of its user's
}

const tokenColumns = `t.id, t.user_id, t.name, t.hash, t.created_at, t.expires_at, t.last_used_at, t.scope, COALESCE(t.workspace_id::text, '')`

func (t *Token) targets() []any {
	return []any{&t.ID, &t.UserID, &t.Name, &t.Hash, &t.CreatedAt, &t.ExpiresAt, &t.LastUsedAt, &t.Scope, &t.Workspace}
}

// CreateToken adds a token of the caller and sets ID, UserID and CreatedAt. CodeUnauthenticated
// if the session or token that the caller came with has ended; CodeNotFound if the workspace
// that it is for is not the caller's; CodeQuotaExceeded.
func (db *DB) CreateToken(ctx context.Context, caller workspace.Caller, t Token) (Token, error) {
	if !workspace.ValidID(caller.UserID) {
		return Token{}, forbidden()
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Token{}, fmt.Errorf("make an id: %w", err)
	}
	var made Token
	err = db.tx(ctx, "create a token", func(tx pgx.Tx) error {
		err := lockUser(ctx, tx, caller.UserID)
		if err == nil {
			err = db.checkTokens(ctx, tx, caller.UserID)
		}
		if err != nil {
			return err
		}
		if t.Workspace != "" {
			var owned bool
			if workspace.ValidID(string(t.Workspace)) {
				err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workspaces WHERE id = $1 AND owner_user_id = $2 AND deleted_at IS NULL)`, t.Workspace, caller.UserID).Scan(&owned)
			}
			if err == nil && !owned {
				err = notFound("workspace")
			}
			if err != nil {
				return err
			}
		}
		// Check after taking the lock, so that an end of the session that held the lock is
		// seen.
		err = tx.QueryRow(ctx, `
			INSERT INTO api_tokens AS t (id, user_id, name, hash, expires_at, scope, workspace_id)
			SELECT $1, $2, $3, $4, $5, $7, $8
			WHERE $6 = '' OR EXISTS (SELECT FROM sessions WHERE hash = decode($6, 'hex'))
				OR EXISTS (SELECT FROM api_tokens WHERE hash = decode($6, 'hex'))
			RETURNING `+tokenColumns,
			id.String(), caller.UserID, t.Name, t.Hash, t.ExpiresAt, caller.Session,
			cmp.Or(t.Scope, workspace.ScopeAdmin), nullable(t.Workspace)).Scan(made.targets()...)
		if missing(err) {
			return unauthenticated()
		}
		if err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditTokenCreate, made.ID, map[string]any{"name": made.Name, "scope": string(made.Scope), "workspace": string(made.Workspace)})
	})
	return made, err
}

// Tokens lists the caller's tokens, newest first, and returns the cursor of the next
// page, "" at the end.
func (db *DB) Tokens(ctx context.Context, caller workspace.Caller, page Page) (list []Token, next string, err error) {
	return owned[Token]{
		verb: "list tokens", from: "api_tokens t", columns: tokenColumns, targets: (*Token).targets,
		at: func(t Token) place { return place{At: t.CreatedAt, ID: t.ID} },
	}.list(ctx, db, caller, page)
}

// Token reads one of the caller's tokens. CodeNotFound, also for a token of another user.
func (db *DB) Token(ctx context.Context, caller workspace.Caller, id string) (Token, error) {
	if !workspace.ValidID(id) || !workspace.ValidID(caller.UserID) {
		return Token{}, notFound("token")
	}
	var t Token
	err := db.pool.QueryRow(ctx, `SELECT `+tokenColumns+` FROM api_tokens t WHERE t.id = $1 AND t.user_id = $2`, id, caller.UserID).Scan(t.targets()...)
	if missing(err) {
		return Token{}, notFound("token")
	}
	return t, failed("read a token", err)
}

// DeleteToken deletes a token and ends the connections that were opened with it.
func (db *DB) DeleteToken(ctx context.Context, caller workspace.Caller, id string) error {
	if !workspace.ValidID(id) {
		return notFound("token")
	}
	return db.tx(ctx, "remove a token", func(tx pgx.Tx) error {
		var owner, name string
		err := tx.QueryRow(ctx, `SELECT user_id, name FROM api_tokens WHERE id = $1 FOR UPDATE`, id).Scan(&owner, &name)
		switch {
		case missing(err):
			return notFound("token")
		case err != nil:
			return err
		case !caller.Owns(owner):
			return forbidden()
		}
		if _, err := tx.Exec(ctx, `DELETE FROM api_tokens WHERE id = $1`, id); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditTokenDelete, id, map[string]any{"name": name})
	})
}

// TokenUser returns a token by its hash, and its user; CodeUnauthenticated if it was deleted or
// has expired, or its user is disabled.
func (db *DB) TokenUser(ctx context.Context, hash []byte) (User, Token, error) {
	var u User
	var t Token
	err := db.pool.QueryRow(ctx, `
		SELECT `+userColumns+`, `+tokenColumns+` FROM api_tokens t JOIN users u ON u.id = t.user_id
		WHERE t.hash = $1 AND (t.expires_at IS NULL OR t.expires_at > now()) AND u.active`, hash).
		Scan(append(u.targets(), t.targets()...)...)
	if missing(err) {
		return User{}, Token{}, unauthenticated()
	}
	return u, t, failed("read a token", err)
}

// TouchToken records when a token was last used, and never moves it back.
func (db *DB) TouchToken(ctx context.Context, id string, at time.Time) error {
	if !workspace.ValidID(id) {
		return notFound("token")
	}
	_, err := db.pool.Exec(ctx, `UPDATE api_tokens SET last_used_at = GREATEST(last_used_at, $2) WHERE id = $1`, id, at)
	return failed("note a token's use", err)
}

func forbidden() error {
	return workspace.Errorf(workspace.CodeForbidden, "You do not have access to this.")
}
