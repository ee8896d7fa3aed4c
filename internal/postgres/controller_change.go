package postgres

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"codehub/internal/workspace"
)

// statement returns the UPDATE of the change, "" if there is nothing to write. It sets only the
// columns that differ, so that a decision on an old version of the row does not revert other
// columns.
func (c Change) statement() (sql string, args []any, err error) {
	u := update{}
	visible := false
	for _, col := range columns {
		if col.by != controller || col.same(&c.Seen, &c.Next) {
			continue
		}
		if err := u.set(col, &c.Next); err != nil {
			return "", nil, err
		}
		if col.also != "" {
			u.sets = append(u.sets, col.also)
		}
		visible = visible || !col.quiet
	}
	if c.ClearRecover {
		u.clear("recover_requested_at", c.Seen.RecoverRequestedAt, "recover_requested_at", "recover_action", "recover_archive")
	}
	if c.ClearCancel {
		u.clear("cancel_requested_at", c.Seen.CancelRequestedAt, "cancel_requested_at")
	}
	if c.ClearForceStop {
		u.clear("force_stop_requested_at", c.Seen.ForceStopRequestedAt, "force_stop_requested_at")
	}
	if from := c.Seen.RestoreFrom; c.ClearRestore && from != nil {
		seen, err := jsonOf(from)
		if err != nil {
			return "", nil, err
		}
		u.sets = append(u.sets, "restore_from = NULLIF(restore_from, "+u.arg(seen)+"::jsonb)")
	}
	if len(u.sets) == 0 {
		return "", nil, nil
	}
	u.sets = append(u.sets, "observed_at = clock_timestamp()")
	if visible {
		u.sets = append(u.sets, "updated_at = clock_timestamp()")
	}
	if err := u.compare(c); err != nil {
		return "", nil, err
	}
	sql = "UPDATE workspaces SET " + strings.Join(u.sets, ", ") + " WHERE " + strings.Join(u.where, " AND ")
	if c.Audit != nil {
		details, err := json.Marshal(c.Audit.Details)
		if err != nil {
			return "", nil, fmt.Errorf("encode the details: %w", err)
		}
		sql = fmt.Sprintf(`WITH changed AS (%s RETURNING id)
			INSERT INTO audit_log (username, action, target, details) SELECT %s::text, %s::text, id::text, %s::jsonb FROM changed`,
			sql, u.arg(workspace.System.Username), u.arg(c.Audit.Action), u.arg(storableJSON(details)))
	}
	return sql, u.args, nil
}

// update is an UPDATE under construction.
type update struct {
	sets, where []string
	args        []any
}

func (u *update) arg(v any) string {
	u.args = append(u.args, v)
	return fmt.Sprintf("$%d", len(u.args))
}

// set sets a column to its value in w.
func (u *update) set(c column, w *workspace.Workspace) error {
	v, err := c.valueOf(w)
	u.sets = append(u.sets, c.name+" = "+u.arg(v))
	return err
}

// clear sets the columns of a request to NULL if the request is still the one in Seen.
func (u *update) clear(request string, seen *time.Time, columns ...string) {
	if seen == nil {
		return
	}
	at := u.arg(seen)
	for _, c := range columns {
		u.sets = append(u.sets, fmt.Sprintf("%s = CASE WHEN %s = %s THEN NULL ELSE %s END", c, request, at, c))
	}
}

// compare adds the conditions under which the change lands: for a claim all columns that the
// decision used, otherwise the operation. The last step of a deletion compares like a claim,
// since a workspace that was undeleted in between must not become DELETED. A change of the
// home compares the home, to which the executor may have added something.
func (u *update) compare(c Change) error {
	u.where = append(u.where, "id = "+u.arg(c.Seen.ID))
	gone := c.Next.Phase == workspace.PhaseDeleted && c.Seen.Phase != workspace.PhaseDeleted
	for _, col := range columns {
		operation := col.name == "operation" || col.name == "op_id"
		home := col.name == "home_ctx" && !col.same(&c.Seen, &c.Next)
		if !operation && !home && !(col.claim && (c.Claim || gone)) {
			continue
		}
		v, err := col.valueOf(&c.Seen)
		if err != nil {
			return err
		}
		u.where = append(u.where, col.name+" IS NOT DISTINCT FROM "+u.arg(v))
	}
	return nil
}

// sameTime compares at the database's precision.
func sameTime(a, b *time.Time) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Truncate(time.Microsecond).Equal(b.Truncate(time.Microsecond))
}
