package lifecycle

import (
	"fmt"
	"time"

	"codehub/internal/workspace"
)

// running decides for a workspace on which an operation runs. It clears a request to
// cancel, whether or not the operation is cancelled.
func running(in Input) Result {
	r := proceed(in)
	r.ClearCancel = in.Row.CancelRequestedAt != nil
	return r
}

func proceed(in Input) Result {
	row := in.Row
	health := row.Conditions.Get(workspace.Healthy)
	rule, known := rules[row.Operation]
	done := known && rule.Complete(in)
	switch {
	case done && row.Operation == workspace.OpRestoring && health.Reason != workspace.ReasonContainerWithoutVolume:
		// The volume is complete, so the state of the archive does not matter.
		return completed(in)
	case !health.True():
		return failed(in, workspace.ErrorReason(health.Reason), health.Message)
	case done:
		return completed(in)
	case row.CancelRequestedAt != nil && Cancellable(row), givenUp(row), disturbed(row):
		return cancelled(in)
	}
	f := in.Work.Failure
	if f != nil && !f.Outage && !f.Passing {
		return failed(in, f.Reason, f.Message)
	}
	r := Result{Row: row}
	due := deadline(in)
	overdue := !due.After(in.Now)
	switch seen := in.Obs.ContainerKnown && in.Obs.VolumeKnown; {
	case waitsForUser(in), waitsForNode(in): // without a deadline
	case overdue && seen:
		message := fmt.Sprintf(msgLate, row.Operation)
		if f != nil && f.Passing {
			message = sentences(message, f.Message)
		}
		return failed(in, workspace.ErrTimeout, message)
	case !overdue:
		r.LookAgain = due
	} // else wait for a complete observation: the operation may be complete already
	if !in.Work.Running {
		r.Action = Action{Kind: Run, Op: row.Operation}
	}
	return r
}

// waitsForUser reports whether ARCHIVING waits for a container that uses the home.
// That is no error, however long it takes.
func waitsForUser(in Input) bool {
	f := in.Work.Failure
	return in.Row.Operation == workspace.OpArchiving && f != nil && f.Passing && f.InUse
}

// waitsForNode reports whether the operation waits for a container whose node does not respond.
// Only the node, or an administrator who confirms that it is dead, ends the container, however
// long that takes.
func waitsForNode(in Input) bool {
	f, k := in.Work.Failure, in.Obs.Container
	return k != nil && k.LostNode != "" && f != nil && f.Passing
}

func completed(in Input) Result {
	r := Result{Row: in.Row, Action: Action{Kind: Complete, Op: in.Row.Operation}}
	switch in.Row.Operation {
	case workspace.OpProvisioning:
		r.Row.Home.State = workspace.HomeLive
	case workspace.OpRestoring:
		r.Row.Home.State = workspace.HomeLive
		r.Row.Home.Marker = in.Row.ArchiveKey
	case workspace.OpStarting:
		r.Row.StopReason = ""
	case workspace.OpArchiving:
		r.Row.Home = workspace.Home{State: workspace.HomeAbsent}
	case workspace.OpDeleting:
		if in.Row.Home.State == workspace.HomeDeleting {
			r.Row.Home = removed(in.Row.Home)
		}
	}
	endOperation(&r.Row)
	clearError(&r.Row)
	r.ApplyQueued = in.Row.NextDesired != ""
	return r
}

// removed is the home once its volume is gone; see workspace.Home.Removed.
func removed(home workspace.Home) workspace.Home {
	gone := workspace.Home{State: workspace.HomeAbsent}
	if home.State == workspace.HomeDeleting {
		gone.Claim = home.Claim
	}
	return gone
}

