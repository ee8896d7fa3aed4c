package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Overview is the state of the servers and workspaces. Times are the database's. AdminStatus has
// no servers, nodes and images here.
type Overview struct {
	api.AdminStatus
	Servers []Replica
}

// Overview reads the state of the servers and workspaces. CodeForbidden unless the
// caller is an administrator.
func (db *DB) Overview(ctx context.Context, caller workspace.Caller) (Overview, error) {
	out := Overview{AdminStatus: api.AdminStatus{
		Phases: map[string]int{}, Operations: map[string]int{},
		MaxRunning: db.limits.Global, PerUser: db.limits.PerUser,
	}}
	if err := db.administers(ctx, caller); err != nil {
		return Overview{}, err
	}
	err := pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		if out.Servers, err = readReplicas(ctx, tx); err != nil {
			return err
		}
		if err := counts(ctx, tx, &out); err != nil {
			return err
		}
		if out.LostArchives, err = lostArchives(ctx, tx); err != nil {
			return err
		}
		if out.LostVolumes, err = lostVolumes(ctx, tx); err != nil {
			return err
		}
		if out.FailedDeletions, err = failedDeletions(ctx, tx); err != nil {
			return err
		}
		if out.IdleStops, err = idleStops(ctx, tx); err != nil {
			return err
		}
		if out.DatabaseDrill, err = databaseDrill(ctx, tx); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `SELECT hold, hold_since FROM gc_state`).Scan(orEmpty(&out.Hold), &out.HoldSince); err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `SELECT watched_until FROM activity_clock`).Scan(&out.WatchedUntil)
		if missing(err) {
			err = nil
		}
		return err
	})
	return out, failed("read the state of the servers", err)
}

func counts(ctx context.Context, tx pgx.Tx, out *Overview) error {
	// Deleted workspaces count if their list shows them.
	rows, err := tx.Query(ctx, `
		SELECT phase, operation, count(*), count(*) FILTER (WHERE deleted_at IS NULL OR `+deletedListed+`), count(*) FILTER (WHERE holds_slot)
		FROM workspaces WHERE phase <> 'DELETED' GROUP BY phase, operation`)
	if err != nil {
		return err
	}
	var phase, op string
	var n, listed, running int
	_, err = pgx.ForEachRow(rows, []any{&phase, &op, &n, &listed, &running}, func() error {
		if listed > 0 {
			out.Phases[phase] += listed
		}
		out.Running += running
		if op != string(workspace.OpNone) {
			out.Operations[op] += n
		}
		return nil
	})
	return err
}

// lostArchives lists the latest workspaces whose archive was lost. Of a damaged one that looks
// complete only the failed restore tells.
func lostArchives(ctx context.Context, tx pgx.Tx) ([]api.LostArchive, error) {
	rows, err := tx.Query(ctx, `
		SELECT w.id, w.name, u.username, CASE WHEN damaged THEN $3 ELSE seen ->> 'reason' END, w.archive_key,
			CASE WHEN damaged THEN w.phase_changed_at ELSE (seen ->> 'last_transition_time')::timestamptz END AS since
		FROM workspaces w JOIN users u ON u.id = w.owner_user_id, LATERAL (SELECT w.conditions -> $1 AS seen) c,
			LATERAL (SELECT seen ->> 'status' = 'True' AND w.error_reason = $4 AS damaged) d
		WHERE w.phase = 'ERROR' AND w.deleted_at IS NULL AND w.archive_key IS NOT NULL AND w.home_ctx ->> 'state' <> 'live'
			AND (damaged OR seen ->> 'reason' IN ($2, $3))
		ORDER BY since DESC, w.id LIMIT 100`, workspace.ArchiveReady, workspace.ReasonArchiveMissing, workspace.ReasonArchiveCorrupted, workspace.ErrArchiveCorrupted)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[api.LostArchive])
}

// lostVolumes lists the latest workspaces whose home is lost, and not with an archive.
func lostVolumes(ctx context.Context, tx pgx.Tx) ([]api.LostVolume, error) {
	rows, err := tx.Query(ctx, `
		SELECT w.id, w.name, u.username, COALESCE(w.conditions -> $1 ->> 'reason', ''), '',
			COALESCE((w.conditions -> $2 ->> 'last_transition_time')::timestamptz, w.phase_changed_at) AS since
		FROM workspaces w JOIN users u ON u.id = w.owner_user_id
		WHERE w.phase = 'ERROR' AND w.deleted_at IS NULL AND (w.archive_key IS NULL OR w.home_ctx ->> 'state' = 'live')
			AND COALESCE(w.error_reason, w.conditions -> $2 ->> 'reason') = $3
		ORDER BY since DESC, w.id LIMIT 100`, workspace.VolumeReady, workspace.Healthy, workspace.ErrDataLost)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[api.LostVolume])
	for i, l := range list {
		list[i].Volume = workspace.ID(l.WorkspaceID).VolumeName()
	}
	return list, err
}

// failedDeletions lists the latest deletions that failed.
func failedDeletions(ctx context.Context, tx pgx.Tx) ([]api.FailedDeletion, error) {
	rows, err := tx.Query(ctx, `
		SELECT w.id, w.name, u.username, w.error_reason, COALESCE(w.error_message, ''), false, w.deleted_at
		FROM (SELECT * FROM workspaces WHERE `+deletionFailing+`) w JOIN users u ON u.id = w.owner_user_id
		ORDER BY w.deleted_at DESC, w.id LIMIT 100`)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[api.FailedDeletion])
	for i, f := range list {
		list[i].Retrying = !workspace.ErrorReason(f.Reason).Final()
	}
	return list, err
}

// idleStops lists what idle timeouts ended in the last day, the latest first.
func idleStops(ctx context.Context, tx pgx.Tx) ([]api.IdleStop, error) {
	rows, err := tx.Query(ctx, `
		SELECT w.id, w.name, u.username, l.details ->> 'cause', l.at
		FROM audit_log l JOIN workspaces w ON w.id = CASE WHEN l.action = $1 THEN l.target::uuid END JOIN users u ON u.id = w.owner_user_id
		WHERE l.at > clock_timestamp() - interval '1 day' AND l.action = $1 AND l.user_id IS NULL AND l.details ->> 'cause' IN ($2, $3)
		ORDER BY l.at DESC, l.id DESC LIMIT 100`, lifecycle.AuditDesired, workspace.CauseIdle, workspace.CauseUnused)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[api.IdleStop])
}
