package lifecycle

import (
	"time"

	"codehub/internal/workspace"
)

// StartRequested reports whether a start is desired or queued, so that opening the
// workspace requests nothing more.
func StartRequested(w workspace.Workspace) bool {
	return w.DesiredState == workspace.DesiredRunning || w.NextDesired == workspace.DesiredRunning
}

// AwaitsLimit reports whether only the owner's limits delay a queued start: the running limits, or
// that of bytes.
func AwaitsLimit(w workspace.Workspace) bool { return ApplyQueued(w, time.Time{}).NeedsSlot }

// QueuedState is the state that follows the running operation: a queued one, or a
// desired one that the operation does not reach. Before the first of two operations
// is claimed, it is the state that the second one reaches. It is empty if none follows.
func QueuedState(w workspace.Workspace) workspace.DesiredState {
	rule, running := rules[w.Operation]
	switch {
	case Present(w) != nil:
	case w.NextDesired != "":
		return w.NextDesired
	case running && w.Operation != workspace.OpDeleting && workspace.Phase(w.DesiredState) != rule.To,
		!running && w.Phase == workspace.PhaseRunning && w.DesiredState == workspace.DesiredArchived,
		!running && w.Phase == workspace.PhaseArchived && w.DesiredState == workspace.DesiredRunning:
		return w.DesiredState
	}
	return ""
}
