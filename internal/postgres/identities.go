package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Suspension is why a user's access has no effect. A login with an identity that the
// provider accepts ends it, and so does a password that an administrator sets.
type Suspension string

const (
	// SuspendedRefused: the provider refused to confirm the user again.
	SuspendedRefused Suspension = "refused"
	// SuspendedNotAllowed: the user is in none of the allowed groups any more.
	SuspendedNotAllowed Suspension = "not_allowed"
	// SuspendedUnreachable: the provider has not responded for too long. It ends as soon as
	// the provider confirms the user.
	SuspendedUnreachable Suspension = "unreachable"
)

const (
	// maxClaimGroups and maxClaimGroup bound the groups of an identity that are kept, and
	// their names, in bytes.
	maxClaimGroups = 500
	maxClaimGroup  = 255

	// claimFor is how long no other server checks an identity that one checks.
	claimFor = 30 * time.Second
)

// Identity is a user's account at an identity provider.
type Identity struct {
	ID        string
	UserID    string
	Issuer    string
	Subject   string
	Username  string // the provider's, for display; it identifies nobody
	Active    bool   // the provider accepted the user at the last check
	CreatedAt time.Time
	CheckedAt time.Time // the last successful check; the start of Unix time: none here, as it came with a move
}

const identityColumns = `i.id, i.user_id, i.issuer, i.subject, i.username, i.active, i.created_at, i.checked_at`

func (i *Identity) targets() []any {
	return []any{&i.ID, &i.UserID, &i.Issuer, &i.Subject, &i.Username, &i.Active, &i.CreatedAt, &i.CheckedAt}
}

// Claims is what a provider says about a subject that it accepts.
type Claims struct {
	Username string // as the provider has it
	// Name and Email are for commits; empty: the provider does not say now.
	Name, Email string
	Groups      []string // of which the subject is a member
	// Admin reports that the groups make the subject an administrator; nil: the settings
	// name no such groups.
	Admin *bool
	// RefreshToken is the encrypted token for the next check.
	RefreshToken []byte
}

// SignIn is a login with an identity.
type SignIn struct {
	Issuer, Subject string
	Claims
	// NewUser is the name of the user whom a first login creates; CodeInvalid then if it is
	// empty.
	NewUser string
	// Session is the SHA-256 of the new session, ProviderSession the provider's id of its
	// own; empty: unknown.
	Session         []byte
	ProviderSession string
	// Begun is when the user was sent to the provider. Logouts of the subject since then
	// refuse the login; zero: none does.
	Begun   time.Time
	Expires time.Time
	From    Client
}

// ErrNotSetUp is wrapped in the error of SignIn if the installation has no user yet and the
// login would make no administrator.
var ErrNotSetUp = errors.New("the installation has no user")

// SignIn begins a session of the user whose identity it is, and creates the user at the first login. The
// identity is the issuer and the subject alone: a user of the same name is another one, and
// the login is CodeNameTaken, as is the first one of an identity that came with a move if the
// provider's name is not the user's. CodeForbidden for a disabled user, and before the installation has a user
// if the login makes no administrator; CodeUnauthenticated if the provider has ended its session meanwhile.
func (db *DB) SignIn(ctx context.Context, in SignIn) (User, error) {
	var u User
	err := db.tx(ctx, "log in with an identity", func(tx pgx.Tx) error {
		if err := lockSubject(ctx, tx, in.Issuer, in.Subject); err != nil {
			return err
		}
		if err := stillAtProvider(ctx, tx, in); err != nil {
			return err
		}
		var id Identity
		err := tx.QueryRow(ctx, `SELECT `+identityColumns+` FROM user_identities i WHERE i.issuer = $1 AND i.subject = $2`, in.Issuer, in.Subject).
			Scan(id.targets()...)
		switch {
		case missing(err):
			id, err = db.firstSignIn(ctx, tx, in)
		case err == nil:
			// The user's row first, as in all transactions that change both.
			var name string
			err = tx.QueryRow(ctx, `SELECT username FROM users WHERE id = $1 FOR NO KEY UPDATE`, id.UserID).Scan(&name)
			// Whose identity this is only the source of a move has said.
			if err == nil && id.CheckedAt.Unix() == 0 && UsernameKey(name) != UsernameKey(in.NewUser) {
				return workspace.Errorf(workspace.CodeNameTaken, "The account came with a move, and the provider has another name for this user.")
			}
		}
		if err != nil {
			return err
		}
		if u, err = accept(ctx, tx, id, in.Claims, true); err != nil {
			return err
		}
		if u.Disabled {
			return workspace.Errorf(workspace.CodeForbidden, "This account is disabled. Ask an administrator.")
		}
		return insertSession(ctx, tx, newSession{hash: in.Session, user: u, expires: in.Expires, from: in.From, identity: id.ID, provider: in.ProviderSession})
	})
	return u, err
}

