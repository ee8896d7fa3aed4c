package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Actions in the audit log. Their target is the user.
const (
	AuditPasskeyAdd    = "passkey.add"
	AuditPasskeyRename = "passkey.rename"
	AuditPasskeyRemove = "passkey.remove"
	AuditPasskeyReset  = "passkey.reset"  // all of a user's were removed
	AuditPasskeyCloned = "passkey.cloned" // a login was refused, since the counter did not increase
	AuditRecoveryCodes = "passkey.recovery_codes"
	AuditRecoveryUsed  = "passkey.recovery_code_used"
)

const (
	// MaxPasskeys bounds the passkeys of a user.
	MaxPasskeys = 20
	// maxPasskeyAttempts bounds the logins of a user that wait for a passkey; each took a
	// right password. The oldest ones give way.
	maxPasskeyAttempts = 10
)

// Passkey is the second factor of a user.
type Passkey struct {
	ID         string
	Credential []byte // by which browsers name it
	Party      string // the host that it was made for
	Record     []byte // as package passkey encodes it
	Name       string
	CreatedAt  time.Time
	LastUsedAt *time.Time
	// ClonedAt is when its counter did not increase, so that there may be a copy of it;
	// nil: never.
	ClonedAt *time.Time
}

const passkeyColumns = `k.id, k.credential_id, k.party, k.record, k.name, k.created_at, k.last_used_at, k.cloned_at`

func toPasskey(row pgx.CollectableRow) (k Passkey, err error) {
	err = row.Scan(&k.ID, &k.Credential, &k.Party, &k.Record, &k.Name, &k.CreatedAt, &k.LastUsedAt, &k.ClonedAt)
	return k, err
}

func passkeysOf(ctx context.Context, in querier, userID string) ([]Passkey, error) {
	rows, err := in.Query(ctx, `SELECT `+passkeyColumns+` FROM passkeys k WHERE k.user_id = $1 ORDER BY k.created_at, k.id`, userID)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, toPasskey)
}

// Passkeys lists the caller's passkeys, the oldest first, and returns how many recovery
// codes are left.
func (db *DB) Passkeys(ctx context.Context, caller workspace.Caller) (list []Passkey, codes int, err error) {
	const verb = "list passkeys"
	if !workspace.ValidID(caller.UserID) {
		return nil, 0, forbidden()
	}
	if list, err = passkeysOf(ctx, db.pool, caller.UserID); err != nil {
		return nil, 0, failed(verb, err)
	}
	err = db.pool.QueryRow(ctx, `SELECT count(*) FROM recovery_codes WHERE user_id = $1`, caller.UserID).Scan(&codes)
	return list, codes, failed(verb, err)
}

