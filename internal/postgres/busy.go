package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/bus/activity"
	"codehub/internal/workspace"
)

// IdleSoon is a running workspace that its idle timeout will stop soon, and what agents
// have confirmed of it before.
type IdleSoon struct {
	ID                workspace.ID
	Now               time.Time // the database's
	IdleSince         time.Time
	LastUse           *time.Time
	AwakeWhileWorking bool
	Busy
}

// Busy is what agents have confirmed of a workspace.
type Busy struct {
	ConfirmedAt *time.Time // nil: never
	// HeldSince is since when holders have kept it awake without another use.
	HeldSince *time.Time
	// WorkDay is the last day (UTC) on which processes at work have kept it awake, and
	// WorkSeconds for how long they have on that day.
	WorkDay     *time.Time
	WorkSeconds int
}

// IdleSoon lists up to limit running workspaces that are stopped within the time ahead,
// the first to be stopped first. def is the server's idle timeout.
func (i *Idleness) IdleSoon(ctx context.Context, def, ahead time.Duration, limit int) (list []IdleSoon, err error) {
	err = inSession(ctx, i.session, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT w.id, clock_timestamp() AS now, `+idleSince+` AS idle_since, w.last_access_at AS last_use, w.awake_while_working,
				b.confirmed_at, b.held_since, b.work_day::timestamp AT TIME ZONE 'UTC' AS work_day, COALESCE(b.work_seconds, 0) AS work_seconds
			FROM activity_clock c, workspaces w LEFT JOIN workspace_busy b ON b.workspace_id = w.id
			WHERE w.phase = 'RUNNING' AND w.phase IN ('RUNNING', 'STANDBY') AND w.operation = 'NONE' AND w.deleted_at IS NULL
				AND w.desired_state = 'RUNNING' AND w.next_desired_state IS NULL AND w.restore_from IS NULL AND COALESCE(w.standby_ttl_seconds, $1) > 0
				AND (w.keep_awake_until >= c.watched_until + make_interval(secs => $2)) IS NOT TRUE
				AND c.watched_until + make_interval(secs => $2) - `+idleSince+` > make_interval(secs => COALESCE(w.standby_ttl_seconds, $1))
			ORDER BY `+idleSince+` + make_interval(secs => COALESCE(w.standby_ttl_seconds, $1)), w.id LIMIT $3`,
			seconds(def), ahead.Seconds(), limit)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowToStructByName[IdleSoon])
		return err
	})
	return list, failed("list workspaces that are idle soon", err)
}

// Confirmed is the use of a workspace that its agent has confirmed.
type Confirmed struct {
	ID   workspace.ID
	Kind activity.Kind
	Busy // with ConfirmedAt
}

// Confirm records uses that agents have confirmed.
func (i *Idleness) Confirm(ctx context.Context, list []Confirmed) error {
	seen := make([]activity.Access, len(list))
	for n, c := range list {
		seen[n] = activity.Access{ID: c.ID, At: *c.ConfirmedAt, Kind: c.Kind}
	}
	err := inSession(ctx, i.session, func(tx pgx.Tx) error {
		for _, c := range list {
			if _, err := tx.Exec(ctx, `
				INSERT INTO workspace_busy (workspace_id, confirmed_at, held_since, work_day, work_seconds)
				SELECT id, $2, $3, $4::timestamptz AT TIME ZONE 'UTC', $5 FROM workspaces WHERE id = $1
				ON CONFLICT (workspace_id) DO UPDATE SET confirmed_at = EXCLUDED.confirmed_at, held_since = EXCLUDED.held_since,
					work_day = EXCLUDED.work_day, work_seconds = EXCLUDED.work_seconds`,
				c.ID, c.ConfirmedAt, c.HeldSince, c.WorkDay, c.WorkSeconds); err != nil {
				return err
			}
		}
		return eachAccesses(seen, func(part []activity.Access) error { return saveAccesses(ctx, tx, part) })
	})
	return failed("record what agents confirmed", err)
}
