package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/workspace"
)

// HomeBackups is the leader's part of the store for backups of homes. It writes through the leader's
// session, so a server that leads no longer cannot write.
type HomeBackups struct{ session Session }

// NewHomeBackups returns the HomeBackups of the leader's session.
func NewHomeBackups(s Session) *HomeBackups { return &HomeBackups{s} }

func (h *HomeBackups) do(ctx context.Context, verb string, f func(ctx context.Context, conn *pgx.Conn) error) error {
	return failed(verb, NewCollector(h.session).do(ctx, f))
}

func (h *HomeBackups) exec(ctx context.Context, verb, sql string, args ...any) (changed bool, err error) {
	err = h.do(ctx, verb, func(ctx context.Context, conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, sql, args...)
		changed = err == nil && tag.RowsAffected() > 0
		return err
	})
	return changed, err
}

// BackupCandidate is a workspace whose home is live, or has a backup that waits or runs.
type BackupCandidate struct {
	ID             workspace.ID
	OwnerID        string
	Phase          workspace.Phase
	Operation      workspace.Operation
	Home           workspace.HomeState
	CreatedAt      time.Time
	LastAccessAt   *time.Time
	PhaseChangedAt time.Time
	Interval       *int // seconds; nil: the server's, 0: none

	// The backup that waits or runs; empty: there is none.
	PresentID    string
	PresentState workspace.BackupState
	PresentCause string
	PresentAt    *time.Time // when it was requested

	// The last backup; LastAt is nil without one.
	LastKey     string
	LastAt      *time.Time // the home was last seen as that backup has it
	LastDamaged bool       // or it may refer to damage that was found in an earlier one since it began
	FailedAt    *time.Time // when the last one that failed did; nil: none since LastAt
}

func (c *BackupCandidate) targets() []any {
	return []any{&c.ID, &c.OwnerID, &c.Phase, &c.Operation, orEmpty((*string)(&c.Home)), &c.CreatedAt, &c.LastAccessAt, &c.PhaseChangedAt,
		&c.Interval, orEmpty(&c.PresentID), orEmpty((*string)(&c.PresentState)), orEmpty(&c.PresentCause), &c.PresentAt,
		orEmpty(&c.LastKey), &c.LastAt, &c.LastDamaged, &c.FailedAt}
}

// Candidates returns the workspaces whose homes can be backed up, and the time. With present it returns
// only those of which a backup waits or runs; with only, one workspace.
func (h *HomeBackups) Candidates(ctx context.Context, present bool, only workspace.ID) (list []BackupCandidate, now time.Time, err error) {
	err = h.do(ctx, "look for homes to back up", func(ctx context.Context, conn *pgx.Conn) error {
		list = nil
		if err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, `
			SELECT w.id, w.owner_user_id::text, w.phase, w.operation, w.home_ctx ->> 'state', w.created_at, w.last_access_at, w.phase_changed_at,
				w.backup_interval_seconds, p.id::text, p.state, p.cause, p.created_at,
				d.key, GREATEST(d.begun_at, d.unchanged_at), coalesce(d.damage, '') <> '' OR EXISTS (
					SELECT FROM home_backups WHERE workspace_id = w.id AND damage <> '' AND begun_at < d.begun_at AND verified_at > d.begun_at), f.ended_at
			FROM workspaces w
			LEFT JOIN home_backups p ON p.workspace_id = w.id AND p.state IN ('waiting', 'running')
			LEFT JOIN LATERAL (
				SELECT key, begun_at, unchanged_at, damage, created_at FROM home_backups
				WHERE workspace_id = w.id AND state = 'done' AND expired_at IS NULL ORDER BY created_at DESC LIMIT 1
			) d ON true
			LEFT JOIN LATERAL (
				SELECT max(ended_at) AS ended_at FROM home_backups
				WHERE workspace_id = w.id AND state = 'failed' AND (d.created_at IS NULL OR created_at > d.created_at)
			) f ON true
			WHERE (p.id IS NOT NULL OR NOT $1 AND w.phase <> 'DELETED' AND w.deleted_at IS NULL AND w.home_ctx ->> 'state' = 'live')
				AND ($2::uuid IS NULL OR w.id = $2)`, present, nullable(only))
		if err != nil {
			return err
		}
		var c BackupCandidate
		_, err = pgx.ForEachRow(rows, c.targets(), func() error { list = append(list, c); return nil })
		return err
	})
	return list, now, err
}

