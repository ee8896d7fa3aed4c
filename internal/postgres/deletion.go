package postgres

import (
	"context"

	"codehub/internal/workspace"
)

// DeleteWorkspace deletes a workspace, which can be taken back for a while.
// Again is no error. CodeOperationInProgress while an operation runs, unless
// it is queued. A deletion that is stuck on an error is tried afresh.
func (db *DB) DeleteWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID, queue bool) (workspace.Workspace, error) {
	w, _, err := db.change(ctx, caller, id, change{
		verb: "delete a workspace",
		decide: func(d decision, w *workspace.Workspace) (record, bool, error) {
			entry := record{action: AuditDelete, details: map[string]any{"name": w.Name}}
			switch {
			case w.Phase == workspace.PhaseDeleted:
				return record{}, false, notFound("workspace")
			case w.DeletedAt != nil:
				if !w.ErrorReason.Final() || w.RecoverRequestedAt != nil {
					return record{}, false, nil
				}
				requestRecovery(d, w, workspace.RecoverAfresh)
				return record{action: AuditRecover}, true, nil
			case w.Operation != workspace.OpNone && !queue:
				return record{}, false, inProgress(w)
			case w.Operation != workspace.OpNone:
				changed := w.NextDesired != workspace.DesiredDeleted
				w.NextDesired = workspace.DesiredDeleted
				entry.queued()
				return entry, changed, nil
			}
			deleteNow(d, w)
			return entry, true, nil
		},
	})
	return w, err
}

// deleteNow marks w as deleted. An error that is recorded would hold the
// deletion up, so it is asked to be cleared.
func deleteNow(d decision, w *workspace.Workspace) {
	now := d.now
	w.DeletedAt, w.NextDesired = &now, ""
	if w.ErrorReason.Final() && w.RecoverRequestedAt == nil {
		requestRecovery(d, w, workspace.RecoverAfresh)
	}
}

func requestRecovery(d decision, w *workspace.Workspace, action string) {
	now := d.now
	w.RecoverRequestedAt, w.RecoverAction, w.RecoverFrom = &now, action, nil
}

// restorable selects deleted workspaces that can be undeleted. It is the
// negation of gone, in SQL.
const restorable = `deleted_at IS NOT NULL AND phase <> 'DELETED' AND home_ctx ->> 'state' <> 'deleting'
	AND (home_ctx ->> 'state' <> 'absent' OR home_ctx ->> 'claim' IS NULL)
	AND (home_ctx ->> 'state' IN ('live', 'archived') AND conditions #>> '{storage.volume_ready,status}' IS NOT DISTINCT FROM 'True'
		OR archive_key IS NOT NULL AND NOT EXISTS (SELECT FROM archives WHERE key = archive_key AND deleting_at IS NOT NULL))`

// UndeleteWorkspace takes a deletion back: to STANDBY if the home is live and
// its volume complete, else to ARCHIVED. CodeNotDeleted; CodeGone once the
// removal of the home is claimed or no complete copy of it is left;
// CodeNameTaken; CodeLimitExceeded if its container is still there and another
// workspace has taken its place.
func (db *DB) UndeleteWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, _, err := db.change(ctx, caller, id, change{
		verb:  "undelete a workspace",
		slots: true,
		decide: func(d decision, w *workspace.Workspace) (record, bool, error) {
			if w.DeletedAt == nil {
				return record{}, false, workspace.Errorf(workspace.CodeNotDeleted, "the workspace is not deleted")
			}
			switch gone, err := gone(ctx, d, w); {
			case err != nil:
				return record{}, false, err
			case gone:
				return record{}, false, workspace.Errorf(workspace.CodeGone, "the workspace is gone and cannot be brought back")
			}
			if w.Phase == workspace.PhaseRunning || w.Operation == workspace.OpStarting || w.Conditions.HasContainer() {
				if err := d.mayRun(); err != nil {
					return record{}, false, err
				}
			}
			// A backup of the database from before this must show as one.
			if err := wantMark(ctx, d.tx); err != nil {
				return record{}, false, err
			}
			w.DeletedAt, w.NextDesired = nil, ""
			w.DesiredState = workspace.DesiredArchived
			if w.Home.State == workspace.HomeLive && w.Conditions.Is(workspace.VolumeReady) {
				w.DesiredState = workspace.DesiredStandby
			}
			stays(d, w) // the deletion may not have been looked at yet
			return record{action: AuditUndelete, details: map[string]any{"name": w.Name}}, true, nil
		},
	})
	return w, err
}

// gone reports whether a deleted workspace cannot be brought back: no complete
// copy of its home is left, or the removal of the home is claimed. An archive
// counts until garbage collection has marked it (design §3.9). The grace is
// not looked at: what it ends with are those two.
func gone(ctx context.Context, d decision, w *workspace.Workspace) (bool, error) {
	whole := w.Home.State == workspace.HomeLive || w.Home.State == workspace.HomeArchived
	switch {
	case w.Phase == workspace.PhaseDeleted, w.Home.State == workspace.HomeDeleting, w.Home.Removed():
		return true, nil
	case whole && w.Conditions.Is(workspace.VolumeReady):
		return false, nil
	case w.ArchiveKey == "":
		return true, nil
	}
	return goingArchive(ctx, d.tx, w.ArchiveKey)
}

// graceBegan is since when the grace of a deletion counts, in SQL: since all waits
// were restarted, if that was after the deletion. NULL if there is no deletion.
const graceBegan = `CASE WHEN deleted_at IS NOT NULL THEN GREATEST(deleted_at, (SELECT restored_at FROM gc_state)) END`
