package postgres

import (
	"context"
	"time"

	"codehub/api"
)

// GitGrant is a connection of the kind api.GitOAuth. Its times are relative, by the database's clock.
type GitGrant struct {
	GitTokens
	ValidFor *time.Duration // of the access token; nil: unknown or unlimited
	Age      time.Duration  // of the tokens
}

const selectGrant = `
	SELECT c.user_id, c.access_token, c.refresh_token,
		extract(epoch FROM c.expires_at - clock_timestamp())::float8, extract(epoch FROM clock_timestamp() - c.changed_at)::float8, ` + gitColumns + `
	FROM git_connections c JOIN users u ON u.id = c.user_id AND u.active WHERE c.id = $1 AND c.kind = '` + api.GitOAuth + `'`

func gitGrant(ctx context.Context, in querier, id string) (g GitGrant, err error) {
	rows, err := in.Query(ctx, selectGrant, id)
	if err != nil {
		return g, err
	}
	defer rows.Close()
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return g, err
		}
		return g, notFound("connection")
	}
	var left *float64
	var age float64
	if err := rows.Scan(append([]any{&g.UserID, &g.Access, &g.Refresh, &left, &age}, gitTargets(&g.GitConnection)...)...); err != nil {
		return g, err
	}
	if left != nil {
		d := lasting(*left)
		g.ValidFor = &d
	}
	g.Age = lasting(age)
	rows.Close()
	return g, rows.Err()
}

func lasting(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// GitGrant reads a connection of an active user. CodeNotFound.
func (db *DB) GitGrant(ctx context.Context, id string) (GitGrant, error) {
	g, err := gitGrant(ctx, db.pool, id)
	return g, failed("read a git connection", err)
}

// GitRefreshed is the outcome of a refresh: new tokens, or the error that is recorded.
type GitRefreshed struct {
	Access, Refresh []byte        // sealed
	Lifetime        time.Duration // of Access; 0: unknown or unlimited
	Error           string
}

const (
	// gitStorePause is the time between two attempts to store new tokens.
	gitStorePause = 200 * time.Millisecond
	// gitRefreshKey is the first key of the advisory lock of a refresh.
	gitRefreshKey = 66
)

// RefreshGit calls refresh with a connection and stores the outcome, unless the tokens were changed
// since seen, which is their ChangedAt. It reports busy, and does nothing, while another server or
// call refreshes the connection. The stored tokens stay until the new ones are stored, which is
// tried until ctx ends: the provider may have ended the former ones already. CodeNotFound.
func (db *DB) RefreshGit(ctx context.Context, id string, seen time.Time, refresh func(GitGrant) (GitRefreshed, error)) (busy bool, err error) {
	const verb = "refresh a git connection"
	tx, err := db.pool.Begin(ctx)
	if err != nil {
		return false, failed(verb, err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	// The lock is none of the row: a user who disconnects does not wait for the provider.
	var free bool
	if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1, hashtext($2)) FROM set_config('idle_in_transaction_session_timeout', '60s', true)`, gitRefreshKey, id).Scan(&free); err != nil {
		return false, failed(verb, err)
	}
	if !free {
		return true, nil
	}
	g, err := gitGrant(ctx, tx, id)
	if err != nil || !g.ChangedAt.Equal(seen) {
		return false, failed(verb, err)
	}
	out, err := refresh(g)
	if err != nil {
		return false, err
	}
	if err = storeRefresh(ctx, tx, id, seen, out); err == nil {
		if err = tx.Commit(ctx); err == nil {
			return false, nil
		}
	}
	for out.Error == "" {
		db.log.WarnContext(ctx, "new tokens of a git connection are not stored yet", "connection", id, "err", err)
		select {
		case <-ctx.Done():
			return false, failed(verb, err)
		case <-time.After(gitStorePause):
		}
		if err = storeRefresh(ctx, db.pool, id, seen, out); err == nil {
			break
		}
	}
	return false, failed(verb, err)
}

// storeRefresh stores an outcome for the tokens of that time.
func storeRefresh(ctx context.Context, in execer, id string, seen time.Time, out GitRefreshed) error {
	if out.Error != "" {
		_, err := in.Exec(ctx, `UPDATE git_connections SET error = $3 WHERE id = $1 AND changed_at = $2 AND error <> $3`, id, seen, out.Error)
		return err
	}
	var lifetime *float64
	if out.Lifetime > 0 {
		s := out.Lifetime.Seconds()
		lifetime = &s
	}
	_, err := in.Exec(ctx, `
		UPDATE git_connections SET access_token = $3, refresh_token = $4, expires_at = clock_timestamp() + make_interval(secs => $5), error = '', changed_at = clock_timestamp()
		WHERE id = $1 AND changed_at = $2`, id, seen, out.Access, out.Refresh, lifetime)
	return err
}

// GitExpiry is the time after a lifetime by the database's clock.
func (db *DB) GitExpiry(ctx context.Context, lifetime time.Duration) (at time.Time, err error) {
	err = db.pool.QueryRow(ctx, `SELECT clock_timestamp() + make_interval(secs => $1)`, lifetime.Seconds()).Scan(&at)
	return at, failed("read the clock", err)
}
