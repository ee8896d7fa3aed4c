package lifecycle

import "codehub/internal/workspace"

// Opening is what a person meets who opens a workspace.
type Opening int

const (
	OpenNow      Opening = iota // it runs: the proxy relays to the IDE
	OpenStarts                  // it is stopped: opening starts it
	OpenQueues                  // an operation runs first: opening queues a start
	OpenWaits                   // it becomes ready, or comes to rest, without the visitor
	OpenRestores                // it is archived: the visitor has to ask for the restore
	OpenCreates                 // it was never started: the visitor has to ask for that
	OpenFails                   // it is in ERROR
	OpenDeleted
)

// OpeningOf tells what opening the workspace leads to. Wake is the change that
// goes with OpenStarts and OpenQueues.
func OpeningOf(w workspace.Workspace) Opening {
	switch {
	case Present(w) != nil, w.Phase == workspace.PhaseDeleting, w.Operation == workspace.OpDeleting:
		return OpenDeleted
	case w.Operation == workspace.OpStopping, w.Operation == workspace.OpArchiving:
		return OpenQueues
	case w.Operation == workspace.OpProvisioning, w.Operation == workspace.OpRestoring:
		if w.DesiredState == workspace.DesiredStandby {
			return OpenQueues // it would end in STANDBY
		}
		return OpenWaits
	case w.Operation != workspace.OpNone:
		return OpenWaits // STARTING; CREATE_EMPTY_ARCHIVE ends in a page with a button
	}
	wanted := wantsHome(w.DesiredState) || wantsHome(w.NextDesired)
	switch w.Phase {
	case workspace.PhaseRunning:
		return OpenNow
	case workspace.PhaseStandby:
		return OpenStarts
	case workspace.PhaseError:
		if Vanishing(w) {
			return OpenNow // to copy the files out
		}
		return OpenFails
	}
	switch {
	case wanted:
		return OpenWaits // the operation is not claimed yet
	case w.Phase == workspace.PhaseArchived:
		return OpenRestores
	}
	return OpenCreates
}

func wantsHome(d workspace.DesiredState) bool {
	return d == workspace.DesiredStandby || d == workspace.DesiredRunning
}
