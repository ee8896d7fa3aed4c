package lifecycle

import "codehub/internal/workspace"

// State is the state of a workspace for display: its phase, or the change that is
// under way. It reflects a request immediately, before the controller acts on it.
type State string

// The states. The API has these words; pages have a text for each.
const (
	StatePending      State = "pending" // never started
	StatePreparing    State = "preparing"
	StateStarting     State = "starting"
	StateRunning      State = "running"
	StateStopping     State = "stopping"
	StateStopped      State = "stopped"
	StateArchiving    State = "archiving"
	StateArchived     State = "archived"
	StateRestoring    State = "restoring"
	StateError        State = "error"
	StateDeleting     State = "deleting"
	StateDeleteFailed State = "delete_failed"
	StateDeleted      State = "deleted"
)

// States lists every state.
func States() []State {
	return []State{StatePending, StatePreparing, StateStarting, StateRunning, StateStopping, StateStopped, StateArchiving,
		StateArchived, StateRestoring, StateError, StateDeleting, StateDeleteFailed, StateDeleted}
}

// Busy reports whether the workspace is on its way to another state.
func (s State) Busy() bool {
	switch s {
	case StatePreparing, StateStarting, StateStopping, StateArchiving, StateRestoring, StateDeleting:
		return true
	}
	return false
}

// StateOf returns the state of a workspace.
func StateOf(w workspace.Workspace) State {
	if w.DeletedAt != nil || w.Phase == workspace.PhaseDeleted {
		switch {
		case w.Phase == workspace.PhaseDeleted:
			return StateDeleted
		case w.ErrorReason.Final():
			return StateDeleteFailed
		case w.Operation == workspace.OpNone && w.Home.State != workspace.HomeDeleting:
			return StateDeleted
		}
		return StateDeleting
	}
	if rule, running := rules[w.Operation]; running {
		return rule.State
	}
	phase, wants := w.Phase, workspace.Phase(w.DesiredState)
	if phase == workspace.PhaseDeleting { // a deletion that was just undone
		phase = workspace.PhaseArchived
		if w.Home.State == workspace.HomeLive {
			phase = workspace.PhaseStandby
		}
	}
	switch phase {
	case workspace.PhaseError:
		return StateError
	case workspace.PhaseRunning:
		if wants.Level() < phase.Level() {
			return StateStopping
		}
		return StateRunning
	case workspace.PhaseStandby:
		switch {
		case wants.Level() > phase.Level():
			return StateStarting
		case wants.Level() < phase.Level():
			return StateArchiving
		}
		return StateStopped
	case workspace.PhaseArchived:
		if wants.Level() > phase.Level() {
			return StateRestoring
		}
		return StateArchived
	}
	if wants.Level() > workspace.PhaseArchived.Level() {
		return StatePreparing
	}
	return StatePending
}
