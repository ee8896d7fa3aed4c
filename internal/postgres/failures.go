package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// LoginFailureAge is how long failed logins count. If there is none for so long, the next
// one is the first again.
const LoginFailureAge = 24 * time.Hour

// LockRule returns the end of the lockout for a number of failed logins and the database's
// time; nil: not locked.
type LockRule func(failures int, now time.Time) *time.Time

// RecordLoginFailure counts a failed login of a user. Concurrent failures all count.
func (db *DB) RecordLoginFailure(ctx context.Context, userID string, rule LockRule) error {
	if !workspace.ValidID(userID) {
		return notFound("user")
	}
	return db.recordFailure(ctx, rule, userID,
		`SELECT failed_logins, failed_at, clock_timestamp() FROM users WHERE id = $1 FOR NO KEY UPDATE`,
		`UPDATE users SET failed_logins = $2, failed_at = $3, locked_until = $4 WHERE id = $1`)
}

// nameHash is the hash of the name $1 in name_failures. Running servers have made the row of
// installation.
const nameHash = `(SELECT sha256(convert_to(concat((SELECT failure_key FROM installation), $1::text), 'UTF8')))`

// RecordNameFailure is RecordLoginFailure for a name of no user who can log in with a password.
// It takes as many statements, and forgets another name if too many are counted.
func (db *DB) RecordNameFailure(ctx context.Context, name string, rule LockRule) error {
	return db.recordFailure(ctx, rule, UsernameKey(name), `
		INSERT INTO name_failures AS f (hash) VALUES (`+nameHash+`)
		ON CONFLICT (slot) DO UPDATE SET hash = EXCLUDED.hash, failures = CASE WHEN f.hash = EXCLUDED.hash THEN f.failures ELSE 0 END
		RETURNING failures, failed_at, clock_timestamp()`,
		`UPDATE name_failures SET failures = $2, failed_at = $3, locked_until = $4 WHERE hash = `+nameHash)
}

// recordFailure counts a failed login of key, which is $1 of both statements: lock locks the row
// and reads its failures, the time of the last one and the present time; set writes the new
// failures, time and end of the lockout.
func (db *DB) recordFailure(ctx context.Context, rule LockRule, key, lock, set string) error {
	return db.tx(ctx, "record a failed login", func(tx pgx.Tx) error {
		var failures int
		var last *time.Time
		var now time.Time
		err := tx.QueryRow(ctx, lock, key).Scan(&failures, &last, &now)
		if missing(err) {
			return notFound("user")
		}
		if err != nil {
			return err
		}
		if last != nil && now.Sub(*last) >= LoginFailureAge {
			failures = 0
		}
		failures++
		_, err = tx.Exec(ctx, set, key, failures, now, rule(failures, now))
		return err
	})
}

// NameLockedUntil returns the end of the lockout of a name by RecordNameFailure; nil: it is not
// locked.
func (db *DB) NameLockedUntil(ctx context.Context, name string) (*time.Time, error) {
	var until *time.Time
	err := db.pool.QueryRow(ctx, `SELECT max(locked_until) FROM name_failures WHERE hash = `+nameHash, UsernameKey(name)).Scan(&until)
	return until, failed("read the lockout of a name", err)
}

// DeleteOldNameFailures removes the failed logins with names that count no more.
func (db *DB) DeleteOldNameFailures(ctx context.Context) error {
	_, err := db.pool.Exec(ctx, `DELETE FROM name_failures WHERE failed_at <= clock_timestamp() - $1::interval`, LoginFailureAge)
	return failed("remove old failed logins", err)
}

// ResetLoginFailures sets the count of failed logins to 0 and ends a lockout.
func (db *DB) ResetLoginFailures(ctx context.Context, userID string) error {
	if !workspace.ValidID(userID) {
		return notFound("user")
	}
	_, err := db.pool.Exec(ctx, `
		UPDATE users SET failed_logins = 0, locked_until = NULL
		WHERE id = $1 AND (failed_logins <> 0 OR locked_until IS NOT NULL)`, userID)
	return failed("reset failed logins", err)
}
