package lifecycle

import (
	"time"

	"codehub/internal/workspace"
)

// Intent is what a request makes of a workspace. It changes only the fields
// that the API layer owns.
type Intent struct {
	// Workspace is what to save; if nothing changed, the workspace as it was.
	Workspace workspace.Workspace
	Changed   bool
	// AccessOnly: nothing changed but the last use, so updated_at stays.
	AccessOnly bool
	// NeedsSlot: to be saved only if the running limits admit the workspace.
	NeedsSlot bool
	// FreesSpace: the start is requested to free space, which limits of disk space allow now and
	// then.
	FreesSpace bool
	Audit      Entry
}

// Entry is what an intent adds to the audit log; nothing if Action is empty.
type Entry struct {
	Action  string
	Details map[string]any
}

// Actions of intents in the audit log.
const (
	AuditDelete    = "workspace.delete"
	AuditUndelete  = "workspace.undelete"
	AuditDesired   = "workspace.desired_state"
	AuditWake      = "workspace.wake"
	AuditRecover   = "workspace.recover"
	AuditRecheck   = "workspace.recheck_archive"
	AuditCancel    = "workspace.cancel"
	AuditForceStop = "workspace.force_stop"
	AuditRestart   = "workspace.restart"
	AuditImage     = "workspace.image"
	AuditEnv       = "workspace.env" // with the names of the variables, not their values
)

// unchanged is the intent that changes nothing.
func unchanged(w workspace.Workspace) Intent { return Intent{Workspace: w} }

// Desire sets the desired state. While an operation runs, queue keeps it for
// later; without queue it is CodeOperationInProgress. Only the last request
// counts: one for the present desired state drops what was queued after it.
// CodeNotFound once the workspace is deleted; CodeRecoveryRequired in ERROR;
// CodeInvalid for DELETED, see Delete.
func Desire(w workspace.Workspace, now time.Time, want workspace.DesiredState, queue bool) (Intent, error) {
	if err := Present(w); err != nil {
		return Intent{}, err
	}
	out := Intent{Workspace: w, Changed: true, Audit: Entry{AuditDesired, map[string]any{"from": w.DesiredState, "to": want}}}
	next := &out.Workspace
	switch _, known := workspace.ParseDesiredState(string(want)); {
	case !known:
		return Intent{}, workspace.Errorf(workspace.CodeInvalid, "The desired state must be ARCHIVED, STANDBY or RUNNING.")
	case w.Phase == workspace.PhaseError:
		return Intent{}, workspace.Errorf(workspace.CodeRecoveryRequired, "The workspace is in an error state. Recover it first.")
	case want == w.DesiredState:
		enqueue(next, "")
		out.Changed = w.NextDesired != "" || w.RestoreFrom != nil
	case w.Operation != workspace.OpNone && !queue:
		return Intent{}, inProgress(w)
	case w.Operation != workspace.OpNone:
		enqueue(next, want)
		out.Changed = w.NextDesired != want || w.RestoreFrom != nil
		out.Audit.Details["queued"] = true
	default:
		desire(next, want)
		out.NeedsSlot = want == workspace.DesiredRunning
	}
	if !out.Changed {
		return unchanged(w), nil
	}
	if keepsUp(w.Phase, want) {
		accessed(next, now, workspace.AccessRequest)
	}
	return out, nil
}

// ApplyQueued makes the queued state the desired one. It changes nothing if none
// is queued, while an operation runs, and in ERROR, where only a deletion is
// applied. Who needs a slot and gets none keeps waiting.
func ApplyQueued(w workspace.Workspace, now time.Time) Intent {
	out := Intent{Workspace: w, Changed: true}
	next := &out.Workspace
	switch want := w.NextDesired; {
	case want == "", Present(w) != nil, w.Operation != workspace.OpNone, Restarting(w):
		return unchanged(w)
	case want == workspace.DesiredDeleted:
		deleteNow(next, now)
	case w.Phase == workspace.PhaseError:
		return unchanged(w)
	default:
		out.NeedsSlot = want == workspace.DesiredRunning && w.DesiredState != want
		desire(next, want)
	}
	return out
}

