package lifecycle

import "codehub/internal/workspace"

// HoldsSlot reports whether the workspace counts against the running limits: it
// runs, is about to, or has a container that was seen, whatever its state. The
// limits count all workspaces by the same rule in SQL (column holds_slot).
func HoldsSlot(w workspace.Workspace) bool {
	switch {
	case w.DeletedAt != nil, w.Phase == workspace.PhaseDeleted:
		return false
	case w.Phase == workspace.PhaseRunning, w.Operation == workspace.OpStarting, w.Conditions.HasContainer():
		return true
	}
	return w.DesiredState == workspace.DesiredRunning && (w.Phase != workspace.PhaseError || w.RecoverRequestedAt != nil)
}

// AwaitSlot queues a start that the running limits refuse, which ApplyQueued makes the desired
// state when they allow it. w is the workspace before the intent.
func AwaitSlot(w workspace.Workspace, out Intent) Intent {
	at := w.DesiredState
	if at == workspace.DesiredRunning { // in ERROR, where it counts against no limit
		at = workspace.DesiredStandby
	}
	desire(&out.Workspace, at)
	enqueue(&out.Workspace, workspace.DesiredRunning)
	out.NeedsSlot, out.Audit.Details["queued"] = false, true
	return out
}
