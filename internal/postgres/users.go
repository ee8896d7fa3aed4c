package postgres

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"codehub/internal/workspace"
)

// User is an account.
type User struct {
	ID           string
	Username     string // unique without regard to case
	PasswordHash string // as internal/users/auth encodes it; empty: the user has no password
	Admin        bool
	Disabled     bool
	// Suspended is why the access has no effect until the identity provider confirms the
	// user again; empty: it has.
	Suspended Suspension
	// PasswordLoginUntil is until when the user may log in with a password although
	// password logins are turned off; nil: not at all.
	PasswordLoginUntil *time.Time
	// These override Limits; nil: they do not, 0: no limit.
	MaxRunning, MaxWorkspaces *int
	MaxBytes                  *int64

	FailedLogins int // since the last successful one
	LockedUntil  *time.Time
	CreatedAt    time.Time
}

const userColumns = `u.id, u.username, u.password_hash, u.admin, u.disabled, COALESCE(u.suspended_for, ''), u.password_login_until,
	u.max_running, u.max_workspaces, u.max_bytes, u.failed_logins, u.locked_until, u.created_at`

func (u *User) targets() []any {
	return []any{&u.ID, &u.Username, &u.PasswordHash, &u.Admin, &u.Disabled, &u.Suspended, &u.PasswordLoginUntil,
		&u.MaxRunning, &u.MaxWorkspaces, &u.MaxBytes, &u.FailedLogins, &u.LockedUntil, &u.CreatedAt}
}

// UsernameKey returns the form in which usernames are compared: without regard to case and
// Unicode form.
func UsernameKey(name string) string { return cases.Fold().String(norm.NFKC.String(name)) }

// UserCount counts all users.
func (db *DB) UserCount(ctx context.Context) (int, error) {
	var n int
	err := db.pool.QueryRow(ctx, `SELECT count(*) FROM users`).Scan(&n)
	return n, failed("count the users", err)
}

// EnabledUserCount returns the number of users who are not disabled.
func (db *DB) EnabledUserCount(ctx context.Context) (int, error) {
	var n int
	err := db.pool.QueryRow(ctx, `SELECT count(*) FROM users WHERE NOT disabled AND removed_at IS NULL`).Scan(&n)
	return n, failed("count the users", err)
}

// CreateUser adds a user and sets ID and CreatedAt. CodeNameTaken if the username is
// taken, without regard to case.
func (db *DB) CreateUser(ctx context.Context, u User) (User, error) {
	var made User
	err := db.tx(ctx, "create a user", func(tx pgx.Tx) (err error) {
		if err := db.roomFor(ctx, tx, ""); err != nil {
			return err
		}
		made, err = insertUser(ctx, tx, workspace.Caller{}, u)
		return err
	})
	return made, err
}

