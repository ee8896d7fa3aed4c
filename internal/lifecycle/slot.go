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
