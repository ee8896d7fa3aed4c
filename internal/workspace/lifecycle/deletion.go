package lifecycle

import (
	"time"

	"codehub/internal/workspace"
)

// Delete deletes the workspace, which can be undone for a while. During an
// operation, queue deletes it when the operation has ended, which happens at once if
// EndsForDeletion; without queue it is CodeOperationInProgress. To delete it again changes nothing, or retries a
// deletion that failed. CodeNotFound once nothing is left of it.
func Delete(w workspace.Workspace, now time.Time, queue bool) (Intent, error) {
	out := Intent{Workspace: w, Changed: true, Audit: Entry{AuditDelete, map[string]any{"name": w.Name}}}
	next := &out.Workspace
	switch {
	case w.Phase == workspace.PhaseDeleted:
		return Intent{}, workspace.NotFound("workspace")
	case w.DeletedAt != nil:
		if !w.ErrorReason.Final() || w.RecoverRequestedAt != nil {
			return unchanged(w), nil
		}
		requestRecovery(next, now, workspace.RecoverAfresh)
		out.Audit = Entry{Action: AuditRecover}
	case w.Operation != workspace.OpNone && !queue:
		return Intent{}, inProgress(w)
	case w.Operation != workspace.OpNone:
		if w.NextDesired == workspace.DesiredDeleted && w.RestoreFrom == nil {
			return unchanged(w), nil
		}
		enqueue(next, workspace.DesiredDeleted)
		out.Audit.Details["queued"] = true
	default:
		deleteNow(next, now)
	}
	return out, nil
}

// deleteNow marks w as deleted. A recorded error would block the deletion, so
// its recovery is requested too.
func deleteNow(w *workspace.Workspace, now time.Time) {
	w.DeletedAt, w.NextDesired, w.RestoreFrom = &now, "", nil
	if w.ErrorReason.Final() && w.RecoverRequestedAt == nil {
		requestRecovery(w, now, workspace.RecoverAfresh)
	}
}

// Undelete undoes a deletion: to STANDBY if the home is live and its volume
// complete, else to ARCHIVED. archiveGoing is whether garbage collection removes
// the workspace's archive. CodeNotDeleted; CodeGone, see Restorable.
func Undelete(w workspace.Workspace, now time.Time, archiveGoing bool) (Intent, error) {
	switch {
	case w.DeletedAt == nil:
		return Intent{}, workspace.Errorf(workspace.CodeNotDeleted, "The workspace is not deleted.")
	case !Restorable(w, archiveGoing):
		return Intent{}, workspace.Errorf(workspace.CodeGone, "The workspace's data is removed, so the workspace cannot be undeleted.")
	}
	out := Intent{Workspace: w, Changed: true, Audit: Entry{AuditUndelete, map[string]any{"name": w.Name}}}
	next := &out.Workspace
	next.DeletedAt = nil
	to := workspace.DesiredArchived
	if w.Home.State == workspace.HomeLive && w.Conditions.Is(workspace.VolumeReady) {
		to = workspace.DesiredStandby
	}
	desire(next, to)
	accessed(next, now, workspace.AccessRequest) // its phase may be that of before the deletion
	out.NeedsSlot = HoldsSlot(*next)             // its container may still be there
	return out, nil
}

// Restorable reports whether the deletion of a workspace can be undone: a
// complete copy of its home is left, and the removal of the home is not claimed.
// The end of the grace does not matter, only what the controller does then.
// archiveGoing is whether garbage collection removes its archive.
//
// The list of deleted workspaces applies the same rule in SQL
// (internal/postgres, restorable).
func Restorable(w workspace.Workspace, archiveGoing bool) bool {
	switch {
	case w.DeletedAt == nil, w.Phase == workspace.PhaseDeleted, w.Home.State == workspace.HomeDeleting, w.Home.Removed():
		return false
	case mayBeWhole(w.Home.State) && w.Conditions.Is(workspace.VolumeReady):
		return true
	}
	return w.ArchiveKey != "" && !archiveGoing
}

// NoCopy reports whether no complete copy of the workspace's home exists, such as before it is
// created for the first time or once it is lost. A deletion cannot be undone then. While the volume
// is not known it counts as complete.
func NoCopy(w workspace.Workspace) bool {
	return w.ArchiveKey == "" && (!mayBeWhole(w.Home.State) || w.Conditions.Get(workspace.VolumeReady).Status == "False")
}

// DeletionFailing reports whether the removal of a deleted workspace failed: until
// it is deleted again, or, once the removal of its home has begun, until the next
// attempt.
//
// The lists of deleted workspaces and of failed deletions apply the same rule in SQL
// (internal/postgres, deletionFailing).
func DeletionFailing(w workspace.Workspace) bool {
	switch {
	case w.DeletedAt == nil, w.Phase == workspace.PhaseDeleted:
		return false
	case w.ErrorReason.Final():
		return true
	}
	return w.Home.State == workspace.HomeDeleting && w.ErrorReason != "" && w.ErrorReason != workspace.ErrUnrestorable
}

// OnlyArchives reports whether a deleted workspace has at most archives left: no
// operation runs, and its home has no volume. Garbage collection may then remove the
// archives once the grace is over; SQL applies the same rule (internal/postgres,
// onlyArchives).
func OnlyArchives(op workspace.Operation, home workspace.HomeState) bool {
	return op == workspace.OpNone && home == workspace.HomeAbsent
}

// GraceEnds is when a deletion can no longer be undone: grace after it, or after
// all waits were restarted, if that was later. restarted is zero if they never
// were.
func GraceEnds(deleted, restarted time.Time, grace time.Duration) time.Time {
	return later(deleted, restarted).Add(grace)
}

// PurgeAt is GraceEnds for a workspace as it was read; false if it is not
// deleted. A workspace that the controller has not reached yet may be restored
// for longer.
func PurgeAt(w workspace.Workspace, grace time.Duration) (time.Time, bool) {
	if w.DeletedAt == nil {
		return time.Time{}, false
	}
	var restarted time.Time
	if w.GraceBegan != nil {
		restarted = *w.GraceBegan
	}
	return GraceEnds(*w.DeletedAt, restarted, grace), true
}