// Wake is a person opening the workspace: a stopped one starts, and one that is
// being stopped or archived starts afterwards. Anything else goes on as it is.
// A workspace whose home a backup is about to replace starts after that.
// See OpeningOf for what the visitor sees. CodeNotFound once it is deleted.
func Wake(w workspace.Workspace, now time.Time) (Intent, error) {
	if err := Present(w); err != nil {
		return Intent{}, err
	}
	out := Intent{Workspace: w, Changed: true, Audit: Entry{Action: AuditWake}}
	next := &out.Workspace
	switch {
	case w.RestoreFrom != nil:
		if w.DesiredState == workspace.DesiredRunning || w.Phase == workspace.PhaseError {
			out.AccessOnly, out.Audit = true, Entry{}
			break
		}
		next.DesiredState, next.DesiredCause = workspace.DesiredRunning, ""
		out.NeedsSlot = true
	case startsAtOnce(w):
		desire(next, workspace.DesiredRunning)
		out.NeedsSlot = true
	case startsAfter(w):
		next.NextDesired = workspace.DesiredRunning
	default:
		out.AccessOnly, out.Audit = true, Entry{}
	}
	accessed(next, now, workspace.AccessOpen)
	return out, nil
}

// startsAtOnce: the home is there and no operation runs. A queued deletion stays.
func startsAtOnce(w workspace.Workspace) bool {
	return w.Operation == workspace.OpNone &&
		(w.Phase == workspace.PhaseStandby || w.Phase == workspace.PhaseRunning) &&
		w.NextDesired != workspace.DesiredDeleted &&
		(w.DesiredState != workspace.DesiredRunning || w.NextDesired != "")
}

// startsAfter: an operation runs that does not lead to RUNNING.
func startsAfter(w workspace.Workspace) bool {
	return rules[w.Operation].StartsAfter && w.DesiredState != workspace.DesiredRunning &&
		w.NextDesired != workspace.DesiredRunning && w.NextDesired != workspace.DesiredDeleted
}

// Stay restarts the idle timeout of a running workspace at its owner's request.
// If it was just found idle, that is undone. CodeNotRunning, and
// CodeOperationInProgress once it is being stopped.
func Stay(w workspace.Workspace, now time.Time) (Intent, error) {
	switch err := Present(w); {
	case err != nil:
		return Intent{}, err
	case w.Phase != workspace.PhaseRunning:
		return Intent{}, workspace.Errorf(workspace.CodeNotRunning, "The workspace is not running.")
	case w.Operation != workspace.OpNone:
		return Intent{}, inProgress(w)
	}
	out := Intent{Workspace: w, Changed: true, AccessOnly: true}
	accessed(&out.Workspace, now, workspace.AccessStay)
	if w.DesiredState != workspace.DesiredRunning && w.DesiredCause == workspace.CauseIdle {
		desire(&out.Workspace, workspace.DesiredRunning)
		out.AccessOnly, out.NeedsSlot = false, true
		out.Audit = Entry{AuditDesired, map[string]any{"from": w.DesiredState, "to": workspace.DesiredRunning}}
	}
	return out, nil
}

// RequestCancel requests the end of the running operation, and returns the desired
// state to where it came from. A queued deletion stays queued; another queued state is
// dropped. CodeNotCancellable; see CancelTo.
func RequestCancel(w workspace.Workspace, now time.Time) (Intent, error) {
	if err := Present(w); err != nil {
		return Intent{}, err
	}
	back, ok := CancelTo(w)
	if !ok {
		return Intent{}, workspace.Errorf(workspace.CodeNotCancellable, "No operation is running that can be cancelled.")
	}
	out := Intent{Workspace: w, Changed: true, Audit: Entry{AuditCancel, map[string]any{"operation": w.Operation}}}
	next := &out.Workspace
	desire(next, back)
	if w.NextDesired == workspace.DesiredDeleted {
		enqueue(next, w.NextDesired)
	} else if w.NextDesired != "" {
		out.Audit.Details["dropped"] = w.NextDesired
	}
	next.CancelRequestedAt = &now
	if keepsUp(w.Phase, back) {
		accessed(next, now, workspace.AccessRequest)
	}
	return out, nil
}

// RequestForceStop requests the removal of the container now, in any phase and during
// any operation.
func RequestForceStop(w workspace.Workspace, now time.Time) (Intent, error) {
	if err := Present(w); err != nil {
		return Intent{}, err
	}
	out := Intent{Workspace: w, Changed: true, Audit: Entry{Action: AuditForceStop}}
	next := &out.Workspace
	next.ForceStopRequestedAt = &now
	queued := next.NextDesired
	if queued == workspace.DesiredRunning {
		queued = ""
	}
	if next.DesiredState == workspace.DesiredRunning {
		desire(next, workspace.DesiredStandby)
	}
	enqueue(next, queued)
	if keepsUp(w.Phase, next.DesiredState) {
		accessed(next, now, workspace.AccessRequest)
	}
	return out, nil
}

