package postgres

import (
	"fmt"
	"strings"
	"time"

	"codehub/internal/workspace"
)

// statement is the UPDATE of one change, "" if there is nothing to write. It
// sets only what differs, so that a decision on an older look at the row takes
// back nothing that it did not decide on.
func (c Change) statement() (sql string, args []any, err error) {
	u := update{}
	if err := u.observed(c.Seen, c.Next); err != nil {
		return "", nil, err
	}
	visible := len(u.sets) > 0
	u.differs("observed_at", c.Next.ObservedAt, !sameTime(c.Seen.ObservedAt, c.Next.ObservedAt))
	if !equal(c.Seen.Progress, c.Next.Progress) {
		b, err := jsonOf(c.Next.Progress)
		if err != nil {
			return "", nil, err
		}
		u.set("progress", b)
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
	if len(u.sets) == 0 {
		return "", nil, nil
	}
	if visible {
		u.sets = append(u.sets, "updated_at = clock_timestamp()")
	}
	if err := u.compare(c); err != nil {
		return "", nil, err
	}
	return "UPDATE workspaces SET " + strings.Join(u.sets, ", ") + " WHERE " + strings.Join(u.where, " AND "), u.args, nil
}

// update is an UPDATE being put together.
type update struct {
	sets, where []string
	args        []any
}

func (u *update) arg(v any) string {
	u.args = append(u.args, v)
	return fmt.Sprintf("$%d", len(u.args))
}

func (u *update) set(column string, v any) { u.sets = append(u.sets, column+" = "+u.arg(v)) }

func (u *update) differs(column string, v any, differs bool) {
	if differs {
		u.set(column, v)
	}
}

// clear sets the columns of a request to NULL where the request is still the
// one made at seen.
func (u *update) clear(request string, seen *time.Time, columns ...string) {
	if seen == nil {
		return
	}
	at := u.arg(seen)
	for _, c := range columns {
		u.sets = append(u.sets, fmt.Sprintf("%s = CASE WHEN %s = %s THEN NULL ELSE %s END", c, request, at, c))
	}
}

// observed sets what the controller owns of the row, observed_at and progress
// aside, which say nothing new about the workspace.
func (u *update) observed(seen, next workspace.Workspace) error {
	if seen.Home != next.Home {
		b, err := jsonOf(&next.Home)
		if err != nil {
			return err
		}
		u.set("home_ctx", b)
	}
	if !seen.Conditions.Equal(next.Conditions) {
		c := next.Conditions
		if c == nil {
			c = workspace.Conditions{}
		}
		b, err := jsonOf(&c)
		if err != nil {
			return err
		}
		u.set("conditions", b)
	}
	if seen.Phase != next.Phase {
		u.set("phase", next.Phase)
		u.sets = append(u.sets, "phase_changed_at = clock_timestamp()")
	}
	u.differs("operation", next.Operation, seen.Operation != next.Operation)
	u.differs("op_id", nullable(next.OpID), seen.OpID != next.OpID)
	u.differs("op_started_at", next.OpStartedAt, !sameTime(seen.OpStartedAt, next.OpStartedAt))
	u.differs("archive_op_id", nullable(next.ArchiveOpID), seen.ArchiveOpID != next.ArchiveOpID)
	u.differs("archive_key", nullable(next.ArchiveKey), seen.ArchiveKey != next.ArchiveKey)
	u.differs("archive_digest", next.ArchiveDigest, seen.ArchiveDigest != next.ArchiveDigest)
	u.differs("archive_size", next.ArchiveSize, seen.ArchiveSize != next.ArchiveSize)
	u.differs("archive_entries", next.ArchiveEntries, seen.ArchiveEntries != next.ArchiveEntries)
	u.differs("error_reason", nullable(next.ErrorReason), seen.ErrorReason != next.ErrorReason)
	message := workspace.Cut(clean(next.ErrorMessage))
	u.differs("error_message", nullable(message), seen.ErrorMessage != message)
	u.differs("error_count", next.ErrorCount, seen.ErrorCount != next.ErrorCount)
	u.differs("retry_at", next.RetryAt, !sameTime(seen.RetryAt, next.RetryAt))
	u.differs("stop_reason", nullable(clean(next.StopReason)), seen.StopReason != clean(next.StopReason))
	return nil
}

// compare says what must still be as it was seen (design §3.4). The last step
// of a deletion compares like a claim: one that was taken back in between
// must not be written down as gone.
func (u *update) compare(c Change) error {
	same := func(column string, v any) {
		u.where = append(u.where, column+" IS NOT DISTINCT FROM "+u.arg(v))
	}
	s := c.Seen
	u.where = append(u.where, "id = "+u.arg(s.ID), "operation = "+u.arg(s.Operation))
	same("op_id", nullable(s.OpID))
	gone := c.Next.Phase == workspace.PhaseDeleted && s.Phase != workspace.PhaseDeleted
	if !c.Claim && !gone {
		return nil
	}
	home, err := jsonOf(&s.Home)
	if err != nil {
		return err
	}
	from, err := jsonOf(s.RecoverFrom)
	if err != nil {
		return err
	}
	same("desired_state", s.DesiredState)
	same("next_desired_state", nullable(s.NextDesired))
	same("deleted_at", s.DeletedAt)
	same("error_reason", nullable(s.ErrorReason))
	same("archive_key", nullable(s.ArchiveKey))
	same("home_ctx", home)
	same("retry_at", s.RetryAt)
	same("recover_requested_at", s.RecoverRequestedAt)
	same("recover_action", nullable(s.RecoverAction))
	same("recover_archive", from)
	same("cancel_requested_at", s.CancelRequestedAt)
	same("force_stop_requested_at", s.ForceStopRequestedAt)
	return nil
}

// sameTime compares to the database's precision.
func sameTime(a, b *time.Time) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Truncate(time.Microsecond).Equal(b.Truncate(time.Microsecond))
}

func equal[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
