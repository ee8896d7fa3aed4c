package proxy

import "codehub/internal/workspace"

// A course is what becomes of a request for a workspace in some state: the
// rows of the table of design §8.
type course int

const (
	courseRelay   course = iota // to the IDE
	courseWake                  // a navigation wakes it, and waits
	courseQueue                 // a navigation queues the wish, and waits
	courseWait                  // it is on its way already
	courseRestore               // a person must ask for the archive
	courseStart                 // a person must ask for a first start
	courseFailed
	courseDeleted
)

// courseOf is pure. PENDING and ARCHIVED that are already wanted higher are
// on their way, though no operation has been claimed yet.
func courseOf(w workspace.Workspace) course {
	if w.DeletedAt != nil || w.Phase == workspace.PhaseDeleting || w.Phase == workspace.PhaseDeleted {
		return courseDeleted
	}
	switch w.Operation {
	case workspace.OpNone:
	case workspace.OpDeleting:
		return courseDeleted
	case workspace.OpStopping, workspace.OpArchiving:
		return courseQueue
	case workspace.OpProvisioning, workspace.OpRestoring:
		if w.DesiredState == workspace.DesiredStandby {
			return courseQueue // by itself it would end short of RUNNING
		}
		return courseWait
	default: // STARTING leads to RUNNING, CREATE_EMPTY_ARCHIVE to a page with a button
		return courseWait
	}
	wanted := w.DesiredState == workspace.DesiredStandby || w.DesiredState == workspace.DesiredRunning
	switch w.Phase {
	case workspace.PhaseRunning:
		return courseRelay
	case workspace.PhaseStandby:
		return courseWake
	case workspace.PhaseError:
		return courseFailed
	case workspace.PhaseArchived:
		if wanted {
			return courseWait
		}
		return courseRestore
	}
	if wanted {
		return courseWait
	}
	return courseStart
}
