package postgres

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Sessions and tokens are stored as the SHA-256 of the client's secret.

// maxUserAgent is the number of bytes of a User-Agent header that are stored.
const maxUserAgent = 512

// Client is where a login comes from.
type Client struct {
	Address   netip.Addr // invalid: unknown
	UserAgent string
}

// address returns the text that is stored.
func (c Client) address() string {
	if !c.Address.IsValid() {
		return ""
	}
	return c.Address.String()
}

// CreateSession creates a session of the user. verified is the hash of the password
// that the login checked; empty: the login used none. CodeUnauthenticated if the
// password has changed meanwhile: a concurrent login must not survive a change that
// ends all sessions.
func (db *DB) CreateSession(ctx context.Context, hash []byte, userID, verified string, expires time.Time, from Client) error {
	if !workspace.ValidID(userID) {
		return notFound("user")
	}
	return db.tx(ctx, "begin a session", func(tx pgx.Tx) error {
		u, err := enabledUser(ctx, tx, userID)
		if missing(err) {
			return notFound("user")
		}
		if err != nil {
			return err
		}
		if verified != "" && verified != u.PasswordHash {
			return unauthenticated()
		}
		return insertSession(ctx, tx, newSession{hash: hash, user: u, expires: expires, from: from})
	})
}

// newSession is a session to be added.
type newSession struct {
	hash     []byte
	user     User
	expires  time.Time
	from     Client
	identity string // empty: the login used none
	provider string // the provider's id of its session; empty: unknown
	// factor is the second factor of the login, for the audit log; nil: none.
	factor map[string]any
}

func insertSession(ctx context.Context, tx pgx.Tx, s newSession) error {
	userAgent := clean(s.from.UserAgent)
	if len(userAgent) > maxUserAgent {
		userAgent = clean(userAgent[:maxUserAgent])
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO sessions (hash, user_id, expires_at, user_agent, address, identity_id, provider_session)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		s.hash, s.user.ID, s.expires, userAgent, s.from.address(), nullable(s.identity), nullable(s.provider))
	if err != nil {
		return err
	}
	details := map[string]any{"user_agent": userAgent}
	if s.identity != "" {
		details["identity"] = s.identity
	}
	maps.Copy(details, s.factor)
	return audit(ctx, tx, workspace.Caller{UserID: s.user.ID, Username: s.user.Username, Address: s.from.Address}, AuditLogin, s.user.ID, details)
}

// enabledUser reads a user who is neither disabled nor suspended, and locks the row: saveAccount and
// SetPassword, which end access, run before or after this transaction, so that a
// session it adds does not survive them.
func enabledUser(ctx context.Context, tx pgx.Tx, id string) (User, error) {
	var u User
	err := tx.QueryRow(ctx, `SELECT `+userColumns+` FROM users u WHERE id = $1 AND active FOR SHARE`, id).Scan(u.targets()...)
	return u, err
}

// SessionUser returns the user of a session and the time of its end;
// CodeUnauthenticated if it has ended or its user is disabled.
func (db *DB) SessionUser(ctx context.Context, hash []byte) (User, time.Time, error) {
	var u User
	var expires time.Time
	err := db.pool.QueryRow(ctx, `
		SELECT s.expires_at, `+userColumns+` FROM sessions s JOIN users u ON u.id = s.user_id
		WHERE s.hash = $1 AND s.expires_at > now() AND u.active`, hash).
		Scan(append([]any{&expires}, u.targets()...)...)
	if missing(err) {
		return User{}, time.Time{}, unauthenticated()
	}
	return u, expires, failed("read a session", err)
}

func unauthenticated() error {
	return workspace.Errorf(workspace.CodeUnauthenticated, "Log in first.")
}

// DeleteSession ends a session, at the request of a client with the address from, which may be
// invalid. It is not an error if the session has ended.
func (db *DB) DeleteSession(ctx context.Context, hash []byte, from netip.Addr) error {
	return db.tx(ctx, "end a session", func(tx pgx.Tx) error {
		by := workspace.Caller{Address: from}
		err := tx.QueryRow(ctx, `
			DELETE FROM sessions s USING users u WHERE s.hash = $1 AND u.id = s.user_id
			RETURNING u.id, u.username`, hash).Scan(&by.UserID, &by.Username)
		if missing(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return audit(ctx, tx, by, AuditLogout, by.UserID, nil)
	})
}

// UserSession is a session in the list of its user.
type UserSession struct {
	ID         string
	Hash       []byte // SHA-256
	UserAgent  string
	Address    string // of the client at the login; empty: unknown
	Issuer     string // of the identity that the login used; empty: a password
	CreatedAt  time.Time
	ExpiresAt  time.Time
	LastUsedAt *time.Time // nil: not used since the login
}

// Used is when the session was last used, at the latest when it was created.
func (s UserSession) Used() time.Time {
	if s.LastUsedAt != nil {
		return *s.LastUsedAt
	}
	return s.CreatedAt
}

// UserSessions lists the caller's sessions, the most recently used first, and returns the
// cursor of the next page, "" at the end.
func (db *DB) UserSessions(ctx context.Context, caller workspace.Caller, page Page) (list []UserSession, next string, err error) {
	const verb = "list sessions"
	if !workspace.ValidID(caller.UserID) {
		return nil, "", forbidden()
	}
	const used = `COALESCE(s.last_used_at, s.created_at)`
	var q where
	q.add(`s.user_id = ?`, caller.UserID)
	q.add(`s.expires_at > now()`)
	if page.Cursor != "" {
		p, err := parseCursor(page.Cursor)
		if err != nil {
			return nil, "", err
		}
		q.add(`(`+used+`, s.id) < (?, ?)`, p.At, p.ID)
	}
	rows, err := db.pool.Query(ctx, fmt.Sprintf(`
		SELECT s.id, s.hash, s.user_agent, s.address, COALESCE(i.issuer, ''), s.created_at, s.expires_at, s.last_used_at
		FROM sessions s LEFT JOIN user_identities i ON i.id = s.identity_id
		WHERE %s ORDER BY %s DESC, s.id DESC LIMIT %d`, strings.Join(q.parts, ` AND `), used, page.Size()+1), q.args...)
	if err != nil {
		return nil, "", failed(verb, err)
	}
	list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s UserSession, err error) {
		return s, row.Scan(&s.ID, &s.Hash, &s.UserAgent, &s.Address, &s.Issuer, &s.CreatedAt, &s.ExpiresAt, &s.LastUsedAt)
	})
	if err != nil {
		return nil, "", failed(verb, err)
	}
	list, next = cutPage(list, page.Size(), func(s UserSession) place { return place{At: s.Used(), ID: s.ID} })
	return list, next, nil
}