// Restart stops a running workspace and starts it again: its stop is requested,
// with a start queued after it. CodeNotRunning, and CodeOperationInProgress while
// an operation runs.
func Restart(w workspace.Workspace, now time.Time) (Intent, error) {
	switch err := Present(w); {
	case err != nil:
		return Intent{}, err
	case w.Phase != workspace.PhaseRunning:
		return Intent{}, workspace.Errorf(workspace.CodeNotRunning, "The workspace is not running.")
	case w.Operation != workspace.OpNone:
		return Intent{}, inProgress(w)
	}
	out := Intent{Workspace: w, Changed: true, Audit: Entry{Action: AuditRestart}}
	next := &out.Workspace
	next.DesiredState, next.DesiredCause = workspace.DesiredStandby, workspace.CauseRestart
	next.NextDesired, next.RestoreFrom = workspace.DesiredRunning, nil
	accessed(next, now, workspace.AccessRequest)
	return out, nil
}

// SetImage changes the image of the workspace. The next start uses it; a
// container that exists keeps its own. If ImageBlocks, the workspace is started
// again: it recovers from ERROR, or its operation ends and is claimed again.
func SetImage(w workspace.Workspace, now time.Time, image string) (Intent, error) {
	if err := Present(w); err != nil {
		return Intent{}, err
	}
	if image == w.ImageRef {
		return unchanged(w), nil
	}
	out := Intent{Workspace: w, Changed: true, Audit: Entry{AuditImage, map[string]any{"from": w.ImageRef, "to": image}}}
	out.Workspace.ImageRef, out.Workspace.PreviousImage = image, w.ImageRef
	out.Workspace.ImageGeneration++
	out.Workspace.ImagePull = false
	switch {
	case !ImageBlocks(w):
	case w.Operation != workspace.OpNone:
		out.Workspace.CancelRequestedAt = &now // the desired state stays, so the operation is claimed again
	default:
		requestRecovery(&out.Workspace, now, workspace.RecoverAfresh)
		out.NeedsSlot = w.DesiredState == workspace.DesiredRunning
		out.Audit.Details["error_reason"] = w.ErrorReason
	}
	return out, nil
}

// ImageWaits reports whether the image of the workspace waits for its next start:
// its container was made from another one.
func ImageWaits(w workspace.Workspace) bool {
	return w.RunningImage != "" && w.RunningImage != w.ImageRef
}

// Restarting reports whether a restart waits for its stop to begin.
func Restarting(w workspace.Workspace) bool {
	return w.Phase == workspace.PhaseRunning && w.Operation == workspace.OpNone &&
		w.DesiredCause == workspace.CauseRestart && w.NextDesired == workspace.DesiredRunning
}

// desire makes a state the desired one, and drops what was queued.
func desire(w *workspace.Workspace, to workspace.DesiredState) {
	if w.DesiredState != to {
		w.DesiredState, w.DesiredCause = to, ""
	}
	enqueue(w, "")
}

// enqueue replaces the queued state; empty: none. A stop without its queued start is no part of a
// restart any more. A request for a state drops a restore that has not replaced the home yet.
func enqueue(w *workspace.Workspace, to workspace.DesiredState) {
	w.NextDesired, w.RestoreFrom = to, nil
	if to != workspace.DesiredRunning && w.DesiredCause == workspace.CauseRestart {
		w.DesiredCause = ""
	}
}

// Present is CodeNotFound for a workspace that is deleted.
func Present(w workspace.Workspace) error {
	if w.Phase == workspace.PhaseDeleted || w.DeletedAt != nil {
		return workspace.NotFound("workspace")
	}
	return nil
}

func inProgress(w workspace.Workspace) error {
	return &workspace.Error{
		Code:    workspace.CodeOperationInProgress,
		Message: "Another operation is running. Try again when it has finished, or queue the request.",
		Details: map[string]any{"operation": string(w.Operation)},
	}
}

// keepsUp reports whether a desired state leaves a phase that an idle timeout
// ends as it is, or leads up from it: then the timeout restarts, although the
// phase does not change.
func keepsUp(phase workspace.Phase, want workspace.DesiredState) bool {
	return phase == workspace.PhaseStandby && want != workspace.DesiredArchived ||
		phase == workspace.PhaseRunning && want == workspace.DesiredRunning
}

// accessed records a use of the workspace.
func accessed(w *workspace.Workspace, now time.Time, kind string) {
	if w.LastAccessAt == nil || w.LastAccessAt.Before(now) {
		w.LastAccessAt = &now
	}
	w.LastAccess = kind
}