// HasPasskeys reports whether a user has a passkey.
func (db *DB) HasPasskeys(ctx context.Context, userID string) (has bool, err error) {
	if !workspace.ValidID(userID) {
		return false, notFound("user")
	}
	err = db.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM passkeys WHERE user_id = $1)`, userID).Scan(&has)
	return has, failed("look for passkeys", err)
}

// PasskeyAttempt is a login that waits for a passkey, or the registration of one in a
// session.
type PasskeyAttempt struct {
	Hash   []byte // of the login's secret, or of the session
	UserID string
	Login  bool
	Proof  string // PasswordProof of the password that was verified
	Name   string // of the new passkey
	Lasts  time.Duration
}

// PendingPasskey is an attempt with what its answer is compared with.
type PendingPasskey struct {
	PasskeyAttempt
	User     User
	Passkeys []Passkey
	Codes    [][]byte // SHA-256 of the recovery codes
}

// BeginPasskey stores an attempt; a session has one at a time. CodeUnauthenticated if the
// password has changed since it was verified, or the session has ended.
func (db *DB) BeginPasskey(ctx context.Context, a PasskeyAttempt) error {
	if !workspace.ValidID(a.UserID) {
		return notFound("user")
	}
	return db.tx(ctx, "begin an attempt with a passkey", func(tx pgx.Tx) error {
		var u User
		err := tx.QueryRow(ctx, `
			SELECT `+userColumns+` FROM users u WHERE id = $1 AND active
				AND ($2 OR EXISTS (SELECT FROM sessions s WHERE s.user_id = u.id AND s.hash = $3 AND s.expires_at > now())) FOR NO KEY UPDATE`,
			a.UserID, a.Login, a.Hash).Scan(u.targets()...)
		if missing(err) || err == nil && PasswordProof(u.PasswordHash) != a.Proof {
			return unauthenticated()
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `
			DELETE FROM passkey_attempts WHERE user_id = $1 AND (expires_at <= now() OR $3 AND login AND hash IN (
				SELECT hash FROM passkey_attempts WHERE user_id = $1 AND login ORDER BY created_at DESC OFFSET $2))`,
			a.UserID, maxPasskeyAttempts-1, a.Login); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO passkey_attempts AS a (hash, user_id, login, proof, name, expires_at) VALUES ($1, $2, $3, $4, $5, now() + $6::interval)
			ON CONFLICT (hash) DO UPDATE SET proof = EXCLUDED.proof, name = EXCLUDED.name, challenge = NULL, expires_at = EXCLUDED.expires_at
			WHERE a.user_id = EXCLUDED.user_id AND NOT a.login AND NOT EXCLUDED.login`,
			a.Hash, a.UserID, a.Login, a.Proof, clean(a.Name), a.Lasts)
		return err
	})
}

// PendingPasskey reads an attempt that waits for its answer. CodeUnauthenticated if there is
// none, or its user is disabled or has another password meanwhile.
func (db *DB) PendingPasskey(ctx context.Context, hash []byte, login bool) (PendingPasskey, error) {
	p, _, err := pendingPasskey(ctx, db.pool, hash, login)
	return p, failed("read an attempt with a passkey", err)
}

func pendingPasskey(ctx context.Context, in querier, hash []byte, login bool) (p PendingPasskey, challenge []byte, err error) {
	p.Hash, p.Login = hash, login
	err = in.QueryRow(ctx, `
		SELECT a.user_id, a.proof, a.name, a.challenge, `+userColumns+` FROM passkey_attempts a JOIN users u ON u.id = a.user_id
		WHERE a.hash = $1 AND a.login = $2 AND a.expires_at > now() AND u.active`, hash, login).
		Scan(append([]any{&p.UserID, &p.Proof, &p.Name, &challenge}, p.User.targets()...)...)
	if missing(err) || err == nil && PasswordProof(p.User.PasswordHash) != p.Proof {
		return p, nil, unauthenticated()
	}
	if err != nil {
		return p, nil, err
	}
	if p.Passkeys, err = passkeysOf(ctx, in, p.UserID); err != nil {
		return p, nil, err
	}
	rows, err := in.Query(ctx, `SELECT hash FROM recovery_codes WHERE user_id = $1`, p.UserID)
	if err != nil {
		return p, nil, err
	}
	p.Codes, err = pgx.CollectRows(rows, pgx.RowTo[[]byte])
	return p, challenge, err
}

// ChallengePasskey gives an attempt its challenge, in place of an earlier one, and the name
// of the new passkey; empty: it stays. CodeUnauthenticated if there is no such attempt.
func (db *DB) ChallengePasskey(ctx context.Context, hash []byte, login bool, challenge []byte, name string) error {
	tag, err := db.pool.Exec(ctx, `
		UPDATE passkey_attempts SET challenge = $3, name = COALESCE(NULLIF($4, ''), name) WHERE hash = $1 AND login = $2 AND expires_at > now()`,
		hash, login, challenge, clean(name))
	if err == nil && tag.RowsAffected() == 0 {
		return unauthenticated()
	}
	return failed("challenge a passkey", err)
}

// CancelPasskey ends a login that waits for a passkey. It is no error if there is none.
func (db *DB) CancelPasskey(ctx context.Context, hash []byte) error {
	_, err := db.pool.Exec(ctx, `DELETE FROM passkey_attempts WHERE hash = $1 AND login`, hash)
	return failed("cancel a login with a passkey", err)
}

