package postgres

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

const (
	// maxProgramLogins and maxProgramLoginsPerAddress bound the logins that wait for a user:
	// anyone can begin one.
	maxProgramLogins           = 5000
	maxProgramLoginsPerAddress = 50 // that name no account; and the same number that do
	// maxProgramLoginsPerAccount bounds those of an address that name the same account.
	maxProgramLoginsPerAccount = 8
	// maxSessionCodes bounds the codes that a session can leave unused.
	maxSessionCodes = 16
	// PollInterval is how often a program may ask for the user's answer.
	PollInterval = 5 * time.Second
)

// ProgramLogin is a login of the command line.
type ProgramLogin struct {
	Hash      []byte // SHA-256 of what the program redeems
	UserCode  string // empty: the browser is on the program's machine
	Username  string // of the account that alone can allow it; empty: any, or UserCode is empty
	Challenge []byte // SHA-256 of the program's secret; nil with UserCode
	Name      string // of the program's machine, as it says
	Address   string // of the program, for display and limits
	CreatedAt time.Time
	Lasts     time.Duration // from now on, for a new one
	// TokenExpires is until when the program's token is valid. It is set when the login
	// begins, so that the user sees what is allowed.
	TokenExpires time.Time
}

// BeginDeviceLogin stores a login that waits for a user to type in its UserCode.
// CodeTooManyAttempts if too many wait. One with a Username is not refused because of others from
// its address: it ends the oldest of that account there, or of all accounts.
func (db *DB) BeginDeviceLogin(ctx context.Context, l ProgramLogin) error {
	return db.tx(ctx, "begin a login by code", func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM program_logins WHERE expires_at <= now()`); err != nil {
			return err
		}
		if l.Username != "" {
			_, err := tx.Exec(ctx, `
				DELETE FROM program_logins WHERE id IN (
					SELECT id FROM (
						SELECT id, username_key, row_number() OVER newest AS of_address, row_number() OVER (PARTITION BY username_key ORDER BY created_at DESC) AS of_account
						FROM program_logins WHERE user_code IS NOT NULL AND username_key IS NOT NULL AND address = $1
						WINDOW newest AS (ORDER BY created_at DESC)) l
					WHERE of_address >= $2 OR username_key = $3 AND of_account >= $4)`,
				l.Address, maxProgramLoginsPerAddress, UsernameKey(l.Username), maxProgramLoginsPerAccount)
			if err != nil {
				return err
			}
		}
		var all, of int
		err := tx.QueryRow(ctx, `
			SELECT count(*), count(*) FILTER (WHERE address = $1 AND username_key IS NULL) FROM program_logins WHERE user_code IS NOT NULL`,
			l.Address).Scan(&all, &of)
		if err != nil {
			return err
		}
		if all >= maxProgramLogins || l.Username == "" && of >= maxProgramLoginsPerAddress {
			e := workspace.Errorf(workspace.CodeTooManyAttempts, "Too many logins wait for their users. Try again in a few minutes.")
			if all < maxProgramLogins {
				e = workspace.Errorf(workspace.CodeTooManyAttempts, "Too many logins from this address wait for their users. Name your account (username), or try again in a few minutes.")
			}
			e.Details = map[string]any{"retry_after_seconds": 60}
			return e
		}
		return insertProgramLogin(ctx, tx, l, nil)
	})
}

func insertProgramLogin(ctx context.Context, tx pgx.Tx, l ProgramLogin, session []byte) error {
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("make an id: %w", err)
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO program_logins (id, hash, user_code, challenge, name, address, session_hash, token_expires_at, expires_at, username_key)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now() + $9, $10)`,
		id.String(), l.Hash, nullable(l.UserCode), l.Challenge, clean(l.Name), clean(l.Address), session, l.TokenExpires, l.Lasts, nullable(UsernameKey(l.Username)))
	return err
}

