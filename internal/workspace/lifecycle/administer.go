package lifecycle

import (
	"time"

	"codehub/internal/workspace"
)

// AuditHandOver is the action of a workspace that gets another owner.
const AuditHandOver = "workspace.hand_over"

// Halt stops a workspace for an administrator: one that runs or is about to, after a
// running operation if there is one. force, and in ERROR any stop, removes the container at
// once. It starts and restores nothing: CodeNotRunning for a workspace at rest. A queued deletion
// stays queued, since it stops the workspace too.
func Halt(w workspace.Workspace, now time.Time, force bool) (Intent, error) {
	if err := Present(w); err != nil {
		return Intent{}, err
	}
	switch {
	case !HoldsSlot(w) && w.NextDesired != workspace.DesiredRunning:
		return Intent{}, workspace.Errorf(workspace.CodeNotRunning, "The workspace is not running.")
	case force, w.Phase == workspace.PhaseError:
		return RequestForceStop(w, now)
	case w.NextDesired == workspace.DesiredDeleted:
		return unchanged(w), nil
	case w.DesiredState != workspace.DesiredRunning:
		// Its stop is requested already, perhaps with a start after it.
		if w.NextDesired != workspace.DesiredRunning {
			return unchanged(w), nil
		}
		out := Intent{Workspace: w, Changed: true, Audit: Entry{AuditDesired, map[string]any{"from": w.DesiredState, "to": w.DesiredState}}}
		enqueue(&out.Workspace, "")
		return out, nil
	}
	return Desire(w, now, workspace.DesiredStandby, true)
}

// Stop stops a workspace for its owner: as Halt, and in ERROR as RequestForceStop. One that does
// not run, and is not about to, stays as it is.
func Stop(w workspace.Workspace, now time.Time) (Intent, error) {
	if err := Present(w); err != nil {
		return Intent{}, err
	}
	if w.Phase == workspace.PhaseError {
		return RequestForceStop(w, now)
	}
	if w.RestoreFrom != nil {
		return Desire(w, now, workspace.DesiredStandby, true)
	}
	out, err := Halt(w, now, false)
	if workspace.CodeOf(err) == workspace.CodeNotRunning {
		return unchanged(w), nil
	}
	return out, err
}

// HandOver gives a workspace to another user, under a name that may be another one. The
// workspace must be at rest, without a container: nothing of the former owner runs in it, and
// nothing that was decided for the former owner is carried out for the new one. Everything that
// may be a secret of the former owner and is not in the home is dropped. CodeNotFound once it
// is deleted; CodeOperationInProgress while an operation runs or a request is pending;
// CodeNotStopped; CodeInvalid if it is the user's already.
func HandOver(w workspace.Workspace, to, name string) (Intent, error) {
	switch err := Present(w); {
	case err != nil:
		return Intent{}, err
	case to == w.OwnerID:
		return Intent{}, workspace.Errorf(workspace.CodeInvalid, "The workspace belongs to this user already.")
	case w.Operation != workspace.OpNone:
		return Intent{}, inProgress(w)
	case w.PendingRequest() != "", w.NextDesired != "":
		return Intent{}, workspace.Errorf(workspace.CodeOperationInProgress, "A request for the workspace is not carried out yet. Try again when it is.")
	case !restsAt(w):
		return Intent{}, workspace.Errorf(workspace.CodeNotStopped, "The workspace is not stopped. Stop it first, and wait until it has stopped.")
	}
	out := Intent{Workspace: w, Changed: true, Audit: Entry{AuditHandOver, map[string]any{"name": name}}}
	next := &out.Workspace
	next.OwnerID, next.Name = to, name
	next.DropSecrets()
	next.TimeZone, next.KeepAwakeTil = "", nil
	if w.Phase == workspace.PhaseError && w.DesiredState == workspace.DesiredRunning {
		desire(next, stateWithoutStart(w)) // a recovery does not start it: that needs a slot of its new owner
	}
	return out, nil
}

// restsAt reports whether nothing happens to the workspace until the next request, and
// it has no container. In ERROR nothing acts on the desired state.
func restsAt(w workspace.Workspace) bool {
	if w.Conditions.HasContainer() {
		return false
	}
	switch w.Phase {
	case workspace.PhaseError:
		return true
	case workspace.PhasePending:
		return w.DesiredState == workspace.DesiredArchived
	case workspace.PhaseArchived, workspace.PhaseStandby:
		return string(w.DesiredState) == string(w.Phase)
	}
	return false
}
