package postgres

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/bus/activity"
	"codehub/internal/workspace"
)

// idleSince is the start of a workspace's idle time, in SQL: the rule of lifecycle.IdleSince.
// GREATEST ignores NULL.
const idleSince = `GREATEST(last_access_at, phase_changed_at)`

// accessBatch bounds how many rows one statement updates, and so how long it locks them.
const accessBatch = 500

// FlushPoint reads the state with which a flush of activity begins.
func (db *DB) FlushPoint(ctx context.Context) (p activity.FlushPoint, err error) {
	err = db.pool.QueryRow(ctx, `SELECT clock_timestamp(), watched_until FROM activity_clock`).Scan(&p.Now, &p.WatchedUntil)
	return p, failed("read the clock of activity", err)
}

// SaveAccesses writes the last use of workspaces, and never moves it back. It ignores
// workspaces that do not exist.
func (db *DB) SaveAccesses(ctx context.Context, seen []activity.Access) error {
	return eachAccesses(seen, func(part []activity.Access) error {
		return db.tx(ctx, "write when workspaces were last used", func(tx pgx.Tx) error { return saveAccesses(ctx, tx, part) })
	})
}

// eachAccesses calls save for parts of seen by ascending id, the order in which rows are
// locked.
func eachAccesses(seen []activity.Access, save func(part []activity.Access) error) error {
	ordered := slices.DeleteFunc(slices.Clone(seen), func(a activity.Access) bool { return !workspace.ValidID(string(a.ID)) })
	slices.SortFunc(ordered, func(a, b activity.Access) int { return strings.Compare(string(a.ID), string(b.ID)) })
	for part := range slices.Chunk(ordered, accessBatch) {
		if err := save(part); err != nil {
			return err
		}
	}
	return nil
}

func saveAccesses(ctx context.Context, in execer, part []activity.Access) error {
	ids, at, kinds := make([]workspace.ID, len(part)), make([]time.Time, len(part)), make([]string, len(part))
	for i, a := range part {
		ids[i], at[i], kinds[i] = a.ID, a.At, clean(string(a.Kind))
	}
	// Entries of a bus are not trustworthy: a time in the future would keep a workspace running
	// until then.
	_, err := in.Exec(ctx, `
		WITH seen AS (
			SELECT DISTINCT ON (id) id, LEAST(at, clock_timestamp() + interval '5 seconds') AS at, kind
			FROM unnest($1::uuid[], $2::timestamptz[], $3::text[]) AS s (id, at, kind)
			ORDER BY id, s.at DESC
		), later AS (
			SELECT w.id, s.at, s.kind FROM workspaces w JOIN seen s ON s.id = w.id
			WHERE (w.last_access_at < s.at) IS NOT FALSE AND w.phase <> 'DELETED'
			ORDER BY w.id FOR NO KEY UPDATE OF w
		)
		UPDATE workspaces w SET last_access_at = s.at, last_access_kind = COALESCE(NULLIF(s.kind, ''), w.last_access_kind)
		FROM later s WHERE w.id = s.id`, ids, at, kinds)
	return err
}

// ConfirmFlush records that a replica has flushed its activity up to asOf, and where:
// activity.Database, or an epoch of the bus. It returns false if there is no such replica.
func (db *DB) ConfirmFlush(ctx context.Context, replica string, asOf time.Time, epoch string) (known bool, err error) {
	tag, err := db.pool.Exec(ctx, `
		UPDATE replicas SET flushed_at = GREATEST(flushed_at, $2), flush_epoch = $3 WHERE id = $1`, replica, asOf, epoch)
	return err == nil && tag.RowsAffected() == 1, failed("record what was handed on of activity", err)
}

// ActivityClock is the clock of activity (docs/states.md#which-time-counts). The leader
// advances it through its session, so a former leader cannot.
type ActivityClock struct {
	session Session
}

// NewActivityClock returns the ActivityClock of the leader's session.
func NewActivityClock(s Session) *ActivityClock { return &ActivityClock{s} }

