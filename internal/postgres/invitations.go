package postgres

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// AuditInvite is the action of a new invitation.
const AuditInvite = "user.invite"

// InvitationLasts is how long an invitation is valid.
const InvitationLasts = 3 * 24 * time.Hour

// Invited is a new user without a password, and the SHA-256 of the secret of the invitation.
type Invited struct {
	User
	Hash []byte
}

// TakenNames returns the usernames among names that users have, for an administrator.
func (db *DB) TakenNames(ctx context.Context, caller workspace.Caller, names []string) ([]string, error) {
	if err := db.administers(ctx, caller); err != nil {
		return nil, err
	}
	by := map[string]string{} // by username_key
	for _, name := range names {
		by[UsernameKey(name)] = name
	}
	const verb = "look for usernames"
	rows, err := db.pool.Query(ctx, `SELECT username_key FROM users WHERE username_key = ANY ($1)`, slices.Collect(maps.Keys(by)))
	if err != nil {
		return nil, failed(verb, err)
	}
	taken, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for i, key := range taken {
		taken[i] = by[key]
	}
	return taken, failed(verb, err)
}

// CreateInvited adds users for an administrator, with the invitations by which they set their
// passwords: all or none. CodeNameTaken, CodeOneAccount.
func (db *DB) CreateInvited(ctx context.Context, caller workspace.Caller, list []Invited) ([]Account, error) {
	var made []Account
	err := db.tx(ctx, "create invited accounts", func(tx pgx.Tx) error {
		made = nil
		if _, err := administrators(ctx, tx, caller); err != nil {
			return err
		}
		if err := db.roomFor(ctx, tx, ""); err != nil {
			return err
		}
		for _, in := range list {
			u, err := insertUser(ctx, tx, caller, in.User)
			if err != nil {
				return err
			}
			if err := invite(ctx, tx, caller, u, in.Hash); err != nil {
				return err
			}
			a, err := db.account(ctx, tx, u.ID)
			if err != nil {
				return err
			}
			made = append(made, a)
		}
		return nil
	})
	return made, err
}

// Invite gives a user a new invitation for an administrator, with the SHA-256 of its secret. An
// earlier one ends. CodeNotFound; CodeInvalid for the caller, and for a user who is disabled or
// suspended.
func (db *DB) Invite(ctx context.Context, caller workspace.Caller, id string, hash []byte) (Account, error) {
	var out Account
	err := db.tx(ctx, "invite a user", func(tx pgx.Tx) error {
		if _, err := administrators(ctx, tx, caller); err != nil {
			return err
		}
		if !workspace.ValidID(id) {
			return notFound("user")
		}
		if id == caller.UserID {
			return workspace.Errorf(workspace.CodeInvalid, "Change your own password with your current one.")
		}
		var u User
		err := tx.QueryRow(ctx, `SELECT `+userColumns+` FROM users u WHERE id = $1 AND removed_at IS NULL FOR NO KEY UPDATE`, id).Scan(u.targets()...)
		switch {
		case missing(err):
			return notFound("user")
		case err != nil:
			return err
		case u.Disabled:
			return workspace.Errorf(workspace.CodeInvalid, "%s is disabled. Enable the user first.", u.Username)
		case u.Suspended != "":
			return workspace.Errorf(workspace.CodeInvalid, "%s is suspended by the identity provider. Set a password to end the suspension.", u.Username)
		}
		if err := invite(ctx, tx, caller, u, hash); err != nil {
			return err
		}
		out, err = db.account(ctx, tx, id)
		return err
	})
	return out, err
}

// invite stores an invitation of a user whom the transaction has locked.
func invite(ctx context.Context, tx pgx.Tx, caller workspace.Caller, u User, hash []byte) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO invitations (user_id, hash, proof, expires_at) VALUES ($1, $2, $3, now() + $4)
		ON CONFLICT (user_id) DO UPDATE SET hash = excluded.hash, proof = excluded.proof, created_at = now(), expires_at = excluded.expires_at`,
		u.ID, hash, PasswordProof(u.PasswordHash), InvitationLasts)
	if err != nil {
		return err
	}
	return audit(ctx, tx, caller, AuditInvite, u.ID, map[string]any{"username": u.Username})
}

// InvitedUser returns the user of a valid invitation; CodeNotFound.
func (db *DB) InvitedUser(ctx context.Context, hash []byte) (User, error) {
	u, err := invitedUser(ctx, db.pool, hash, "")
	return u, failed("read an invitation", err)
}

// AcceptInvitation sets the password of the user of a valid invitation, which ends with it, as do
// all sessions and API tokens of the user, and a lockout. CodeNotFound if it is not valid any
// more.
func (db *DB) AcceptInvitation(ctx context.Context, caller workspace.Caller, hash []byte, password string) (User, error) {
	var u User
	err := db.tx(ctx, "accept an invitation", func(tx pgx.Tx) (err error) {
		if u, err = invitedUser(ctx, tx, hash, " FOR NO KEY UPDATE OF u"); err != nil {
			return err
		}
		// Another request may have used it or replaced it until the user was locked.
		tag, err := tx.Exec(ctx, `DELETE FROM invitations WHERE hash = $1 AND user_id = $2`, hash, u.ID)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return notFound("invitation")
		}
		u.PasswordHash, u.FailedLogins, u.LockedUntil = password, 0, nil
		if _, err := tx.Exec(ctx, `UPDATE users SET password_hash = $2, failed_logins = 0, locked_until = NULL WHERE id = $1`, u.ID, password); err != nil {
			return err
		}
		if err := endAccess(ctx, tx, u.ID); err != nil {
			return err
		}
		caller.UserID, caller.Username = u.ID, u.Username
		return audit(ctx, tx, caller, AuditPassword, u.ID, map[string]any{"invitation": true})
	})
	return u, err
}

func invitedUser(ctx context.Context, in querier, hash []byte, lock string) (User, error) {
	var u User
	var proof string
	err := in.QueryRow(ctx, `
		SELECT `+userColumns+`, i.proof FROM invitations i JOIN users u ON u.id = i.user_id
		WHERE i.hash = $1 AND i.expires_at > now() AND u.active AND u.removed_at IS NULL`+lock, hash).Scan(append(u.targets(), &proof)...)
	if missing(err) || err == nil && proof != PasswordProof(u.PasswordHash) {
		return User{}, notFound("invitation")
	}
	return u, err
}