// lockSubject makes this the only transaction that adds this identity, until it ends.
func lockSubject(ctx context.Context, tx pgx.Tx, issuer, subject string) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1 || chr(10) || $2, 35))`, issuer, subject)
	return err
}

// stillAtProvider returns CodeUnauthenticated if the provider has reported the end of the
// session that the login comes from, or of all of the subject's since the login began. The
// transaction holds the subject's lock.
func stillAtProvider(ctx context.Context, tx pgx.Tx, in SignIn) error {
	if in.ProviderSession != "" {
		// ProviderLogout takes the same locks, so that one of the two sees the other.
		if err := lockSubject(ctx, tx, in.Issuer, "session "+in.ProviderSession); err != nil {
			return err
		}
	}
	var begun *time.Time
	if !in.Begun.IsZero() {
		begun = &in.Begun
	}
	var ended bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM provider_logouts WHERE issuer = $1 AND provider_session = $2)
			OR EXISTS (SELECT FROM provider_logouts WHERE issuer = $1 AND subject = $3 AND provider_session IS NULL AND received_at >= $4)`,
		in.Issuer, in.ProviderSession, in.Subject, begun).Scan(&ended)
	if err == nil && ended {
		return unauthenticated()
	}
	return err
}

func (db *DB) firstSignIn(ctx context.Context, tx pgx.Tx, in SignIn) (Identity, error) {
	admin := in.Admin != nil && *in.Admin
	if err := db.roomFor(ctx, tx, ""); err != nil {
		return Identity{}, err
	}
	var users bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM users)`).Scan(&users); err != nil {
		return Identity{}, err
	}
	if !users && !admin {
		return Identity{}, &workspace.Error{Code: workspace.CodeForbidden, Message: "codehub is not set up yet: the first user has to be an administrator.", Err: ErrNotSetUp}
	}
	if in.NewUser == "" {
		return Identity{}, workspace.Errorf(workspace.CodeInvalid, "The identity has no name that can be a username.")
	}
	u, err := insertUser(ctx, tx, workspace.Caller{Address: in.From.Address}, User{Username: in.NewUser})
	if err != nil {
		return Identity{}, err
	}
	return insertIdentity(ctx, tx, u.ID, in.Issuer, in.Subject)
}

func insertIdentity(ctx context.Context, tx pgx.Tx, user, issuer, subject string) (id Identity, err error) {
	key, err := uuid.NewV7()
	if err != nil {
		return id, fmt.Errorf("make an id: %w", err)
	}
	err = tx.QueryRow(ctx, `INSERT INTO user_identities AS i (id, user_id, issuer, subject) VALUES ($1, $2, $3, $4) RETURNING `+identityColumns,
		key.String(), user, issuer, subject).Scan(id.targets()...)
	return id, err
}

// accept records what the provider says about an identity, and returns the user. login also
// ends a suspension of any kind; otherwise only one for want of a response ends. The
// transaction holds the lock of the user's row.
func accept(ctx context.Context, tx pgx.Tx, id Identity, c Claims, login bool) (User, error) {
	var u User
	err := tx.QueryRow(ctx, `
		UPDATE users u SET suspended_for = CASE WHEN $2 OR suspended_for = 'unreachable' THEN NULL ELSE suspended_for END
		WHERE id = $1 RETURNING `+userColumns, id.UserID, login).Scan(u.targets()...)
	if err != nil {
		return u, err
	}
	_, err = tx.Exec(ctx, `
		UPDATE user_identities SET active = true, username = $2, refresh_token = $3,
			full_name = coalesce(nullif($4, ''), full_name), email = coalesce(nullif($5, ''), email),
			checked_at = now(), tried_at = now(), claimed_until = NULL, failing_since = NULL WHERE id = $1`,
		id.ID, clean(c.Username), c.RefreshToken, clean(c.Name), clean(c.Email))
	if err != nil {
		return u, err
	}
	if err := setClaimGroups(ctx, tx, id.ID, c.Groups); err != nil {
		return u, err
	}
	// Without groups of administrators in the settings, none makes one.
	return u, grantAdmin(ctx, tx, id.ID, &u, c.Admin != nil && *c.Admin)
}

func setClaimGroups(ctx context.Context, tx pgx.Tx, identity string, groups []string) error {
	kept := make([]string, 0, min(len(groups), maxClaimGroups))
	for _, g := range groups {
		if g = clean(g); g != "" && len(g) <= maxClaimGroup && len(kept) < maxClaimGroups {
			kept = append(kept, g)
		}
	}
	slices.Sort(kept)
	kept = slices.Compact(kept)
	if _, err := tx.Exec(ctx, `DELETE FROM user_claim_groups WHERE identity_id = $1 AND NOT name = ANY ($2)`, identity, kept); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO user_claim_groups (identity_id, name) SELECT $1, unnest($2::text[]) ON CONFLICT DO NOTHING`, identity, kept)
	return err
}