// givenUp reports whether a request ends the operation. A workspace that is requested again while
// it is being archived keeps its volume, unless its removal has begun. A workspace without a home
// needs no archive to get one.
func givenUp(row workspace.Workspace) bool {
	switch row.NextDesired {
	case workspace.DesiredDeleted:
		return EndsForDeletion(row)
	case workspace.DesiredRunning, workspace.DesiredStandby:
		return row.Operation == workspace.OpCreateEmptyArchive ||
			row.Operation == workspace.OpArchiving && row.Home.State == workspace.HomeLive
	}
	// The restore for which the home is packed was given up.
	return row.Operation == workspace.OpArchiving && row.Home.State == workspace.HomeLive && Wanted(row) != workspace.DesiredArchived
}

// EndsForDeletion reports whether a queued deletion ends the running operation. A workspace that is
// to be deleted needs none that can be cancelled, some of which wait without a deadline, no
// empty archive, and no removal of an archived home that has not begun.
func EndsForDeletion(w workspace.Workspace) bool {
	return Cancellable(w) || w.Operation == workspace.OpCreateEmptyArchive ||
		w.Operation == workspace.OpArchiving && w.Conditions.Is(workspace.VolumeReady)
}

// disturbed reports whether a container exists while the home is packed, such as one
// that a killed server had started. It may change the files that are being packed.
func disturbed(row workspace.Workspace) bool {
	return row.Operation == workspace.OpArchiving && row.Home.State == workspace.HomeLive && row.Conditions.HasContainer()
}

func cancelled(in Input) Result {
	r := Result{Row: in.Row, Action: Action{Kind: Cancel, Op: in.Row.Operation}}
	endOperation(&r.Row)
	if in.Row.NextDesired == workspace.DesiredDeleted {
		clearError(&r.Row) // of attempts that do not count towards the deletion's
	}
	r.ApplyQueued = in.Row.NextDesired != ""
	return r
}

// failed records a failure. A final reason leads to ERROR at once, others after
// MaxAttempts. ERROR and operation NONE are written together.
func failed(in Input, reason workspace.ErrorReason, message string) Result {
	r := Result{Row: in.Row}
	op := in.Row.Operation
	endOperation(&r.Row)
	r.Row.ErrorCount++
	r.Row.ErrorMessage = withWayOut(in, message)
	switch {
	case reason.Final():
		r.Row.ErrorReason = reason
	case reason == workspace.ErrUnrestorable:
		// To pack the home again gives the same answer.
		r.Row.ErrorReason, r.Row.RetryAt = reason, nil
		r.ApplyQueued = in.Row.NextDesired != ""
	case r.Row.ErrorCount >= workspace.MaxAttempts:
		reason = workspace.ErrRetryExceeded
		r.Row.ErrorReason = reason
	default:
		at := in.Now.Add(in.Policy.Backoff(r.Row.ErrorCount, in.Jitter))
		r.Row.ErrorReason, r.Row.RetryAt = reason, &at
		r.LookAgain = at
		r.ApplyQueued = in.Row.NextDesired != ""
	}
	if reason.Final() {
		r.Row.RetryAt = nil
	}
	r.Action = Action{Kind: Fail, Op: op, Reason: reason, Message: message}
	return r
}

// Backoff is the wait after the nth failure: it doubles from RetryBase to RetryMax and is spread by up to half.
func (p Policy) Backoff(attempt int, jitter float64) time.Duration {
	d := p.RetryBase << min(attempt-1, 16)
	if d > p.RetryMax || d <= 0 {
		d = p.RetryMax
	}
	return d + time.Duration(jitter*float64(d)/2)
}

// MayStore reports whether the archive that the running operation made may become
// the workspace's own. The removal of the home follows, so nothing may have come
// in between: no cancellation, no request for the home, no container that was
// seen. A workspace without a home has nothing to lose.
func MayStore(w workspace.Workspace) bool {
	switch w.Operation {
	case workspace.OpCreateEmptyArchive:
		return true
	case workspace.OpArchiving:
		return w.Home.State == workspace.HomeLive && Wanted(w) == workspace.DesiredArchived && w.DeletedAt == nil &&
			w.CancelRequestedAt == nil && !givenUp(w) && !disturbed(w) &&
			w.Conditions.Get(workspace.ContainerReady).Reason == workspace.ReasonNoContainer
	}
	return false
}
