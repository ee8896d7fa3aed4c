package postgres

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// SSHKey is a public key with which its user logs in by SSH.
type SSHKey struct {
	ID         string
	UserID     string
	Name       string
	PublicKey  string // as in authorized_keys, without a comment
	Hash       []byte // SHA-256 of the key in SSH's own form: its fingerprint
	CreatedAt  time.Time
	ExpiresAt  *time.Time // nil: never
	LastUsedAt *time.Time
}

const sshKeyColumns = `k.id, k.user_id, k.name, k.public_key, k.hash, k.created_at, k.expires_at, k.last_used_at`

func (k *SSHKey) targets() []any {
	return []any{&k.ID, &k.UserID, &k.Name, &k.PublicKey, &k.Hash, &k.CreatedAt, &k.ExpiresAt, &k.LastUsedAt}
}

// AddSSHKey adds a key of the caller and sets ID, UserID and CreatedAt. A key has one
// user: CodeKeyTaken if it is registered and has not expired. CodeUnauthenticated if the session or token that
// the caller came with has ended; CodeQuotaExceeded.
func (db *DB) AddSSHKey(ctx context.Context, caller workspace.Caller, k SSHKey) (SSHKey, error) {
	if !workspace.ValidID(caller.UserID) {
		return SSHKey{}, forbidden()
	}
	id, err := uuid.NewV7()
	if err != nil {
		return SSHKey{}, fmt.Errorf("make an id: %w", err)
	}
	var made SSHKey
	err = db.tx(ctx, "add an SSH key", func(tx pgx.Tx) error {
		if err := lockUser(ctx, tx, caller.UserID); err != nil {
			return err
		}
		if err := deleteExpiredSSHKeys(ctx, tx, caller.UserID, k.Hash); err != nil {
			return err
		}
		if err := db.checkSSHKeys(ctx, tx, caller.UserID); err != nil {
			return err
		}
		// Check after taking the lock, so that an end of the session that held the lock is
		// seen.
		err := tx.QueryRow(ctx, `
			INSERT INTO ssh_keys AS k (id, user_id, name, public_key, hash, expires_at)
			SELECT $1, $2, $3, $4, $5, $6
			WHERE $7 = '' OR EXISTS (SELECT FROM sessions WHERE hash = decode($7, 'hex'))
				OR EXISTS (SELECT FROM api_tokens WHERE hash = decode($7, 'hex'))
			ON CONFLICT (hash) DO NOTHING
			RETURNING `+sshKeyColumns,
			id.String(), caller.UserID, k.Name, k.PublicKey, k.Hash, k.ExpiresAt, caller.Session).Scan(made.targets()...)
		if missing(err) {
			return notAdded(ctx, tx, caller, k.Hash)
		}
		if err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditSSHKeyAdd, made.ID, map[string]any{"name": made.Name, "public_key": made.PublicKey})
	})
	return made, err
}

// deleteExpiredSSHKeys removes the expired keys of a user, and an expired key with the hash
// of any user. The rows are locked in one order, so that two callers wait for each other.
func deleteExpiredSSHKeys(ctx context.Context, tx pgx.Tx, userID string, hash []byte) error {
	_, err := tx.Exec(ctx, `
		DELETE FROM ssh_keys WHERE id IN (
			SELECT id FROM ssh_keys WHERE (user_id = $1 OR hash = $2) AND expires_at <= now()
			ORDER BY id FOR UPDATE)`, userID, hash)
	return err
}

// notAdded returns why a key was not added.
func notAdded(ctx context.Context, tx pgx.Tx, caller workspace.Caller, hash []byte) error {
	var owner string
	err := tx.QueryRow(ctx, `SELECT user_id FROM ssh_keys WHERE hash = $1`, hash).Scan(&owner)
	switch {
	case missing(err):
		return unauthenticated()
	case err != nil:
		return err
	case owner == caller.UserID:
		return workspace.Errorf(workspace.CodeKeyTaken, "You have added this key already.")
	}
	return workspace.Errorf(workspace.CodeKeyTaken, "Another user has added this key.")
}

// SSHKeys lists the caller's keys, newest first, and returns the cursor of the next
// page, "" at the end.
func (db *DB) SSHKeys(ctx context.Context, caller workspace.Caller, page Page) (list []SSHKey, next string, err error) {
	return owned[SSHKey]{
		verb: "list SSH keys", from: "ssh_keys k", columns: sshKeyColumns, targets: (*SSHKey).targets,
		at: func(k SSHKey) place { return place{At: k.CreatedAt, ID: k.ID} },
	}.list(ctx, db, caller, page)
}

// SSHKey reads one of the caller's keys. CodeNotFound, also for a key of another user.
func (db *DB) SSHKey(ctx context.Context, caller workspace.Caller, id string) (SSHKey, error) {
	if !workspace.ValidID(id) || !workspace.ValidID(caller.UserID) {
		return SSHKey{}, notFound("SSH key")
	}
	var k SSHKey
	err := db.pool.QueryRow(ctx, `SELECT `+sshKeyColumns+` FROM ssh_keys k WHERE k.id = $1 AND k.user_id = $2`, id, caller.UserID).Scan(k.targets()...)
	if missing(err) {
		return SSHKey{}, notFound("SSH key")
	}
	return k, failed("read an SSH key", err)
}