// grantAdmin makes the user an administrator when the identity becomes one by its groups,
// and takes that back when it ceases to be one, also from the last administrator. What
// administrators have set otherwise stays.
func grantAdmin(ctx context.Context, tx pgx.Tx, identity string, u *User, admin bool) error {
	var granted bool
	if err := tx.QueryRow(ctx, `SELECT admin_granted FROM user_identities WHERE id = $1`, identity).Scan(&granted); err != nil {
		return err
	}
	if granted == admin || !granted && u.Admin {
		return nil
	}
	if _, err := tx.Exec(ctx, `UPDATE user_identities SET admin_granted = $2 WHERE id = $1`, identity, admin); err != nil {
		return err
	}
	if u.Admin == admin {
		return nil
	}
	if _, err := tx.Exec(ctx, `UPDATE users SET admin = $2 WHERE id = $1`, u.ID, admin); err != nil {
		return err
	}
	u.Admin = admin
	return audit(ctx, tx, workspace.System, AuditUserChange, u.ID, map[string]any{"username": u.Username, "admin": admin, "identity": identity})
}

// PasswordProof names a password hash without revealing it.
func PasswordProof(hash string) string {
	sum := sha256.Sum256([]byte("proof\x00" + hash))
	return hex.EncodeToString(sum[:])
}

// LinkIdentity adds an identity to the caller. proof is the PasswordProof of the hash with
// which the password was verified. CodeUnauthenticated if the caller's session has ended or the password has changed
// meanwhile; CodeNameTaken if the identity is another user's.
func (db *DB) LinkIdentity(ctx context.Context, caller workspace.Caller, proof string, in SignIn) error {
	if !workspace.ValidID(caller.UserID) {
		return forbidden()
	}
	return db.tx(ctx, "link an identity", func(tx pgx.Tx) error {
		if err := lockSubject(ctx, tx, in.Issuer, in.Subject); err != nil {
			return err
		}
		var u User
		err := tx.QueryRow(ctx, `SELECT `+userColumns+` FROM users u WHERE id = $1 AND active AND EXISTS (
			SELECT FROM sessions s WHERE s.user_id = u.id AND s.hash = decode($2, 'hex') AND s.expires_at > now()) FOR NO KEY UPDATE`,
			caller.UserID, caller.Session).Scan(u.targets()...)
		if missing(err) || err == nil && PasswordProof(u.PasswordHash) != proof {
			return unauthenticated()
		}
		if err != nil {
			return err
		}
		var id Identity
		err = tx.QueryRow(ctx, `SELECT `+identityColumns+` FROM user_identities i WHERE i.issuer = $1 AND i.subject = $2`, in.Issuer, in.Subject).
			Scan(id.targets()...)
		switch {
		case err == nil && id.UserID != u.ID:
			return workspace.Errorf(workspace.CodeNameTaken, "This account at the provider belongs to another user of codehub.")
		case missing(err):
			if id, err = insertIdentity(ctx, tx, u.ID, in.Issuer, in.Subject); err != nil {
				return err
			}
			if err := audit(ctx, tx, caller, AuditIdentityLink, id.ID, map[string]any{"issuer": in.Issuer, "subject": in.Subject}); err != nil {
				return err
			}
		case err != nil:
			return err
		}
		_, err = accept(ctx, tx, id, in.Claims, false)
		return err
	})
}