// State reads the state with which a tick of the clock begins.
func (c *ActivityClock) State(ctx context.Context) (s activity.State, err error) {
	err = c.session.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		s = activity.State{}
		if err := conn.QueryRow(ctx, `SELECT clock_timestamp(), watched_until FROM activity_clock`).Scan(&s.Now, &s.WatchedUntil); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, `SELECT id, started_at, seen_at, flushed_at, flush_epoch FROM replicas`)
		if err != nil {
			return err
		}
		s.Replicas, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r activity.Replica, err error) {
			return r, row.Scan(&r.ID, &r.StartedAt, &r.SeenAt, &r.FlushedAt, orEmpty(&r.Epoch))
		})
		return err
	})
	return s, failed("read the clock of activity", err)
}

// SaveAccesses is DB.SaveAccesses through the session.
func (c *ActivityClock) SaveAccesses(ctx context.Context, seen []activity.Access) error {
	return eachAccesses(seen, func(part []activity.Access) error {
		return failed("write when workspaces were last used", c.do(ctx, func(tx pgx.Tx) error { return saveAccesses(ctx, tx, part) }))
	})
}

// do runs f in a transaction of the session, and repeats it after a deadlock.
func (c *ActivityClock) do(ctx context.Context, f func(tx pgx.Tx) error) error {
	return inSession(ctx, c.session, f)
}

func inSession(ctx context.Context, s Session, f func(tx pgx.Tx) error) (err error) {
	for range attempts {
		err = s.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error { return pgx.BeginFunc(ctx, conn, f) })
		if !abortedForAnother(err) {
			break
		}
	}
	return err
}

// Take applies a step in one transaction. It returns ErrMoved and writes nothing if a replica
// that the step considers dead was seen again.
func (c *ActivityClock) Take(ctx context.Context, s activity.Step) error {
	err := c.do(ctx, func(tx pgx.Tx) error {
		for _, r := range s.Dead {
			tag, err := tx.Exec(ctx, `
				UPDATE replicas SET flushed_at = $3, flush_epoch = $4 WHERE id = $1 AND seen_at = $2`, r.ID, r.SeenAt, s.Now, activity.Gone)
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 0 {
				return activity.ErrMoved
			}
		}
		for _, g := range s.Gaps {
			if err := addGap(ctx, tx, g); err != nil {
				return err
			}
		}
		if s.WatchedUntil.IsZero() {
			return nil
		}
		_, err := tx.Exec(ctx, `UPDATE activity_clock SET watched_until = GREATEST(watched_until, $1)`, s.WatchedUntil)
		return err
	})
	return failed("move the clock of activity", err)
}

// addGap adds a gap and merges it with those that it touches, since overlapping gaps would be
// counted twice.
func addGap(ctx context.Context, tx pgx.Tx, g activity.Gap) error {
	_, err := tx.Exec(ctx, `
		WITH old AS (
			DELETE FROM unwatched WHERE began <= $2 AND ended >= COALESCE($1, '-infinity'::timestamptz) RETURNING began, ended
		)
		INSERT INTO unwatched (began, ended)
		SELECT LEAST(COALESCE($1, '-infinity'::timestamptz), min(began)), GREATEST($2, max(ended)) FROM old`, g.Began, g.Ended)
	return err
}

// Prune removes the gaps that ended before the current idle time of every workspace with an
// idle timeout began. server holds the defaults.
func (c *ActivityClock) Prune(ctx context.Context, server workspace.TTL) (n int64, err error) {
	err = c.do(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			DELETE FROM unwatched WHERE ended < (
				SELECT LEAST((SELECT watched_until FROM activity_clock), min(`+idleSince+`)) FROM workspaces
				WHERE deleted_at IS NULL AND (
					phase = 'RUNNING' AND COALESCE(standby_ttl_seconds, $1) > 0
					OR phase = 'STANDBY' AND COALESCE(archive_ttl_seconds, $2) > 0))`,
			seconds(server.Standby), seconds(server.Archive))
		n = tag.RowsAffected()
		return err
	})
	return n, failed("forget the gaps of activity", err)
}

func seconds(d time.Duration) int { return int(d / time.Second) }
