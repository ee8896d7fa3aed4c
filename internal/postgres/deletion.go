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

// What is left of a deleted workspace and can be brought back; the same as
// gone below says, for lists.
const (
	volumeThere = `conditions #>> '{storage.volume_ready,status}' IS NOT DISTINCT FROM 'True'`
	restorable  = `deleted_at IS NOT NULL AND phase <> 'DELETED' AND home_ctx ->> 'state' <> 'removing'
		AND (` + volumeThere + ` OR archive_key IS NOT NULL)`
)

// UndeleteWorkspace takes a deletion back: to STANDBY if the volume is there,
// else to ARCHIVED. CodeNotDeleted; CodeGone once the removal has begun or
// nothing is left; CodeNameTaken; CodeLimitExceeded if its container is still
// there and another workspace has taken its place.
func (db *DB) UndeleteWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, _, err := db.change(ctx, caller, id, change{
		verb:  "undelete a workspace",
		slots: true,
		decide: func(d decision, w *workspace.Workspace) (record, bool, error) {
			if w.DeletedAt == nil {
				return record{}, false, workspace.Errorf(workspace.CodeNotDeleted, "the workspace is not deleted")
			}
			switch gone, err := db.gone(ctx, d, w); {
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
			w.DeletedAt, w.NextDesired = nil, ""
			w.DesiredState = workspace.DesiredArchived
			if w.Conditions.Is(workspace.VolumeReady) {
				w.DesiredState = workspace.DesiredStandby
			}
			stays(d, w) // the deletion may not have been looked at yet
			return record{action: AuditUndelete, details: map[string]any{"name": w.Name}}, true, nil
		},
	})
	return w, err
}

// gone reports whether a deleted workspace cannot be brought back. A volume
// is safe until its removal was claimed; an archive for the grace, and not
// once it is being collected (design §3.9). A grace that a restored backup
// brought back begins anew, as garbage collection waits it out.
func (db *DB) gone(ctx context.Context, d decision, w *workspace.Workspace) (bool, error) {
	switch {
	case w.Phase == workspace.PhaseDeleted, w.Home.State == workspace.HomeRemoving:
		return true, nil
	case w.Conditions.Is(workspace.VolumeReady):
		return false, nil
	case w.ArchiveKey == "":
		return true, nil
	}
	var over bool
	err := d.tx.QueryRow(ctx, `SELECT $1 >= `+graceBegan("$2::timestamptz")+` + make_interval(secs => $3)`,
		d.now, w.DeletedAt, db.grace.Seconds()).Scan(&over)
	if err != nil || over {
		return over, err
	}
	return goingArchive(ctx, d.tx, w.ArchiveKey)
}

// graceBegan is since when the grace of what was deleted at a time counts, in
// SQL: since a restored backup brought the deletion back, if one did.
func graceBegan(deletedAt string) string {
	return `GREATEST(` + deletedAt + `, (SELECT restored_at FROM gc_state))`
}