// Identities lists the caller's identities, the oldest first. There are as many as
// providers, or a few more.
func (db *DB) Identities(ctx context.Context, caller workspace.Caller) ([]Identity, error) {
	if !workspace.ValidID(caller.UserID) {
		return nil, forbidden()
	}
	list, err := identitiesOf(ctx, db.pool, caller.UserID)
	return list, failed("list identities", err)
}

func identitiesOf(ctx context.Context, in querier, user string) ([]Identity, error) {
	rows, err := in.Query(ctx, `SELECT `+identityColumns+` FROM user_identities i WHERE i.user_id = $1 ORDER BY i.created_at, i.id LIMIT $2`, user, MaxList)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (i Identity, err error) { return i, row.Scan(i.targets()...) })
}

// UnlinkIdentity removes an identity of the caller, who has a password, and ends the
// sessions that were begun with it, and the administrator's rights that it granted. proof is as for LinkIdentity. CodeNotFound, also for
// another user's.
func (db *DB) UnlinkIdentity(ctx context.Context, caller workspace.Caller, proof, id string) error {
	if !workspace.ValidID(id) || !workspace.ValidID(caller.UserID) {
		return notFound("identity")
	}
	return db.tx(ctx, "unlink an identity", func(tx pgx.Tx) error {
		var u User
		err := tx.QueryRow(ctx, `SELECT `+userColumns+` FROM users u WHERE id = $1 AND active FOR NO KEY UPDATE`, caller.UserID).Scan(u.targets()...)
		if missing(err) || err == nil && (u.PasswordHash == "" || PasswordProof(u.PasswordHash) != proof) {
			return unauthenticated()
		}
		if err != nil {
			return err
		}
		var issuer, subject string
		err = tx.QueryRow(ctx, `SELECT issuer, subject FROM user_identities WHERE id = $1 AND user_id = $2`, id, caller.UserID).Scan(&issuer, &subject)
		if missing(err) {
			return notFound("identity")
		}
		if err != nil {
			return err
		}
		if err := grantAdmin(ctx, tx, id, &u, false); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM user_identities WHERE id = $1`, id); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditIdentityUnlink, id, map[string]any{"issuer": issuer, "subject": subject})
	})
}

// DueIdentity is an identity that this server is to check.
type DueIdentity struct {
	Identity
	RefreshToken []byte // encrypted
	// Foreign reports that the settings no longer name its issuer.
	Foreign bool
}

// ClaimIdentities returns identities of these issuers whose last check, successful or not,
// is at least age old and whose users have a means of access, at most limit. No other
// server gets them for half a minute.
func (db *DB) ClaimIdentities(ctx context.Context, issuers []string, age time.Duration, limit int) ([]DueIdentity, error) {
	const verb = "claim identities"
	rows, err := db.pool.Query(ctx, `
		UPDATE user_identities i SET claimed_until = now() + $3, tried_at = now()
		WHERE i.id IN (
			SELECT d.id FROM user_identities d JOIN users u ON u.id = d.user_id
			WHERE d.active AND d.issuer = ANY ($1) AND NOT u.disabled AND d.tried_at <= now() - $2::interval
				AND (d.claimed_until IS NULL OR d.claimed_until <= now())
				AND (EXISTS (SELECT FROM sessions s WHERE s.user_id = u.id) OR EXISTS (SELECT FROM api_tokens t WHERE t.user_id = u.id)
					OR EXISTS (SELECT FROM ssh_keys k WHERE k.user_id = u.id))
			ORDER BY d.tried_at LIMIT $4 FOR UPDATE OF d SKIP LOCKED)
		RETURNING `+identityColumns+`, i.refresh_token`, issuers, age, claimFor, limit)
	if err != nil {
		return nil, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d DueIdentity, err error) {
		return d, row.Scan(append(d.targets(), &d.RefreshToken)...)
	})
	return list, failed(verb, err)
}

// errSuperseded: the identity has another refresh token than the one that was checked.
var errSuperseded = errors.New("superseded")

// checkedIdentity locks the user and the identity, unless a login has replaced the refresh
// token since d was claimed: what the provider said about the former one does not count.
func checkedIdentity(ctx context.Context, tx pgx.Tx, d DueIdentity) (User, error) {
	var u User
	err := tx.QueryRow(ctx, `SELECT `+userColumns+` FROM users u WHERE id = $1 FOR NO KEY UPDATE`, d.UserID).Scan(u.targets()...)
	if err == nil {
		err = tx.QueryRow(ctx, `SELECT FROM user_identities WHERE id = $1 AND active AND refresh_token IS NOT DISTINCT FROM $2 FOR UPDATE`, d.ID, d.RefreshToken).Scan()
	}
	if missing(err) {
		err = errSuperseded
	}
	return u, err
}

func (db *DB) checked(ctx context.Context, verb string, d DueIdentity, then func(tx pgx.Tx, u User) error) error {
	err := db.tx(ctx, verb, func(tx pgx.Tx) error {
		u, err := checkedIdentity(ctx, tx, d)
		if err != nil {
			return err
		}
		return then(tx, u)
	})
	if errors.Is(err, errSuperseded) {
		return nil
	}
	return err
}

// ConfirmIdentity records that the provider accepts the identity.
func (db *DB) ConfirmIdentity(ctx context.Context, d DueIdentity, c Claims) error {
	return db.checked(ctx, "confirm an identity", d, func(tx pgx.Tx, _ User) error {
		_, err := accept(ctx, tx, d.Identity, c, false)
		return err
	})
}

// EndIdentity records that the provider does not accept the identity any more, and ends its
// sessions. A user without another active identity is suspended. One who is not allowed any more
// also loses all other sessions, API tokens and SSH keys for good. A user with a password is not
// suspended because of a foreign identity: administrators may give up a provider.
func (db *DB) EndIdentity(ctx context.Context, d DueIdentity, why Suspension) error {
	return db.checked(ctx, "end an identity", d, func(tx pgx.Tx, u User) error {
		_, err := tx.Exec(ctx, `
			UPDATE user_identities SET active = false, refresh_token = NULL, claimed_until = NULL, failing_since = NULL WHERE id = $1`, d.ID)
		if err != nil {
			return err
		}
		if err := setClaimGroups(ctx, tx, d.ID, nil); err != nil {
			return err
		}
		if err := grantAdmin(ctx, tx, d.ID, &u, false); err != nil {
			return err
		}
		if why == SuspendedNotAllowed {
			err = endAccess(ctx, tx, u.ID)
		} else {
			_, err = tx.Exec(ctx, `DELETE FROM sessions WHERE identity_id = $1`, d.ID)
		}
		if err != nil {
			return err
		}
		if d.Foreign && u.PasswordHash != "" {
			why = ""
		}
		_, err = tx.Exec(ctx, `
			UPDATE users SET suspended_for = COALESCE(NULLIF($2, ''), suspended_for)
			WHERE id = $1 AND NOT EXISTS (SELECT FROM user_identities WHERE user_id = $1 AND active)`, u.ID, string(why))
		if err != nil {
			return err
		}
		return audit(ctx, tx, workspace.System, AuditIdentityEnd, u.ID, map[string]any{"username": u.Username, "issuer": d.Issuer, "subject": d.Subject, "reason": string(why)})
	})
}

// IdentityUnreachable records that the provider could not be asked. refreshToken is the
// encrypted token that it issued before the check failed; nil: none. After grace without
// a response, a user without a password is suspended until there is one; for a user with a
// password the sessions that were begun with the identity end.
func (db *DB) IdentityUnreachable(ctx context.Context, d DueIdentity, refreshToken []byte, grace time.Duration) error {
	return db.checked(ctx, "record a failed check of an identity", d, func(tx pgx.Tx, u User) error {
		var over bool
		err := tx.QueryRow(ctx, `
			UPDATE user_identities SET claimed_until = NULL, failing_since = COALESCE(failing_since, now()), refresh_token = COALESCE($3, refresh_token)
			WHERE id = $1 RETURNING failing_since <= now() - $2::interval`, d.ID, grace, refreshToken).Scan(&over)
		if err != nil || !over {
			return err
		}
		if u.PasswordHash != "" {
			_, err = tx.Exec(ctx, `DELETE FROM sessions WHERE identity_id = $1`, d.ID)
			return err
		}
		var others bool
		err = tx.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM user_identities WHERE user_id = $1 AND id <> $2 AND active AND failing_since IS NULL)`, u.ID, d.ID).Scan(&others)
		if err != nil || others || u.Suspended != "" {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE users SET suspended_for = 'unreachable' WHERE id = $1`, u.ID); err != nil {
			return err
		}
		return audit(ctx, tx, workspace.System, AuditIdentityEnd, u.ID, map[string]any{"username": u.Username, "issuer": d.Issuer, "subject": d.Subject, "reason": string(SuspendedUnreachable)})
	})
}

// ForeignIdentities returns active identities of other issuers than these, at most limit.
func (db *DB) ForeignIdentities(ctx context.Context, issuers []string, limit int) ([]DueIdentity, error) {
	const verb = "list identities of unknown issuers"
	if issuers == nil {
		issuers = []string{}
	}
	rows, err := db.pool.Query(ctx, `SELECT `+identityColumns+`, i.refresh_token FROM user_identities i WHERE i.active AND NOT i.issuer = ANY ($1) LIMIT $2`, issuers, limit)
	if err != nil {
		return nil, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d DueIdentity, err error) {
		d.Foreign = true
		return d, row.Scan(append(d.targets(), &d.RefreshToken)...)
	})
	return list, failed(verb, err)
}

// ProviderLogout is a logout token that a provider has sent. At least one of Subject and
// Session is set.
type ProviderLogout struct {
	Issuer, TokenID  string
	Subject, Session string
	Expires          time.Time // until when the token could be sent again
}

// ProviderLogout ends the sessions that a provider's logout token names: those of
// its session, or all of the subject. With both, it also ends sessions of the subject whose
// provider's session is not known. It returns how many there were, and false if the token was
// sent before.
func (db *DB) ProviderLogout(ctx context.Context, l ProviderLogout) (ended int64, first bool, err error) {
	err = db.tx(ctx, "end the sessions of a provider's logout", func(tx pgx.Tx) error {
		ended, first = 0, false
		if l.Subject != "" {
			if err := lockSubject(ctx, tx, l.Issuer, l.Subject); err != nil {
				return err
			}
		}
		if l.Session != "" {
			if err := lockSubject(ctx, tx, l.Issuer, "session "+l.Session); err != nil {
				return err
			}
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO provider_logouts (issuer, token_id, provider_session, subject, received_at, expires_at)
			VALUES ($1, $2, $3, $4, clock_timestamp(), $5) ON CONFLICT DO NOTHING`,
			l.Issuer, l.TokenID, nullable(l.Session), nullable(l.Subject), l.Expires)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		first = true
		rows, err := tx.Query(ctx, `
			DELETE FROM sessions s USING user_identities i, users u
			WHERE s.identity_id = i.id AND u.id = s.user_id AND i.issuer = $1
				AND ($2 = '' OR i.subject = $2) AND ($3 = '' OR s.provider_session = $3 OR $2 <> '' AND s.provider_session IS NULL)
			RETURNING u.id, u.username`, l.Issuer, l.Subject, l.Session)
		if err != nil {
			return err
		}
		of := map[string]string{}
		var id, name string
		if _, err := pgx.ForEachRow(rows, []any{&id, &name}, func() error { of[id] = name; ended++; return nil }); err != nil {
			return err
		}
		for id, name := range of {
			if err := audit(ctx, tx, workspace.System, AuditIdentityLogout, id, map[string]any{"username": name, "issuer": l.Issuer}); err != nil {
				return err
			}
		}
		return nil
	})
	return ended, first, err
}

// DeleteExpiredLogouts forgets the logout tokens that cannot be sent again.
func (db *DB) DeleteExpiredLogouts(ctx context.Context) error {
	_, err := db.pool.Exec(ctx, `DELETE FROM provider_logouts WHERE expires_at <= now()`)
	return failed("remove expired logout tokens", err)
}

// AllowPasswordLogin lets a user log in with a password for a while, although password
// logins are turned off.
func (db *DB) AllowPasswordLogin(ctx context.Context, userID string, lasts time.Duration) error {
	if !workspace.ValidID(userID) {
		return notFound("user")
	}
	return db.tx(ctx, "allow a password login", func(tx pgx.Tx) error {
		var name string
		var until time.Time
		err := tx.QueryRow(ctx, `UPDATE users SET password_login_until = now() + $2::interval WHERE id = $1 RETURNING username, password_login_until`, userID, lasts).
			Scan(&name, &until)
		if missing(err) {
			return notFound("user")
		}
		if err != nil {
			return err
		}
		return audit(ctx, tx, workspace.System, AuditPasswordLogin, userID, map[string]any{"username": name, "until": until})
	})
}