// EndSession ends one of the caller's sessions. CodeNotFound; CodeForbidden for a
// session of another user.
func (db *DB) EndSession(ctx context.Context, caller workspace.Caller, id string) error {
	if !workspace.ValidID(id) {
		return notFound("session")
	}
	return db.tx(ctx, "end a session", func(tx pgx.Tx) error {
		var owner string
		err := tx.QueryRow(ctx, `SELECT user_id FROM sessions WHERE id = $1 FOR UPDATE`, id).Scan(&owner)
		switch {
		case missing(err):
			return notFound("session")
		case err != nil:
			return err
		case !caller.Owns(owner):
			return forbidden()
		}
		if _, err := tx.Exec(ctx, `DELETE FROM sessions WHERE id = $1`, id); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditSessionEnd, id, nil)
	})
}

// EndOtherSessions ends the caller's sessions except the one that the caller came
// with, and returns how many there were.
func (db *DB) EndOtherSessions(ctx context.Context, caller workspace.Caller) (ended int64, err error) {
	if !workspace.ValidID(caller.UserID) {
		return 0, forbidden()
	}
	err = db.tx(ctx, "end the other sessions", func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `DELETE FROM sessions WHERE user_id = $1 AND encode(hash, 'hex') <> $2`, caller.UserID, caller.Session)
		if ended = tag.RowsAffected(); err != nil || ended == 0 {
			return err
		}
		return audit(ctx, tx, caller, AuditSessionEnd, caller.UserID, map[string]any{"ended": ended})
	})
	return ended, err
}

// TouchSession records when a session was last used, to the minute and never
// backwards.
func (db *DB) TouchSession(ctx context.Context, hash []byte, at time.Time) error {
	_, err := db.pool.Exec(ctx, `
		UPDATE sessions SET last_used_at = $2
		WHERE hash = $1 AND (last_used_at IS NULL OR last_used_at < $2::timestamptz - interval '50 seconds')`, hash, at)
	return failed("record the use of a session", err)
}

// ValidSessions returns which of the hashes are those of sessions, also on the hosts of
// workspaces, API tokens or SSH keys that are valid now.
func (db *DB) ValidSessions(ctx context.Context, hashes [][]byte) ([][]byte, error) {
	if len(hashes) == 0 {
		return nil, nil
	}
	const verb = "check sessions"
	rows, err := db.pool.Query(ctx, `
		SELECT s.hash FROM sessions s JOIN users u ON u.id = s.user_id
		WHERE s.hash = ANY ($1) AND s.expires_at > now() AND u.active
		UNION
		SELECT h.hash FROM workspace_sessions h JOIN sessions s ON s.hash = h.session_hash JOIN users u ON u.id = s.user_id
		WHERE h.hash = ANY ($1) AND s.expires_at > now() AND u.active
		UNION
		SELECT t.hash FROM api_tokens t JOIN users u ON u.id = t.user_id
		WHERE t.hash = ANY ($1) AND (t.expires_at IS NULL OR t.expires_at > now()) AND u.active
		UNION
		SELECT k.hash FROM ssh_keys k JOIN users u ON u.id = k.user_id
		WHERE k.hash = ANY ($1) AND (k.expires_at IS NULL OR k.expires_at > now()) AND u.active`, hashes)
	if err != nil {
		return nil, failed(verb, err)
	}
	valid, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	return valid, failed(verb, err)
}

// DeleteExpiredSessions removes the expired sessions and returns their number.
func (db *DB) DeleteExpiredSessions(ctx context.Context) (int64, error) {
	// Skip sessions that another transaction is ending.
	tag, err := db.pool.Exec(ctx, `
		DELETE FROM sessions WHERE hash IN (
			SELECT hash FROM sessions WHERE expires_at <= now() FOR UPDATE SKIP LOCKED)`)
	return tag.RowsAffected(), failed("remove expired sessions", err)
}