// AllowBrowserLogin stores the code by which a program on the caller's machine logs in.
// CodeUnauthenticated if the caller's session has ended.
func (db *DB) AllowBrowserLogin(ctx context.Context, caller workspace.Caller, l ProgramLogin) error {
	return db.tx(ctx, "allow a login by browser", func(tx pgx.Tx) error {
		session, err := liveSession(ctx, tx, caller)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			DELETE FROM program_logins WHERE expires_at <= now() OR session_hash = $1 AND user_code IS NULL AND id IN (
				SELECT id FROM program_logins WHERE session_hash = $1 AND user_code IS NULL ORDER BY created_at DESC OFFSET $2)`, session, maxSessionCodes-1)
		if err != nil {
			return err
		}
		return insertProgramLogin(ctx, tx, l, session)
	})
}

// liveSession returns the hash of the caller's session, which it locks against its end.
func liveSession(ctx context.Context, tx pgx.Tx, caller workspace.Caller) ([]byte, error) {
	var hash []byte
	err := tx.QueryRow(ctx, `
		SELECT s.hash FROM sessions s JOIN users u ON u.id = s.user_id
		WHERE s.hash = decode($1, 'hex') AND s.user_id = $2 AND s.expires_at > now() AND u.active FOR KEY SHARE OF s`,
		caller.Session, caller.UserID).Scan(&hash)
	if missing(err) {
		err = unauthenticated()
	}
	return hash, err
}

// mayAllow is the condition that the user $2 can allow a login.
const mayAllow = `(username_key IS NULL OR username_key = (SELECT username_key FROM users WHERE id = $2))`

// DeviceLogin returns the login that waits for the caller with this code; CodeNotFound.
func (db *DB) DeviceLogin(ctx context.Context, caller workspace.Caller, userCode string) (ProgramLogin, error) {
	var l ProgramLogin
	err := db.pool.QueryRow(ctx, `
		SELECT user_code, name, address, created_at, token_expires_at FROM program_logins
		WHERE user_code = $1 AND session_hash IS NULL AND expires_at > now() AND `+mayAllow, clean(userCode), caller.UserID).Scan(&l.UserCode, &l.Name, &l.Address, &l.CreatedAt, &l.TokenExpires)
	if missing(err) {
		return l, notFound("login")
	}
	return l, failed("read a login by code", err)
}

// AnswerDeviceLogin allows the login with this code for the caller, or ends it. CodeNotFound
// if none waits; CodeUnauthenticated if the caller's session has ended.
func (db *DB) AnswerDeviceLogin(ctx context.Context, caller workspace.Caller, userCode string, allow bool) error {
	return db.tx(ctx, "answer a login by code", func(tx pgx.Tx) error {
		session, err := liveSession(ctx, tx, caller)
		if err != nil {
			return err
		}
		sql := `UPDATE program_logins SET session_hash = $3 WHERE user_code = $1 AND session_hash IS NULL AND expires_at > now() AND ` + mayAllow
		if !allow {
			sql = `DELETE FROM program_logins WHERE user_code = $1 AND session_hash IS NULL AND $3::bytea IS NOT NULL AND ` + mayAllow
		}
		tag, err := tx.Exec(ctx, sql, clean(userCode), caller.UserID, session)
		if err == nil && tag.RowsAffected() == 0 {
			return notFound("login")
		}
		return err
	})
}

// RedeemProgramLogin ends a login that a user has allowed, and returns the user, the
// program's name and until when its token may be valid. proof is the SHA-256 of the program's secret, nil for a login by code.
// CodeLoginPending before the user's answer; CodeTooManyAttempts for a program that asks too
// often; CodeUnauthenticated if there is no such login, because it has expired, was refused
// or redeemed, or the user's session has ended. A login by browser ends with a wrong proof.
func (db *DB) RedeemProgramLogin(ctx context.Context, hash, proof []byte) (caller workspace.Caller, name string, expires time.Time, err error) {
	var refused error
	err = db.tx(ctx, "redeem a login of a program", func(tx pgx.Tx) error {
		refused, caller = nil, workspace.Caller{}
		var id string
		var challenge, session []byte
		var early bool
		err := tx.QueryRow(ctx, `
			SELECT id, name, token_expires_at, challenge, session_hash, COALESCE(polled_at > now() - $2::interval, false)
			FROM program_logins WHERE hash = $1 AND expires_at > now() FOR UPDATE`, hash, PollInterval-time.Second).Scan(&id, &name, &expires, &challenge, &session, &early)
		if missing(err) {
			return loginOver()
		}
		if err != nil {
			return err
		}
		if session == nil {
			refused = workspace.Errorf(workspace.CodeLoginPending, "The user has not answered yet.")
			if early {
				e := workspace.Errorf(workspace.CodeTooManyAttempts, "Wait between two attempts.")
				e.Details = map[string]any{"retry_after_seconds": int(PollInterval / time.Second)}
				refused = e
			}
			_, err := tx.Exec(ctx, `UPDATE program_logins SET polled_at = now() WHERE id = $1`, id)
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM program_logins WHERE id = $1`, id); err != nil {
			return err
		}
		if !bytes.Equal(challenge, proof) {
			refused = loginOver() // the end of the code is kept
			return nil
		}
		err = tx.QueryRow(ctx, `
			SELECT u.id, u.username, u.admin, encode(s.hash, 'hex') FROM sessions s JOIN users u ON u.id = s.user_id
			WHERE s.hash = $1 AND s.expires_at > now() AND u.active`, session).Scan(&caller.UserID, &caller.Username, &caller.Admin, &caller.Session)
		if missing(err) {
			refused = loginOver()
			return nil
		}
		return err
	})
	if err == nil {
		err = refused
	}
	return caller, name, expires, err
}

func loginOver() error {
	return workspace.Errorf(workspace.CodeUnauthenticated, "The login has expired, or was refused. Begin again.")
}

// DeleteExpiredProgramLogins removes the expired logins.
func (db *DB) DeleteExpiredProgramLogins(ctx context.Context) error {
	_, err := db.pool.Exec(ctx, `DELETE FROM program_logins WHERE expires_at <= now()`)
	return failed("remove expired logins of programs", err)
}