// FullOwners returns the users the backups of whose homes use at least this many bytes in the bucket.
func (h *HomeBackups) FullOwners(ctx context.Context, limit int64) (users map[string]bool, err error) {
	users = map[string]bool{}
	err = h.do(ctx, "add up backups of homes", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
			SELECT w.owner_user_id::text FROM home_backups b JOIN workspaces w ON w.id = b.workspace_id
			GROUP BY w.owner_user_id HAVING sum(b.stored + b.size) >= $1`, limit)
		if err != nil {
			return err
		}
		var user string
		_, err = pgx.ForEachRow(rows, []any{&user}, func() error { users[user] = true; return nil })
		return err
	})
	return users, err
}

// announce sends the event that the workspace has changed: its backups have.
func (h *HomeBackups) announce(ctx context.Context, backup string) error {
	_, err := h.exec(ctx, "announce a backup of a home", `
		SELECT pg_notify($2, json_build_object('id', w.id, 'owner', w.owner_user_id)::text)
		FROM home_backups b JOIN workspaces w ON w.id = b.workspace_id WHERE b.id = $1`, backup, ChannelSSE)
	return err
}

// Claim records that a backup begins, whose manifest gets this key, and returns the workspace. A backup
// that waits has this id; otherwise one is added. claimed is false if it does not wait any more, if
// an earlier attempt had this key, whose objects must not be replaced, or if another one waits or runs.
func (h *HomeBackups) Claim(ctx context.Context, b workspace.Backup) (w workspace.Workspace, claimed bool, err error) {
	err = h.do(ctx, "begin a backup of a home", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `
				INSERT INTO home_backups AS b (id, workspace_id, state, cause, key, begun_at) VALUES ($1, $2, 'running', $3, $4, $5)
				ON CONFLICT (id) DO UPDATE SET state = 'running', key = EXCLUDED.key, begun_at = EXCLUDED.begun_at
				WHERE b.state = 'waiting' AND b.key IS DISTINCT FROM EXCLUDED.key`,
				b.ID, b.WorkspaceID, b.Cause, b.Key, b.BegunAt)
			if err != nil {
				return err
			}
			if claimed = tag.RowsAffected() == 1; !claimed {
				return nil
			}
			return tx.QueryRow(ctx, `SELECT `+coreColumns+` FROM workspaces WHERE id = $1`, b.WorkspaceID).Scan(coreTargets(&w)...)
		})
	})
	if violates(err, "home_backups_present") {
		return w, false, nil
	}
	if err != nil || !claimed {
		return w, false, err
	}
	return w, true, h.announce(ctx, b.ID)
}

// Request adds a backup that waits, and returns its id; if one waits or runs, that one's.
func (h *HomeBackups) Request(ctx context.Context, id workspace.ID, backup, cause string) (present string, err error) {
	err = h.do(ctx, "request a backup of a home", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `
			WITH added AS (
				INSERT INTO home_backups (id, workspace_id, cause) VALUES ($1, $2, $3)
				ON CONFLICT (workspace_id) WHERE state IN ('waiting', 'running') DO NOTHING RETURNING id
			)
			SELECT id::text FROM added UNION ALL
			SELECT id::text FROM home_backups WHERE workspace_id = $2 AND state IN ('waiting', 'running') LIMIT 1`, backup, id, cause).Scan(&present)
	})
	return present, err
}

// Finish records what a backup that runs has made.
func (h *HomeBackups) Finish(ctx context.Context, backup, digest string, size int64, f workspace.BackupFigures) (done bool, err error) {
	done, err = h.exec(ctx, "record a backup of a home", `
		UPDATE home_backups SET state = 'done', ended_at = clock_timestamp(), error = '', digest = $2, size = $3, entries = $4, files = $5, bytes = $6,
			skipped = $7, stored = $8, changed = $9, problems = $10, added = $11, modified = $12, removed = $13
		WHERE id = $1 AND state = 'running'`,
		backup, digest, size, f.Entries, f.Files, f.Bytes, f.Skipped, f.Stored, f.Changed, f.Problems, f.Added, f.Modified, f.Removed)
	if err != nil || !done {
		return false, err
	}
	return true, h.announce(ctx, backup)
}

// Unchanged removes a backup that runs, and records that the home was then as the former one has it.
func (h *HomeBackups) Unchanged(ctx context.Context, backup, former string) error {
	_, err := h.exec(ctx, "record that a home is unchanged", `
		WITH unneeded AS (DELETE FROM home_backups WHERE id = $1 AND state = 'running' RETURNING begun_at)
		UPDATE home_backups SET unchanged_at = (SELECT begun_at FROM unneeded) WHERE key = $2 AND EXISTS (SELECT FROM unneeded)`, backup, former)
	return err
}

// Fail records why a backup that waits or runs has failed. Of those that no person asked for, only
// the last failure since a backup remains.
func (h *HomeBackups) Fail(ctx context.Context, backup, why string) error {
	_, err := h.exec(ctx, "record that a backup of a home failed", `
		WITH failed AS (
			UPDATE home_backups SET state = 'failed', ended_at = clock_timestamp(), error = $2
			WHERE id = $1 AND state IN ('waiting', 'running') RETURNING id, workspace_id
		)
		DELETE FROM home_backups b USING failed f
		WHERE b.workspace_id = f.workspace_id AND b.id <> f.id AND b.state = 'failed' AND b.cause <> 'request'`, backup, why)
	if err != nil {
		return err
	}
	return h.announce(ctx, backup)
}

// Wait lets a backup that runs wait again. It keeps its key, which the next attempt must not use.
func (h *HomeBackups) Wait(ctx context.Context, backup string) error {
	_, err := h.exec(ctx, "defer a backup of a home", `
		UPDATE home_backups SET state = 'waiting', begun_at = NULL WHERE id = $1 AND state = 'running'`, backup)
	return err
}

// Drop removes a backup that waits or runs.
func (h *HomeBackups) Drop(ctx context.Context, backup string) error {
	_, err := h.exec(ctx, "give up a backup of a home", `DELETE FROM home_backups WHERE id = $1 AND state IN ('waiting', 'running')`, backup)
	return err
}

// Restart is for the beginning of a term: backups that were requested, also by a hand-over, wait
// again, and the others are given up.
func (h *HomeBackups) Restart(ctx context.Context) error {
	return h.do(ctx, "restart the backups of homes", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `DELETE FROM home_backups WHERE state IN ('waiting', 'running') AND cause NOT IN ('request', 'hand_over') AND note = ''`)
			if err == nil {
				_, err = tx.Exec(ctx, `UPDATE home_backups SET state = 'waiting', begun_at = NULL WHERE state = 'running'`)
			}
			return err
		})
	})
}

// KeptBackup is a backup that has not expired.
type KeptBackup struct {
	ID, Workspace string
	Keep          string // the workspace's rule; empty: the server's
	BegunAt       time.Time
	Noted         bool // it has a note
	Asked         bool // it was requested, or made before a step
	VerifiedAt    *time.Time
	Damaged       bool
}

// Kept lists the backups of a workspace, or of all, that have not expired, the latest of each workspace first.
func (h *HomeBackups) Kept(ctx context.Context, only workspace.ID) (list []KeptBackup, now time.Time, err error) {
	err = h.do(ctx, "list backups of homes", func(ctx context.Context, conn *pgx.Conn) error {
		list = nil
		if err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, `
			SELECT b.id::text, b.workspace_id::text, w.backup_keep, coalesce(b.begun_at, b.created_at), b.note <> '', b.cause <> 'schedule', b.verified_at, b.damage <> ''
			FROM home_backups b JOIN workspaces w ON w.id = b.workspace_id
			WHERE b.state = 'done' AND b.expired_at IS NULL AND ($1::uuid IS NULL OR b.workspace_id = $1)
			ORDER BY b.workspace_id, b.created_at DESC`, nullable(only))
		if err != nil {
			return err
		}
		var k KeptBackup
		_, err = pgx.ForEachRow(rows, []any{&k.ID, &k.Workspace, orEmpty(&k.Keep), &k.BegunAt, &k.Noted, &k.Asked, &k.VerifiedAt, &k.Damaged}, func() error {
			list = append(list, k)
			return nil
		})
		return err
	})
	return list, now, err
}

// unused is true of a backup b that no workspace is, or is to be, restored from.
const unused = `NOT EXISTS (SELECT FROM workspaces u WHERE u.restore_from ->> 'key' = b.key OR u.recover_archive ->> 'key' = b.key
	OR u.archive_key = b.key AND u.phase <> 'DELETED' AND u.home_ctx ->> 'state' IS DISTINCT FROM 'live')`

// Expire lets backups expire, except the last one of each workspace and those that a home is restored from.
func (h *HomeBackups) Expire(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := h.exec(ctx, "let backups of homes expire", `
		UPDATE home_backups b SET expired_at = clock_timestamp()
		WHERE b.id = ANY ($1::uuid[]) AND b.state = 'done' AND b.expired_at IS NULL AND `+unused+`
			AND EXISTS (SELECT FROM home_backups n WHERE n.workspace_id = b.workspace_id AND n.state = 'done' AND n.expired_at IS NULL AND n.created_at > b.created_at)`, ids)
	return err
}

// backupsGone is true of a deleted workspace w that cannot be restored any more: package gc has let it go, which does not
// happen to one that was used after a deletion that a restored database has. $1 is the grace in seconds.
const backupsGone = `(w.phase = 'DELETED' AND w.deleted_at IS NOT NULL AND ` + graceBegan + ` + make_interval(secs => $1) <= clock_timestamp())`

// Users lists the workspaces that may have backups in the bucket. Deleted ones without backups are among them for
// 30 days: a job may have left packs.
func (h *HomeBackups) Users(ctx context.Context) (ids []workspace.ID, err error) {
	err = h.do(ctx, "look for backups to remove", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
			SELECT id FROM workspaces WHERE phase <> 'DELETED' OR deleted_at > clock_timestamp() - interval '30 days'
				OR EXISTS (SELECT FROM home_backups WHERE workspace_id = workspaces.id)
			ORDER BY id`)
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[workspace.ID])
		return err
	})
	return ids, err
}

