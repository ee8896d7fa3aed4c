package postgres

import (
	"context"

	"codehub/internal/workspace"
)

// RequestRecover asks for the error to be cleared and for a fresh look
// (RecoverAfresh), for an empty home in place of what was lost (RecoverEmpty),
// or for what is in the home's way to be set aside (RecoverSetAside;
// CodeNotSupported if nothing is). CodeNotInError; CodeLimitExceeded if it
// would then run.
func (db *DB) RequestRecover(ctx context.Context, caller workspace.Caller, id workspace.ID, action string) (workspace.Workspace, error) {
	switch action {
	case workspace.RecoverAfresh, workspace.RecoverEmpty, workspace.RecoverSetAside:
	default:
		return workspace.Workspace{}, workspace.Errorf(workspace.CodeInvalid, "there is no such way to recover")
	}
	return db.requestRecover(ctx, caller, id, func(d decision, w *workspace.Workspace) (map[string]any, error) {
		if action == workspace.RecoverSetAside && (w.DeletedAt != nil || !w.Obstructed()) {
			return nil, workspace.Errorf(workspace.CodeNotSupported, "No volume blocks this workspace's home.")
		}
		requestRecovery(d, w, action)
		return map[string]any{"action": action}, nil
	})
}

// RequestRecoverArchive asks to go on with one of the workspace's archives in
// place of what was lost: that which the ARCHIVING archiveOpID made. It is kept
// until the controller has taken it. As RequestRecover, and CodeNotFound if the
// workspace is deleted, CodeArchiveNotFound if there is no such archive (any
// more), or it is the very one that is lost.
func (db *DB) RequestRecoverArchive(ctx context.Context, caller workspace.Caller, id workspace.ID, archiveOpID string) (workspace.Workspace, error) {
	return db.requestRecover(ctx, caller, id, func(d decision, w *workspace.Workspace) (map[string]any, error) {
		if err := present(w); err != nil {
			return nil, err
		}
		from, err := chooseArchive(ctx, d.tx, id, archiveOpID)
		if err != nil {
			return nil, err
		}
		if from.Key == w.ArchiveKey && w.ArchiveLost() {
			return nil, workspace.Errorf(workspace.CodeArchiveNotFound, "That archive is what is lost. Choose another, or recover to look for it once more.")
		}
		requestRecovery(d, w, workspace.RecoverArchive)
		w.RecoverFrom = &from
		return map[string]any{"action": workspace.RecoverArchive, "archive_key": from.Key}, nil
	})
}

// requestRecover has ask fill in the request, once it may be made, and say
// what to record.
func (db *DB) requestRecover(ctx context.Context, caller workspace.Caller, id workspace.ID,
	ask func(d decision, w *workspace.Workspace) (map[string]any, error)) (workspace.Workspace, error) {
	w, _, err := db.change(ctx, caller, id, change{
		verb:  "request a recovery",
		slots: true,
		decide: func(d decision, w *workspace.Workspace) (record, bool, error) {
			stuck := w.DeletedAt != nil && w.ErrorReason.Final()
			switch {
			case w.Phase == workspace.PhaseDeleted:
				return record{}, false, notFound("workspace")
			case w.Phase != workspace.PhaseError && !stuck:
				return record{}, false, workspace.Errorf(workspace.CodeNotInError, "the workspace is not in an error state")
			case w.DesiredState == workspace.DesiredRunning && w.DeletedAt == nil:
				if err := d.mayRun(); err != nil {
					return record{}, false, err
				}
			}
			details, err := ask(d, w)
			if err != nil {
				return record{}, false, err
			}
			details["error_reason"] = w.ErrorReason
			return record{action: AuditRecover, details: details}, true, nil
		},
	})
	return w, err
}

// RequestCancel asks for the running operation to be ended where that can be
// done, and wishes back where it came from. CodeNotCancellable otherwise.
func (db *DB) RequestCancel(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, _, err := db.change(ctx, caller, id, change{
		verb: "request a cancellation",
		decide: func(d decision, w *workspace.Workspace) (record, bool, error) {
			if err := present(w); err != nil {
				return record{}, false, err
			}
			back, ok := cancelled(w)
			if !ok {
				return record{}, false, workspace.Errorf(workspace.CodeNotCancellable, "there is nothing under way that can be cancelled")
			}
			now := d.now
			w.DesiredState, w.NextDesired, w.CancelRequestedAt = back, "", &now
			if keepsUp(w.Phase, back) {
				stays(d, w)
			}
			return record{action: AuditCancel, details: map[string]any{"operation": w.Operation}}, true, nil
		},
	})
	return w, err
}

// cancelled is what is desired once the running operation is cancelled. An
// archive whose home is being removed can only be finished.
func cancelled(w *workspace.Workspace) (workspace.DesiredState, bool) {
	switch {
	case w.Operation == workspace.OpStarting:
		return workspace.DesiredStandby, true
	case w.Operation == workspace.OpRestoring, w.Operation == workspace.OpProvisioning:
		return workspace.DesiredArchived, true
	case w.Operation == workspace.OpArchiving && w.Home.State == workspace.HomeLive:
		return workspace.DesiredStandby, true
	}
	return "", false
}

// RequestForceStop asks for the container to be removed now, whatever the
// phase and whatever runs.
func (db *DB) RequestForceStop(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, _, err := db.change(ctx, caller, id, change{
		verb: "request a forced stop",
		decide: func(d decision, w *workspace.Workspace) (record, bool, error) {
			if err := present(w); err != nil {
				return record{}, false, err
			}
			now := d.now
			w.ForceStopRequestedAt = &now
			if w.DesiredState == workspace.DesiredRunning {
				w.DesiredState = workspace.DesiredStandby
			}
			if w.NextDesired == workspace.DesiredRunning {
				w.NextDesired = ""
			}
			if keepsUp(w.Phase, w.DesiredState) {
				stays(d, w)
			}
			return record{action: AuditForceStop}, true, nil
		},
	})
	return w, err
}