// PasskeyVerdict is what an answer leads to. One of Add, Use and Code is set.
type PasskeyVerdict struct {
	Add    *Passkey // a new passkey
	Use    *Passkey // with its new record
	Cloned bool     // Use may be a copy: the attempt goes on without it
	Code   []byte   // SHA-256 of a recovery code, which ends
	// Codes are the hashes of new recovery codes, which replace all others; nil: they stay.
	Codes [][]byte
}

// PasskeyAnswer is an answer to an attempt.
type PasskeyAnswer struct {
	Hash  []byte
	Login bool
	// Judge decides with the challenge, which no other answer gets; nil: none was made since
	// the last answer. Its error is that of AnswerPasskey.
	Judge func(p PendingPasskey, challenge []byte) (PasskeyVerdict, error)
	// Of the session that a login begins.
	Session []byte
	Expires time.Time
	From    Client
}

// AnswerPasskey ends an attempt as Judge decides: a new passkey is added, and a login begins its
// session. A challenge is used up in any case. Errors: that of Judge; CodeUnauthenticated if there
// is no such attempt; CodeKeyTaken and CodeQuotaExceeded for a new passkey. A possible copy is
// recorded, and is no error.
func (db *DB) AnswerPasskey(ctx context.Context, in PasskeyAnswer) (User, PasskeyVerdict, error) {
	var p PendingPasskey
	var v PasskeyVerdict
	var refused error
	err := db.tx(ctx, "answer an attempt with a passkey", func(tx pgx.Tx) error {
		// The user's row first, as in all transactions that change both.
		var user string
		err := tx.QueryRow(ctx, `
			SELECT u.id FROM users u WHERE u.id = (SELECT user_id FROM passkey_attempts WHERE hash = $1 AND login = $2) FOR NO KEY UPDATE`,
			in.Hash, in.Login).Scan(&user)
		if missing(err) {
			return unauthenticated()
		}
		if err != nil {
			return err
		}
		var challenge []byte
		if p, challenge, err = pendingPasskey(ctx, tx, in.Hash, in.Login); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE passkey_attempts SET challenge = NULL WHERE hash = $1`, in.Hash); err != nil {
			return err
		}
		if v, refused = in.Judge(p, challenge); refused != nil {
			return nil // the end of the challenge is kept
		}
		if v.Cloned {
			return passkeyCloned(ctx, tx, p.User, in.From, *v.Use)
		}
		by := workspace.Caller{UserID: p.UserID, Username: p.User.Username, Address: in.From.Address}
		factor, err := applyVerdict(ctx, tx, by, p, v)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM passkey_attempts WHERE hash = $1`, in.Hash); err != nil || !in.Login {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE users SET failed_logins = 0, locked_until = NULL WHERE id = $1 AND (failed_logins <> 0 OR locked_until IS NOT NULL)`, p.UserID); err != nil {
			return err
		}
		return insertSession(ctx, tx, newSession{hash: in.Session, user: p.User, expires: in.Expires, from: in.From, factor: factor})
	})
	if err == nil {
		err = refused
	}
	return p.User, v, err
}

// applyVerdict changes the passkeys and codes, and returns the factor for the audit log.
func applyVerdict(ctx context.Context, tx pgx.Tx, by workspace.Caller, p PendingPasskey, v PasskeyVerdict) (factor map[string]any, err error) {
	switch {
	case v.Add != nil:
		factor = map[string]any{"passkey": v.Add.Name}
		err = insertPasskey(ctx, tx, by, p, *v.Add)
	case v.Use != nil:
		factor = map[string]any{"passkey": v.Use.Name}
		_, err = tx.Exec(ctx, `UPDATE passkeys SET record = $2, last_used_at = now() WHERE id = $1`, v.Use.ID, v.Use.Record)
	default:
		factor = map[string]any{"recovery_code": true}
		if _, err = tx.Exec(ctx, `DELETE FROM recovery_codes WHERE user_id = $1 AND hash = $2`, p.UserID, v.Code); err != nil {
			return nil, err
		}
		err = audit(ctx, tx, by, AuditRecoveryUsed, p.UserID, map[string]any{"left": len(p.Codes) - 1})
	}
	if err != nil || v.Codes == nil {
		return factor, err
	}
	return factor, replaceCodes(ctx, tx, by, p.UserID, v.Codes)
}

func insertPasskey(ctx context.Context, tx pgx.Tx, by workspace.Caller, p PendingPasskey, k Passkey) error {
	if len(p.Passkeys) >= MaxPasskeys {
		e := workspace.Errorf(workspace.CodeQuotaExceeded, "You have %d passkeys, which is the limit.", len(p.Passkeys))
		e.Details = map[string]any{"limit": MaxPasskeys, "used": len(p.Passkeys), "type": "passkeys"}
		return e
	}
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("make an id: %w", err)
	}
	_, err = tx.Exec(ctx, `INSERT INTO passkeys (id, user_id, credential_id, party, record, name) VALUES ($1, $2, $3, $4, $5, $6)`,
		id.String(), p.UserID, k.Credential, k.Party, k.Record, clean(k.Name))
	if violates(err, "passkeys_credential") {
		return workspace.Errorf(workspace.CodeKeyTaken, "This passkey is registered already.")
	}
	if err != nil {
		return err
	}
	return audit(ctx, tx, by, AuditPasskeyAdd, p.UserID, map[string]any{"username": p.User.Username, "passkey": k.Name})
}

func passkeyCloned(ctx context.Context, tx pgx.Tx, u User, from Client, k Passkey) error {
	if _, err := tx.Exec(ctx, `UPDATE passkeys SET cloned_at = now() WHERE id = $1`, k.ID); err != nil {
		return err
	}
	by := workspace.Caller{UserID: u.ID, Username: u.Username, Address: from.Address}
	return audit(ctx, tx, by, AuditPasskeyCloned, u.ID, map[string]any{"username": u.Username, "passkey": k.Name})
}

func replaceCodes(ctx context.Context, tx pgx.Tx, by workspace.Caller, user string, hashes [][]byte) error {
	if _, err := tx.Exec(ctx, `DELETE FROM recovery_codes WHERE user_id = $1`, user); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO recovery_codes (user_id, hash) SELECT $1, unnest($2::bytea[])`, user, hashes); err != nil {
		return err
	}
	return audit(ctx, tx, by, AuditRecoveryCodes, user, map[string]any{"codes": len(hashes)})
}

// ReplaceRecoveryCodes gives the caller new recovery codes, of which it gets the SHA-256.
// proof is as for LinkIdentity. CodeNotFound for a user without a passkey.
func (db *DB) ReplaceRecoveryCodes(ctx context.Context, caller workspace.Caller, proof string, hashes [][]byte) error {
	return db.withPasskeys(ctx, "replace the recovery codes", caller, proof, func(tx pgx.Tx, _ User, list []Passkey) error {
		if len(list) == 0 {
			return notFound("passkey")
		}
		return replaceCodes(ctx, tx, caller, caller.UserID, hashes)
	})
}

// withPasskeys changes the passkeys of the caller, whose password was verified.
func (db *DB) withPasskeys(ctx context.Context, verb string, caller workspace.Caller, proof string, f func(pgx.Tx, User, []Passkey) error) error {
	if !workspace.ValidID(caller.UserID) {
		return forbidden()
	}
	return db.tx(ctx, verb, func(tx pgx.Tx) error {
		var u User
		err := tx.QueryRow(ctx, `SELECT `+userColumns+` FROM users u WHERE id = $1 AND active FOR NO KEY UPDATE`, caller.UserID).Scan(u.targets()...)
		if missing(err) || err == nil && PasswordProof(u.PasswordHash) != proof {
			return unauthenticated()
		}
		if err != nil {
			return err
		}
		list, err := passkeysOf(ctx, tx, u.ID)
		if err != nil {
			return err
		}
		return f(tx, u, list)
	})
}

// RenamePasskey renames a passkey of the caller. CodeNotFound, also for another user's.
func (db *DB) RenamePasskey(ctx context.Context, caller workspace.Caller, id, name string) error {
	if !workspace.ValidID(id) || !workspace.ValidID(caller.UserID) {
		return notFound("passkey")
	}
	return db.tx(ctx, "rename a passkey", func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE passkeys SET name = $3 WHERE id = $1 AND user_id = $2`, id, caller.UserID, clean(name))
		if err == nil && tag.RowsAffected() == 0 {
			return notFound("passkey")
		}
		if err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditPasskeyRename, caller.UserID, map[string]any{"passkey": name})
	})
}

// RemovePasskey removes a passkey of the caller; with the last one the recovery codes end.
// proof is as for LinkIdentity. CodeNotFound, also for another user's; CodeNotSupported for
// the last one if keepOne.
func (db *DB) RemovePasskey(ctx context.Context, caller workspace.Caller, proof, id string, keepOne bool) error {
	return db.withPasskeys(ctx, "remove a passkey", caller, proof, func(tx pgx.Tx, u User, list []Passkey) error {
		for _, k := range list {
			if k.ID != id {
				continue
			}
			if len(list) == 1 && keepOne {
				return workspace.Errorf(workspace.CodeNotSupported, "This server requires a passkey. Add another one before you remove this one.")
			}
			if _, err := tx.Exec(ctx, `DELETE FROM passkeys WHERE id = $1`, id); err != nil {
				return err
			}
			if len(list) == 1 {
				if _, err := tx.Exec(ctx, `DELETE FROM recovery_codes WHERE user_id = $1`, u.ID); err != nil {
					return err
				}
			}
			return audit(ctx, tx, caller, AuditPasskeyRemove, u.ID, map[string]any{"username": u.Username, "passkey": k.Name})
		}
		return notFound("passkey")
	})
}

// RemovePasskeys removes all passkeys and recovery codes of another user, for an administrator.
// The user's sessions go on. CodeNotFound for a user who does not exist. CodeInvalid for the
// caller's own, for whose removal the password is needed (package auth): someone who has a token or
// a session, and the password, must not turn the second factor off.
func (db *DB) RemovePasskeys(ctx context.Context, caller workspace.Caller, id string) (Account, error) {
	var out Account
	err := db.tx(ctx, "remove the passkeys of a user", func(tx pgx.Tx) error {
		if _, err := administrators(ctx, tx, caller); err != nil {
			return err
		}
		if !workspace.ValidID(id) {
			return notFound("user")
		}
		if id == caller.UserID {
			return workspace.Errorf(workspace.CodeInvalid, "Remove your own passkeys with your password, on the page \"Password and access\".")
		}
		var name string
		err := tx.QueryRow(ctx, `SELECT username FROM users WHERE id = $1 AND removed_at IS NULL FOR NO KEY UPDATE`, id).Scan(&name)
		if missing(err) {
			return notFound("user")
		}
		if err != nil {
			return err
		}
		n, err := deletePasskeys(ctx, tx, id)
		if err != nil {
			return err
		}
		if n > 0 {
			if err := audit(ctx, tx, caller, AuditPasskeyReset, id, map[string]any{"username": name, "passkeys": n}); err != nil {
				return err
			}
		}
		out, err = db.account(ctx, tx, id)
		return err
	})
	return out, err
}

// deletePasskeys removes the second factors of a user, and returns the number of passkeys.
func deletePasskeys(ctx context.Context, tx pgx.Tx, user string) (int64, error) {
	tag, err := tx.Exec(ctx, `DELETE FROM passkeys WHERE user_id = $1`, user)
	if err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, `DELETE FROM recovery_codes WHERE user_id = $1`, user)
	return tag.RowsAffected(), err
}

// DeleteExpiredPasskeyAttempts removes the expired attempts.
func (db *DB) DeleteExpiredPasskeyAttempts(ctx context.Context) error {
	_, err := db.pool.Exec(ctx, `DELETE FROM passkey_attempts WHERE expires_at <= now()`)
	return failed("remove expired attempts with passkeys", err)
}