// DeleteSSHKey removes a key and ends the connections that were opened with it.
// CodeNotFound; CodeForbidden for a key of another user.
func (db *DB) DeleteSSHKey(ctx context.Context, caller workspace.Caller, id string) error {
	if !workspace.ValidID(id) {
		return notFound("SSH key")
	}
	return db.tx(ctx, "remove an SSH key", func(tx pgx.Tx) error {
		var owner, name, key string
		err := tx.QueryRow(ctx, `SELECT user_id, name, public_key FROM ssh_keys WHERE id = $1 FOR UPDATE`, id).Scan(&owner, &name, &key)
		switch {
		case missing(err):
			return notFound("SSH key")
		case err != nil:
			return err
		case !caller.Owns(owner):
			return forbidden()
		}
		if _, err := tx.Exec(ctx, `DELETE FROM ssh_keys WHERE id = $1`, id); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditSSHKeyDelete, id, map[string]any{"name": name, "public_key": key})
	})
}

// SSHKeyUser returns a key by its hash, and its user; CodeUnauthenticated if it is not
// registered or has expired, or its user is disabled.
func (db *DB) SSHKeyUser(ctx context.Context, hash []byte) (User, SSHKey, error) {
	var u User
	var k SSHKey
	err := db.pool.QueryRow(ctx, `
		SELECT `+userColumns+`, `+sshKeyColumns+` FROM ssh_keys k JOIN users u ON u.id = k.user_id
		WHERE k.hash = $1 AND (k.expires_at IS NULL OR k.expires_at > now()) AND u.active`, hash).
		Scan(append(u.targets(), k.targets()...)...)
	if missing(err) {
		return User{}, SSHKey{}, unauthenticated()
	}
	return u, k, failed("read an SSH key", err)
}

// TouchSSHKey records when a key was last used, to the minute and never backwards.
func (db *DB) TouchSSHKey(ctx context.Context, id string, at time.Time) error {
	if !workspace.ValidID(id) {
		return notFound("SSH key")
	}
	_, err := db.pool.Exec(ctx, `
		UPDATE ssh_keys SET last_used_at = $2
		WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $2::timestamptz - interval '50 seconds')`, id, at)
	return failed("record the use of an SSH key", err)
}

// SSHHostKey returns the seed of the Ed25519 key by which all servers identify
// themselves to SSH clients. It is generated once per database.
func (db *DB) SSHHostKey(ctx context.Context) ([]byte, error) {
	const verb = "read the SSH host key"
	seed := make([]byte, 32)
	if _, err := rand.Read(seed); err != nil {
		return nil, fmt.Errorf("generate the SSH host key: %w", err)
	}
	if _, err := db.pool.Exec(ctx, `INSERT INTO ssh_host_key (seed) VALUES ($1) ON CONFLICT DO NOTHING`, seed); err != nil {
		return nil, failed(verb, err)
	}
	err := db.pool.QueryRow(ctx, `SELECT seed FROM ssh_host_key`).Scan(&seed)
	return seed, failed(verb, err)
}

// NamedWorkspace finds a workspace that the caller may open: their own by its name or id, or one
// that they may use as a guest, by its id or OWNER/NAME. CodeNotFound if there is none that can
// be used: deleted workspaces have no name.
func (db *DB) NamedWorkspace(ctx context.Context, caller workspace.Caller, name string) (workspace.ID, error) {
	if !workspace.ValidID(caller.UserID) {
		return "", forbidden()
	}
	id := ""
	if workspace.ValidID(name) {
		id = name
	}
	var found workspace.ID
	err := db.pool.QueryRow(ctx, `
		SELECT id FROM workspaces
		WHERE owner_user_id = $1 AND deleted_at IS NULL AND (name = $2 OR id = NULLIF($3, '')::uuid)
		ORDER BY name = $2 DESC LIMIT 1`, caller.UserID, clean(name), id).Scan(&found)
	if owner, of, named := strings.Cut(clean(name), "/"); missing(err) && db.sharing && (named || id != "") {
		err = db.pool.QueryRow(ctx, `
			SELECT w.id FROM workspace_guests g JOIN workspaces w ON w.id = g.workspace_id JOIN users o ON o.id = w.owner_user_id
			WHERE g.user_id = $1 AND g.may_use AND (o.username_key = $2 AND w.name = $3 OR w.id = NULLIF($4, '')::uuid)
			ORDER BY w.id LIMIT 1`, caller.UserID, UsernameKey(owner), of, id).Scan(&found)
	}
	if missing(err) {
		return "", notFound("workspace")
	}
	return found, failed("look up a workspace by name", err)
}
