package lifecycle

import (
	"time"

	"codehub/internal/workspace"
)

// Actions of restores in place in the audit log.
const (
	AuditRestore        = "workspace.restore"
	AuditRestoreDone    = "workspace.restore_done"    // the backup has replaced the archive of the home
	AuditRestoreDropped = "workspace.restore_dropped" // it could not: details.error says why
)

// RequestRestore requests that a backup replaces the home of a workspace, which is archived first.
// The workspace runs afterwards if start is set or if it runs or is to run, and else is stopped. A
// running operation ends first. The next request for a state drops it, and so does a recovery.
// CodeNotFound; CodeRecoveryRequired in ERROR.
func RequestRestore(w workspace.Workspace, now time.Time, from *workspace.Archive, start bool) (Intent, error) {
	switch err := Present(w); {
	case err != nil:
		return Intent{}, err
	case from == nil:
		return Intent{}, workspace.NotFound("backup")
	case w.Phase == workspace.PhaseError:
		return Intent{}, workspace.Errorf(workspace.CodeRecoveryRequired, "The workspace is in an error state. Recover it first.")
	}
	to := workspace.DesiredStandby
	if start || StartRequested(w) {
		to = workspace.DesiredRunning
	}
	out := Intent{
		Workspace: w, Changed: true, NeedsSlot: to == workspace.DesiredRunning && w.DesiredState != to,
		Audit: Entry{AuditRestore, map[string]any{"backup": from.OpID, "key": from.Key, "to": to}},
	}
	next := &out.Workspace
	desire(next, to)
	next.DesiredCause, next.RestoreFrom = "", from
	accessed(next, now, workspace.AccessRequest)
	return out, nil
}

// Wanted is the state that the rules lead to: ARCHIVED while a backup is to replace the home, then
// the desired state.
func Wanted(w workspace.Workspace) workspace.DesiredState {
	if w.RestoreFrom != nil {
		return workspace.DesiredArchived
	}
	return w.DesiredState
}

// replaceable reports whether the home has no volume any more, so that a backup may replace its
// archive.
func replaceable(w workspace.Workspace) bool {
	return w.RestoreFrom != nil && w.Operation == workspace.OpNone && w.DeletedAt == nil && w.ArchiveKey != "" &&
		(w.Home.State == workspace.HomeAbsent || w.Home.State == workspace.HomeFilling && w.Conditions.Get(workspace.VolumeReady).Reason == workspace.ReasonNoVolume)
}

// restored carries out a restore in place once the home is archived: the backup replaces the archive,
// which stays as an earlier one. Both must be present in this observation. done is whether that, or
// the end of the request, is the decision.
func restored(in Input, r Result) (out Result, done bool) {
	row, from := in.Row, in.Row.RestoreFrom
	details := map[string]any{"backup": from.OpID, "key": from.Key}
	switch {
	case unrestorable(row):
		return dropped(r, details, row.ErrorMessage), true
	case !replaceable(row) || row.Phase != workspace.PhaseArchived || in.Obs.Archive != ArchivePresent:
		return r, false
	case in.Obs.Earlier == ArchiveMissing:
		return dropped(r, details, msgBackupMissing), true
	case in.Obs.Earlier == ArchiveCorrupted:
		return dropped(r, details, msgBackupDamaged), true
	case in.Obs.Earlier != ArchivePresent:
		return r, false
	}
	details["archive_key"] = row.ArchiveKey
	r.Row.ArchiveKey, r.Row.ArchiveDigest, r.Row.ArchiveSize = from.Key, from.Digest, from.Size
	r.Action, r.ClearRestore = Action{Kind: Settle}, true
	r.Audit = &Entry{AuditRestoreDone, details}
	return r, true
}

// dropped ends a restore in place. The workspace goes on with its own home.
func dropped(r Result, details map[string]any, why string) Result {
	details["error"] = why
	r.Action, r.ClearRestore = Action{Kind: Settle}, true
	r.Audit = &Entry{AuditRestoreDropped, details}
	return r
}
