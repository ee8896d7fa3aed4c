package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/lifecycle"
	"codehub/internal/workspace"
)

// Idleness applies the idle timeouts (docs/states.md#idle-timeouts) through the leader's
// session. It writes columns of the API layer, as the system.
type Idleness struct {
	session Session
}

// NewIdleness makes the Idleness of the leader's session.
func NewIdleness(s Session) *Idleness { return &Idleness{s} }

// EndIdle wishes RUNNING workspaces STANDBY that were not used for longer than
// their standby TTL, or def, the server's: at most limit of them, whose ids it
// returns. Now is up to when the clock of activity has moved.
func (i *Idleness) EndIdle(ctx context.Context, def time.Duration, limit int) ([]workspace.ID, error) {
	ids, err := i.end(ctx, endOf(workspace.PhaseRunning, workspace.DesiredRunning, "standby_ttl_seconds"), workspace.DesiredStandby, workspace.CauseIdle, def, limit)
	return ids, failed("stop what nobody uses", err)
}

// EndUnused is the same for STANDBY workspaces, which it wishes ARCHIVED.
func (i *Idleness) EndUnused(ctx context.Context, def time.Duration, limit int) ([]workspace.ID, error) {
	ids, err := i.end(ctx, endOf(workspace.PhaseStandby, workspace.DesiredStandby, "archive_ttl_seconds"), workspace.DesiredArchived, workspace.CauseUnused, def, limit)
	return ids, failed("archive what nobody uses", err)
}

// endOf is the statement that ends what is in a phase, as it is wanted, for
// longer than its TTL. It is the same rule as lifecycle.EndIdle. Whoever holds a
// row is changing it: it is passed over until the next time, as the controller
// waits for the session. A row that was changed since the statement began is
// looked at anew when it is locked. What may be due is found first, by the index
// of what TTLs end: the order by id would have all workspaces walked through.
func endOf(phase workspace.Phase, desired workspace.DesiredState, ttl string) string {
	ttl = `COALESCE(w.` + ttl + `, $1)`
	return `
		WITH due AS (
			SELECT w.id FROM workspaces w, activity_clock c
			WHERE w.id = ANY (ARRAY(
					SELECT w.id FROM workspaces w, activity_clock c
					WHERE w.phase = '` + string(phase) + `' AND w.phase IN ('RUNNING', 'STANDBY') AND w.operation = 'NONE' AND w.deleted_at IS NULL
						AND c.watched_until - ` + idleSince + ` > make_interval(secs => ` + ttl + `) AND ` + ttl + ` > 0))
				AND w.phase = '` + string(phase) + `' AND w.desired_state = '` + string(desired) + `'
				AND w.operation = 'NONE' AND w.next_desired_state IS NULL AND w.deleted_at IS NULL
				AND ` + ttl + ` > 0
				AND (w.keep_awake_until >= c.watched_until) IS NOT TRUE
				AND c.watched_until - ` + idleSince + ` > make_interval(secs => ` + ttl + `)
				AND c.watched_until - ` + idleSince + ` - unwatched_since(` + idleSince + `) > make_interval(secs => ` + ttl + `)
			ORDER BY w.id LIMIT $2
			FOR NO KEY UPDATE OF w SKIP LOCKED
		), ended AS (
			UPDATE workspaces w SET desired_state = $3, desired_cause = $4, updated_at = clock_timestamp()
			FROM due WHERE w.id = due.id
			RETURNING w.id
		), noted AS (
			INSERT INTO audit_log (username, action, target, details)
			SELECT $5, $6, id::text, jsonb_build_object('from', '` + string(desired) + `', 'to', $3::text, 'cause', $4::text) FROM ended
		)
		SELECT id FROM ended ORDER BY id`
}

func (i *Idleness) end(ctx context.Context, sql string, to workspace.DesiredState, cause string, def time.Duration, limit int) (ids []workspace.ID, err error) {
	err = inSession(ctx, i.session, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sql, seconds(def), limit, to, cause, workspace.System.Username, lifecycle.AuditDesired)
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[workspace.ID])
		return err
	})
	return ids, err
}