// Deleted lists the workspaces whose deletion cannot be undone any more, and which have backups that nothing needs.
func (h *HomeBackups) Deleted(ctx context.Context, grace time.Duration) (ids []workspace.ID, err error) {
	err = h.do(ctx, "look for backups of deleted workspaces", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
			SELECT DISTINCT w.id FROM workspaces w JOIN home_backups b ON b.workspace_id = w.id
			WHERE `+backupsGone+` AND b.state NOT IN ('waiting', 'running') AND `+unused+` ORDER BY w.id`, grace.Seconds())
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[workspace.ID])
		return err
	})
	return ids, err
}

// StoredBackup is a backup as the removal of objects sees it.
type StoredBackup struct {
	ID    string
	Key   string // empty: it has no manifest
	State workspace.BackupState
	// Removable: nothing needs it, and no job can any more.
	Removable bool
	// Listed: it is complete and has not expired.
	Listed bool
}

// Stored lists all backups of a workspace, and the time.
func (h *HomeBackups) Stored(ctx context.Context, id workspace.ID, grace, age time.Duration) (list []StoredBackup, gone bool, now time.Time, err error) {
	err = h.do(ctx, "look for backups to remove", func(ctx context.Context, conn *pgx.Conn) error {
		if err := conn.QueryRow(ctx, `SELECT clock_timestamp(), `+backupsGone+` FROM workspaces w WHERE id = $2`, grace.Seconds(), id).Scan(&now, &gone); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, `
			SELECT b.id::text, coalesce(b.key, ''), b.state, coalesce(b.state NOT IN ('waiting', 'running') AND `+unused+` AND ($2 OR
				b.expired_at <= clock_timestamp() - make_interval(secs => $3) OR b.state = 'failed' AND b.ended_at <= clock_timestamp() - interval '30 days'), false),
				b.state = 'done' AND b.expired_at IS NULL
			FROM home_backups b WHERE b.workspace_id = $1`, id, gone, age.Seconds())
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[StoredBackup])
		return err
	})
	return list, gone, now, err
}

// Delete removes backups whose objects are removed.
func (h *HomeBackups) Delete(ctx context.Context, ids []string) error {
	_, err := h.exec(ctx, "remove backups of homes", `
		DELETE FROM home_backups b WHERE id = ANY ($1::uuid[]) AND state NOT IN ('waiting', 'running') AND `+unused, ids)
	return err
}

// Replace records that a listed backup has another manifest, with the same content, and lets the former one expire like
// a backup: jobs that began with it need it, and workspaces may be restored from it. replaced is false if the backup is not listed with that one any more.
func (h *HomeBackups) Replace(ctx context.Context, backup, former, key, digest string, size int64) (replaced bool, err error) {
	err = h.do(ctx, "record the other manifest of a backup", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `
				WITH former AS (SELECT * FROM home_backups WHERE id = $1 AND key = $2 AND state = 'done' AND expired_at IS NULL FOR UPDATE),
				listed AS (UPDATE home_backups b SET key = $3, digest = $4, size = $5 FROM former f WHERE b.id = f.id RETURNING f.*)
				INSERT INTO home_backups (id, workspace_id, state, cause, key, digest, size, entries, files, bytes, skipped, created_at, begun_at, ended_at, expired_at)
				SELECT gen_random_uuid(), workspace_id, state, cause, key, digest, size, entries, files, bytes, skipped, created_at, begun_at, ended_at, clock_timestamp()
				FROM listed`, backup, former, key, digest, size)
			replaced = err == nil && tag.RowsAffected() == 1
			return err
		})
	})
	return replaced, err
}

// Adopt records a complete backup in the bucket that the database does not know as such: its server
// stopped before it had recorded it, or the database was restored. One that has another manifest gets this one: the caller knows
// that the other does not exist.
func (h *HomeBackups) Adopt(ctx context.Context, b workspace.Backup) error {
	f := b.BackupFigures
	_, err := h.exec(ctx, "record a backup that was found", `
		INSERT INTO home_backups AS b (id, workspace_id, state, cause, key, digest, size, entries, files, bytes, skipped, stored, changed, problems, created_at, begun_at, ended_at)
		VALUES ($1, $2, 'done', 'schedule', $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $13, clock_timestamp())
		ON CONFLICT (id) DO UPDATE SET state = 'done', error = '', key = EXCLUDED.key, digest = EXCLUDED.digest, size = EXCLUDED.size, entries = EXCLUDED.entries,
			files = EXCLUDED.files, bytes = EXCLUDED.bytes, skipped = EXCLUDED.skipped, stored = EXCLUDED.stored, changed = EXCLUDED.changed,
			problems = EXCLUDED.problems, begun_at = EXCLUDED.begun_at, ended_at = EXCLUDED.ended_at
		WHERE b.state = 'failed' OR b.state = 'done' AND b.key <> EXCLUDED.key`, b.ID, b.WorkspaceID, b.Key, b.Digest, b.Size, f.Entries, f.Files, f.Bytes, f.Skipped, f.Stored, f.Changed, f.Problems, b.BegunAt)
	return err
}

// latestBackups are the last backups of all homes, also of archived ones, with when a backup of the
// home was last compared.
const latestBackups = `
	SELECT DISTINCT ON (b.workspace_id) b.*, w.storage_backend, max(b.verified_at) OVER (PARTITION BY b.workspace_id) AS compared_at
	FROM home_backups b JOIN workspaces w ON w.id = b.workspace_id
	WHERE b.state = 'done' AND b.expired_at IS NULL AND w.phase <> 'DELETED'
	ORDER BY b.workspace_id, b.created_at DESC`

// Drill returns the backup that is to be compared now, with the storage of its home; due is false if
// none is. Comparisons are spread so that each home has one within the interval.
func (h *HomeBackups) Drill(ctx context.Context, interval time.Duration, except []workspace.ID) (b workspace.Backup, storage string, due bool, err error) {
	err = h.do(ctx, "look for a backup to compare", func(ctx context.Context, conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, `
			WITH latest AS (`+latestBackups+`)
			SELECT id::text, workspace_id, key, digest, size, entries, skipped, created_at, begun_at, storage_backend FROM latest
			WHERE ((SELECT max(verified_at) FROM home_backups) + make_interval(secs => $1 * 0.9) / (SELECT count(*) FROM latest) <= clock_timestamp()) IS NOT FALSE
				AND (workspace_id = ANY ($2::uuid[])) IS NOT TRUE
			ORDER BY compared_at NULLS FIRST, begun_at LIMIT 1`, interval.Seconds(), except).
			Scan(&b.ID, &b.WorkspaceID, &b.Key, &b.Digest, &b.Size, &b.Entries, &b.Skipped, &b.CreatedAt, &b.BegunAt, &storage)
		if missing(err) {
			return nil
		}
		due = err == nil
		return err
	})
	return b, storage, due, err
}

// Verified records that all of a backup was compared, and what was found; empty: nothing.
func (h *HomeBackups) Verified(ctx context.Context, backup, damage string) error {
	_, err := h.exec(ctx, "record that a backup was compared", `
		UPDATE home_backups SET verified_at = clock_timestamp(), damage = $2 WHERE id = $1 AND state = 'done'`, backup, damage)
	return err
}

// HomeBackupState is the state of the backups of all homes. What only the leader knows is not set.
type HomeBackupState struct {
	api.BackupStatus
	DamagedIn []string // names of up to 10 of the damaged
}

const selectHomeBackupState = `
	WITH latest AS (` + latestBackups + `), every AS (
		SELECT count(*) FILTER (WHERE state = 'waiting') AS waiting, count(*) FILTER (WHERE state = 'running') AS running, COALESCE(sum(stored + size), 0)::bigint AS bytes
		FROM home_backups
	)
	SELECT count(*), count(*) FILTER (WHERE compared_at > clock_timestamp() - make_interval(secs => $1)), count(*) FILTER (WHERE damage <> ''),
		max(compared_at), (SELECT waiting FROM every), (SELECT running FROM every), (SELECT bytes FROM every),
		ARRAY(SELECT w.name FROM latest l JOIN workspaces w ON w.id = l.workspace_id WHERE l.damage <> '' ORDER BY w.name LIMIT 10)
	FROM latest`

func (s *HomeBackupState) targets() []any {
	return []any{&s.Homes, &s.Compared, &s.Damaged, &s.ComparedAt, &s.Waiting, &s.Running, &s.Bytes, &s.DamagedIn}
}

// State returns the state of the backups of all homes. interval is that in which each home is compared.
func (h *HomeBackups) State(ctx context.Context, interval time.Duration) (s HomeBackupState, err error) {
	err = h.do(ctx, "read the state of backups", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, selectHomeBackupState, interval.Seconds()).Scan(s.targets()...)
	})
	return s, err
}

// HomeBackupState returns the state of the backups of all homes, for administrators. interval is that
// in which each home is compared.
func (db *DB) HomeBackupState(ctx context.Context, interval time.Duration) (s HomeBackupState, err error) {
	err = db.pool.QueryRow(ctx, selectHomeBackupState, interval.Seconds()).Scan(s.targets()...)
	return s, failed("read the state of backups", err)
}
