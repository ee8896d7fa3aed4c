package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Idleness applies the idle timeouts (docs/states.md#idle-timeouts) through the leader's
// session. It writes columns of the API layer, as the system.
type Idleness struct {
	session Session
}

// NewIdleness returns the Idleness of the leader's session.
func NewIdleness(s Session) *Idleness { return &Idleness{s} }

// EndIdle sets the desired state STANDBY of up to limit RUNNING workspaces that were
// idle for longer than their standby TTL, or def, the server's, without those in except. It
// returns their ids. Idle time counts up to the clock of activity.
func (i *Idleness) EndIdle(ctx context.Context, def time.Duration, limit int, except ...workspace.ID) ([]workspace.ID, error) {
	ids, err := i.end(ctx, endOf(workspace.PhaseRunning, workspace.DesiredRunning, "standby_ttl_seconds"), workspace.DesiredStandby, workspace.CauseIdle, def, limit, except)
	return ids, failed("stop what nobody uses", err)
}

// EndUnused does the same for STANDBY workspaces, which become ARCHIVED.
func (i *Idleness) EndUnused(ctx context.Context, def time.Duration, limit int) ([]workspace.ID, error) {
	ids, err := i.end(ctx, endOf(workspace.PhaseStandby, workspace.DesiredStandby, "archive_ttl_seconds"), workspace.DesiredArchived, workspace.CauseUnused, def, limit, nil)
	return ids, failed("archive what nobody uses", err)
}

// endOf returns the statement that applies an idle timeout to a phase, by the rule of
// lifecycle.EndIdle. It skips locked rows until the next time, since the controller waits for
// this session, and checks a row again once it has locked it. Candidates are found by the
// partial index first; ordering by id alone would read every workspace.
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
				AND w.operation = 'NONE' AND w.next_desired_state IS NULL AND w.restore_from IS NULL AND w.deleted_at IS NULL
				AND ` + ttl + ` > 0
				AND (w.keep_awake_until >= c.watched_until) IS NOT TRUE
				AND c.watched_until - ` + idleSince + ` > make_interval(secs => ` + ttl + `)
				AND c.watched_until - ` + idleSince + ` - unwatched_since(` + idleSince + `) > make_interval(secs => ` + ttl + `)
				AND w.id <> ALL ($7::uuid[])
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

func (i *Idleness) end(ctx context.Context, sql string, to workspace.DesiredState, cause string, def time.Duration, limit int, except []workspace.ID) (ids []workspace.ID, err error) {
	without := make([]string, len(except)) // not nil: nothing differs from all of NULL
	for n, id := range except {
		without[n] = string(id)
	}
	err = inSession(ctx, i.session, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sql, seconds(def), limit, to, cause, workspace.System.Username, lifecycle.AuditDesired, without)
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[workspace.ID])
		return err
	})
	return ids, err
}
