package lifecycle

import (
	"time"

	"codehub/internal/workspace"
)

// RequestRecover requests a way out of ERROR: RecoverAfresh clears the error,
// RecoverEmpty replaces a lost home with an empty one, and RecoverSetAside keeps
// the volume that blocks the home under another name. CodeNotLost;
// CodeNotSupported if no volume blocks the home; CodeInvalid for any other action. RecoverAfresh
// also retries a deletion that failed. For RecoverArchive see RequestRecoverFrom.
func RequestRecover(w workspace.Workspace, now time.Time, action string) (Intent, error) {
	out, err := recovery(w)
	if err != nil {
		return Intent{}, err
	}
	switch action {
	case workspace.RecoverAfresh:
	case workspace.RecoverEmpty:
		if LossOf(w) == "" {
			return Intent{}, notLost()
		}
	case workspace.RecoverSetAside:
		if w.DeletedAt != nil || !w.Obstructed() {
			return Intent{}, workspace.Errorf(workspace.CodeNotSupported, "No volume blocks this workspace's home.")
		}
	default:
		return Intent{}, workspace.Errorf(workspace.CodeInvalid, "Unknown recovery action.")
	}
	requestRecovery(&out.Workspace, now, action)
	out.Audit.Details["action"] = action
	return out, nil
}

// RequestRecoverFrom requests that an archive replaces the lost home. from is one of
// the workspace's archives, and nil if there is none with the ID that was asked
// for. CodeArchiveNotFound then, or if it is the lost archive itself;
// CodeNotLost.
func RequestRecoverFrom(w workspace.Workspace, now time.Time, from *workspace.Archive) (Intent, error) {
	out, err := recovery(w)
	switch {
	case err != nil:
		return Intent{}, err
	case w.DeletedAt != nil:
		return Intent{}, workspace.NotFound("workspace")
	case LossOf(w) == "":
		return Intent{}, notLost()
	case from == nil:
		return Intent{}, NoSuchArchive()
	case from.Key == w.ArchiveKey && ArchiveLost(w):
		return Intent{}, workspace.Errorf(workspace.CodeArchiveNotFound, "That archive is the one that is lost. Choose another one, or recover to check it again.")
	}
	requestRecovery(&out.Workspace, now, workspace.RecoverArchive)
	out.Workspace.RecoverFrom = from
	out.Audit.Details["action"], out.Audit.Details["archive_key"] = workspace.RecoverArchive, from.Key
	return out, nil
}

// WithoutStart is a recovery that does not start the workspace again, because its image
// is not allowed or its owner is not active: it stops, or becomes archived if it has no home
// yet. It can then be used in any other way.
func WithoutStart(out Intent) Intent {
	if out.Workspace.DeletedAt != nil {
		return out
	}
	desire(&out.Workspace, stateWithoutStart(out.Workspace))
	out.NeedsSlot = false
	return out
}

// stateWithoutStart is the desired state of a workspace in ERROR that a recovery does not
// start.
func stateWithoutStart(w workspace.Workspace) workspace.DesiredState {
	if w.Home.State == workspace.HomeLive {
		return workspace.DesiredStandby
	}
	return workspace.DesiredArchived
}

// recovery begins an intent to recover. CodeNotFound; CodeNotInError.
func recovery(w workspace.Workspace) (Intent, error) {
	failedDeletion := w.DeletedAt != nil && w.ErrorReason.Final()
	switch {
	case w.Phase == workspace.PhaseDeleted:
		return Intent{}, workspace.NotFound("workspace")
	case w.Phase != workspace.PhaseError && !failedDeletion:
		return Intent{}, workspace.Errorf(workspace.CodeNotInError, "The workspace is not in an error state.")
	case Vanishing(w):
		return Intent{}, workspace.Errorf(workspace.CodeNotSupported, "The files of this workspace are lost once its container ends. Copy them out, and stop the workspace by force afterwards.")
	}
	return Intent{
		Workspace: w, Changed: true,
		NeedsSlot: w.DesiredState == workspace.DesiredRunning && w.DeletedAt == nil,
		Audit:     Entry{AuditRecover, map[string]any{"error_reason": w.ErrorReason}},
	}, nil
}

// NoSuchArchive is the CodeArchiveNotFound error for an archive ID that names none
// of a workspace's archives.
func NoSuchArchive() error {
	return workspace.Errorf(workspace.CodeArchiveNotFound, "This workspace has no archive with that archive_op_id.")
}

func notLost() error {
	return workspace.Errorf(workspace.CodeNotLost, "The data of this workspace is not lost, so nothing replaces it. Recover the workspace instead.")
}

func requestRecovery(w *workspace.Workspace, now time.Time, action string) {
	w.RecoverRequestedAt, w.RecoverAction, w.RecoverFrom, w.RestoreFrom = &now, action, nil, nil
}

// RecheckArchive requests a new observation of a workspace at rest whose archive
// garbage collection found in another state than the recorded one: missing
// although it is recorded as ready, or complete although it is recorded as lost.
// verified is whether all of its content was read: a restore may have found it damaged
// although it looks complete. key names the archive that was listed. The request is one to
// recover: a lost archive becomes an error, and an archive that is back clears it. Of a
// workspace that is to run the controller observes the archive anyway. One whose archive is
// back stays archived instead, since a start needs a slot that its owner has to ask for.
func RecheckArchive(w workspace.Workspace, now time.Time, key string, complete, verified bool) Intent {
	atRest := Present(w) == nil && w.Operation == workspace.OpNone && w.Home.State != workspace.HomeLive
	if !atRest || w.RecoverRequestedAt != nil || key == "" || w.ArchiveKey != key {
		return unchanged(w)
	}
	seen := w.Conditions.Get(workspace.ArchiveReady)
	back := complete && archiveSeen(w) && ArchiveLost(w) && (!seen.True() || verified)
	if !back && (complete || !seen.True() || w.ErrorReason != "" || w.DesiredState == workspace.DesiredRunning) {
		return unchanged(w)
	}
	out := Intent{Workspace: w, Changed: true, Audit: Entry{AuditRecheck, map[string]any{"archive_key": key, "complete": complete}}}
	requestRecovery(&out.Workspace, now, workspace.RecoverAfresh)
	if w.DesiredState == workspace.DesiredRunning {
		out = WithoutStart(out)
	}
	return out
}
