package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/workspace"
)

// Actions on Git identities in the audit log. Their target is the user.
const (
	AuditGitIdentity = "git.identity"
	AuditGitKey      = "git.key"
)

// GitKey is the SSH key of a user. Sealed is the seed of the private key, sealed for GitKeyOwner.
type GitKey struct {
	PublicKey string // as in authorized_keys, without a comment
	Sealed    []byte
}

// GitKeyOwner is what the private key of a user is sealed for; gitKeyOwner is the same in SQL.
func GitKeyOwner(userID, publicKey string) string { return "git key " + userID + " " + publicKey }

const gitKeyOwner = `'git key ' || i.user_id || ' ' || i.public_key`

// gitIdentityColumns are those of an api.GitIdentity, and gitIdentityOf joins what they need to the user u.
const gitIdentityOf = `LEFT JOIN git_identities i ON i.user_id = u.id
	LEFT JOIN LATERAL (
		SELECT full_name, email FROM user_identities WHERE user_id = u.id AND active ORDER BY email = '', full_name = '', created_at LIMIT 1
	) p ON true`

const gitIdentityColumns = `coalesce(nullif(i.name, ''), nullif(p.full_name, ''), u.username), coalesce(nullif(i.email, ''), p.email, ''), coalesce(i.sign, false), coalesce(i.public_key, ''), i.key_made_at`

func gitIdentityTargets(g *api.GitIdentity) []any {
	return []any{&g.Name, &g.Email, &g.SignCommits, &g.PublicKey, &g.KeyMadeAt}
}

// GitIdentity reads the caller's identity. CodeForbidden.
func (db *DB) GitIdentity(ctx context.Context, caller workspace.Caller) (api.GitIdentity, error) {
	g, err := gitIdentity(ctx, db.pool, caller)
	return g, failed("read a git identity", err)
}

func gitIdentity(ctx context.Context, in querier, caller workspace.Caller) (g api.GitIdentity, err error) {
	if !workspace.ValidID(caller.UserID) {
		return g, forbidden()
	}
	err = in.QueryRow(ctx, `SELECT `+gitIdentityColumns+` FROM users u `+gitIdentityOf+` WHERE u.id = $1 AND u.active`, caller.UserID).
		Scan(gitIdentityTargets(&g)...)
	if missing(err) {
		err = forbidden()
	}
	return g, err
}

// SetGitIdentity replaces the name, the e-mail address and the choice to sign of the caller. What
// the caller has already stays the provider's if it is. The key is stored if the caller has none and
// signs.
func (db *DB) SetGitIdentity(ctx context.Context, caller workspace.Caller, in api.SetGitIdentity, key GitKey) (g api.GitIdentity, err error) {
	err = db.changeGitIdentity(ctx, "change a git identity", caller, func(tx pgx.Tx, now api.GitIdentity) error {
		if in.SignCommits && now.PublicKey == "" {
			if err := setGitKey(ctx, tx, caller, key); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, `
			UPDATE git_identities SET name = CASE WHEN $2 = $5 THEN name ELSE $2 END, email = CASE WHEN $3 = $6 THEN email ELSE $3 END, sign = $4,
				changed_at = clock_timestamp() WHERE user_id = $1`, caller.UserID, in.Name, in.Email, in.SignCommits, now.Name, now.Email); err != nil {
			return err
		}
		if g, err = gitIdentity(ctx, tx, caller); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditGitIdentity, caller.UserID, map[string]any{"name": g.Name, "email": g.Email, "sign_commits": g.SignCommits})
	})
	return g, err
}

// ReplaceGitKey stores a key of the caller in place of the former one.
func (db *DB) ReplaceGitKey(ctx context.Context, caller workspace.Caller, key GitKey) (g api.GitIdentity, err error) {
	err = db.changeGitIdentity(ctx, "replace an SSH key for git", caller, func(tx pgx.Tx, _ api.GitIdentity) error {
		if err := setGitKey(ctx, tx, caller, key); err != nil {
			return err
		}
		g, err = gitIdentity(ctx, tx, caller)
		return err
	})
	return g, err
}

// changeGitIdentity is the only transaction that changes the identity of its caller, whose row
// exists in it.
func (db *DB) changeGitIdentity(ctx context.Context, verb string, caller workspace.Caller, change func(tx pgx.Tx, now api.GitIdentity) error) error {
	if !workspace.ValidID(caller.UserID) {
		return forbidden()
	}
	return db.tx(ctx, verb, func(tx pgx.Tx) error {
		if err := lockUser(ctx, tx, caller.UserID); err != nil {
			return err
		}
		now, err := gitIdentity(ctx, tx, caller)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO git_identities (user_id) VALUES ($1) ON CONFLICT DO NOTHING`, caller.UserID); err != nil {
			return err
		}
		return change(tx, now)
	})
}

func setGitKey(ctx context.Context, tx pgx.Tx, caller workspace.Caller, key GitKey) error {
	if _, err := tx.Exec(ctx, `
		UPDATE git_identities SET public_key = $2, private_key = $3, key_made_at = clock_timestamp(), changed_at = clock_timestamp() WHERE user_id = $1`,
		caller.UserID, key.PublicKey, key.Sealed); err != nil {
		return err
	}
	return audit(ctx, tx, caller, AuditGitKey, caller.UserID, map[string]any{"public_key": key.PublicKey})
}

// GitIdentityOf reads the identity of the active owner of a workspace. CodeNotFound.
func (db *DB) GitIdentityOf(ctx context.Context, id workspace.ID) (g api.GitIdentity, err error) {
	err = db.pool.QueryRow(ctx, `
		SELECT `+gitIdentityColumns+` FROM workspaces w JOIN users u ON u.id = w.owner_user_id AND u.active `+gitIdentityOf+`
		WHERE w.id = $1 AND w.deleted_at IS NULL`, idOrNull(string(id))).Scan(gitIdentityTargets(&g)...)
	if missing(err) {
		return g, notFound("workspace")
	}
	return g, failed("read the git identity of a workspace's owner", err)
}

// GitKeyOf reads the key of an active user. CodeNotFound if the user has none.
func (db *DB) GitKeyOf(ctx context.Context, userID string) (k GitKey, err error) {
	err = db.pool.QueryRow(ctx, `
		SELECT i.public_key, i.private_key FROM git_identities i JOIN users u ON u.id = i.user_id AND u.active
		WHERE i.user_id = $1 AND i.private_key IS NOT NULL`, idOrNull(userID)).Scan(&k.PublicKey, &k.Sealed)
	if missing(err) {
		return k, notFound("SSH key")
	}
	return k, failed("read an SSH key for git", err)
}