// roomFor returns CodeOneAccount if this server has one account, and another one than id can log
// in.
func (db *DB) roomFor(ctx context.Context, tx pgx.Tx, id string) error {
	if !db.oneAccount {
		return nil
	}
	// Of concurrent first accounts one is added.
	if _, err := tx.Exec(ctx, `LOCK TABLE users IN SHARE ROW EXCLUSIVE MODE`); err != nil {
		return err
	}
	var other bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM users WHERE NOT disabled AND removed_at IS NULL AND id::text <> $1)`, id).Scan(&other); err != nil {
		return err
	}
	if other {
		return workspace.Errorf(workspace.CodeOneAccount, "A server on localhost has one account, because forwarded ports of other users’ workspaces could take over sessions there. "+
			"Set CODEHUB_URL to an https address with another host, or CODEHUB_ALLOW_HTTP=true if all users trust each other.")
	}
	return nil
}

// CreateFirstUser adds a user if there is none; otherwise CodeForbidden. Of concurrent
// calls one succeeds. from is the client's address; invalid: not known.
func (db *DB) CreateFirstUser(ctx context.Context, from netip.Addr, u User) (User, error) {
	var made User
	err := db.tx(ctx, "create the first user", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `LOCK TABLE users IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return err
		}
		var any bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM users)`).Scan(&any); err != nil {
			return err
		}
		if any {
			return workspace.Errorf(workspace.CodeForbidden, "codehub is set up already. Log in, or ask an administrator for an account.")
		}
		var err error
		made, err = insertUser(ctx, tx, workspace.Caller{Address: from}, u)
		return err
	})
	return made, err
}

// insertUser adds a user. The audit log names by, or the user itself if by has no id, with the
// address of by.
func insertUser(ctx context.Context, tx pgx.Tx, by workspace.Caller, u User) (User, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return User{}, fmt.Errorf("make an id: %w", err)
	}
	var made User
	err = tx.QueryRow(ctx, `
		INSERT INTO users AS u (id, username, username_key, password_hash, admin, disabled, max_running, max_workspaces, max_bytes)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING `+userColumns,
		id.String(), u.Username, UsernameKey(u.Username), u.PasswordHash, u.Admin, u.Disabled, u.MaxRunning, u.MaxWorkspaces, u.MaxBytes).
		Scan(made.targets()...)
	if violates(err, "users_username_key") {
		return User{}, &workspace.Error{Code: workspace.CodeNameTaken, Message: fmt.Sprintf("The username %q is taken.", u.Username), Err: err}
	}
	if err != nil {
		return User{}, err
	}
	if by.UserID == "" {
		by.UserID, by.Username = made.ID, made.Username
	}
	return made, audit(ctx, tx, by, AuditUserCreate, made.ID, map[string]any{"username": made.Username, "admin": made.Admin})
}

// UserByName finds a user by name, without regard to case.
func (db *DB) UserByName(ctx context.Context, username string) (User, error) {
	return db.user(ctx, `u.username_key = $1`, UsernameKey(username))
}

// User finds a user by id.
func (db *DB) User(ctx context.Context, id string) (User, error) {
	if !workspace.ValidID(id) {
		return User{}, notFound("user")
	}
	return db.user(ctx, `u.removed_at IS NULL AND u.id = $1`, id)
}

// OwnerOf returns the owner of a workspace; CodeNotFound if the owner is disabled or suspended,
// or if the workspace is deleted.
func (db *DB) OwnerOf(ctx context.Context, id workspace.ID) (User, error) {
	return db.user(ctx, `u.active AND u.id = (SELECT owner_user_id FROM workspaces WHERE id = $1 AND phase <> 'DELETED')`, id)
}

func (db *DB) user(ctx context.Context, where string, arg any) (User, error) {
	var u User
	err := db.pool.QueryRow(ctx, `SELECT `+userColumns+` FROM users u WHERE `+where, arg).Scan(u.targets()...)
	if missing(err) {
		return User{}, notFound("user")
	}
	return u, failed("read a user", err)
}

// RenewPasswordHash replaces the hash old by one of the same password with other
// parameters. It changes nothing if the hash is no longer old.
func (db *DB) RenewPasswordHash(ctx context.Context, userID, old, hash string) error {
	if !workspace.ValidID(userID) {
		return notFound("user")
	}
	_, err := db.pool.Exec(ctx, `UPDATE users SET password_hash = $3 WHERE id = $1 AND password_hash = $2`, userID, old, hash)
	return failed("renew a password hash", err)
}

// Successor is a session that takes the place of the caller's.
type Successor struct {
	Hash []byte
	From Client
}

// SetPassword replaces the hash of the caller's password, ends all sessions and API tokens of the
// user, and ends a lockout. verified is the hash of the current password that the user
// gave; CodeUnauthenticated if an administrator has meanwhile changed it or disabled
// the user, or the caller's session has ended. The successor, unless it is nil, ends when the
// caller's session did, which is returned, and also with what that one would have ended with: its
// identity, and the provider's session.
func (db *DB) SetPassword(ctx context.Context, caller workspace.Caller, verified, hash string, next *Successor) (ends time.Time, err error) {
	userID := caller.UserID
	if !workspace.ValidID(userID) {
		return ends, notFound("user")
	}
	err = db.tx(ctx, "set a password", func(tx pgx.Tx) error {
		var made newSession
		if next != nil {
			if err := lockProvider(ctx, tx, caller); err != nil {
				return err
			}
			made.hash, made.from = next.Hash, next.From
		}
		err := tx.QueryRow(ctx, `SELECT `+userColumns+` FROM users u WHERE id = $1 FOR NO KEY UPDATE`, userID).Scan(made.user.targets()...)
		switch u := made.user; {
		case missing(err):
			return notFound("user")
		case err != nil:
			return err
		case u.Disabled || u.Suspended != "" || u.PasswordHash != verified:
			return unauthenticated()
		}
		if next != nil {
			err := tx.QueryRow(ctx, `
				SELECT expires_at, COALESCE(identity_id::text, ''), COALESCE(provider_session, '') FROM sessions
				WHERE hash = decode($1, 'hex') AND user_id = $2 AND expires_at > now() FOR UPDATE`, caller.Session, userID).
				Scan(&made.expires, &made.identity, &made.provider)
			if missing(err) {
				return unauthenticated()
			}
			if err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `UPDATE users SET password_hash = $2, failed_logins = 0, locked_until = NULL WHERE id = $1`, userID, hash)
		if err != nil {
			return err
		}
		if err := endAccess(ctx, tx, userID); err != nil {
			return err
		}
		caller.Username = made.user.Username
		if err := audit(ctx, tx, caller, AuditPassword, userID, nil); err != nil || next == nil {
			return err
		}
		ends = made.expires
		return insertSession(ctx, tx, made)
	})
	return ends, err
}

// lockProvider takes the locks of ProviderLogout for the identity that the caller's session was
// begun with, if any. A concurrent ProviderLogout then comes before this transaction, which finds no
// session, or after it, and ends the successor.
func lockProvider(ctx context.Context, tx pgx.Tx, caller workspace.Caller) error {
	var issuer, subject, session string
	err := tx.QueryRow(ctx, `
		SELECT i.issuer, i.subject, COALESCE(s.provider_session, '') FROM sessions s JOIN user_identities i ON i.id = s.identity_id
		WHERE s.hash = decode($1, 'hex') AND s.user_id = $2`, caller.Session, caller.UserID).Scan(&issuer, &subject, &session)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := lockSubject(ctx, tx, issuer, subject); err != nil || session == "" {
		return err
	}
	return lockSubject(ctx, tx, issuer, "session "+session)
}
