package lifecycle

import "codehub/internal/workspace"

// Phase is what the conditions add up to. The first row of the table in
// docs/states.md that holds counts: deletion, then health, then resources.
func Phase(row workspace.Workspace, c workspace.Conditions) workspace.Phase {
	volume := c.Is(workspace.VolumeReady)
	switch {
	case row.DeletedAt != nil && nothingLeft(row, c):
		return workspace.PhaseDeleted
	case row.DeletedAt != nil:
		return workspace.PhaseDeleting
	case !c.Is(workspace.Healthy), row.ErrorReason.Final():
		return workspace.PhaseError
	case volume && c.Is(workspace.ContainerReady):
		return workspace.PhaseRunning
	case volume:
		return workspace.PhaseStandby
	case c.Is(workspace.ArchiveReady):
		return workspace.PhaseArchived
	}
	return workspace.PhasePending
}

// nothingLeft: no home (and so no volume of ours), no container, no archive,
// and all of that seen, not assumed.
func nothingLeft(row workspace.Workspace, c workspace.Conditions) bool {
	return OnlyArchives(row.Operation, row.Home.State) &&
		c.Get(workspace.ContainerReady).Reason == workspace.ReasonNoContainer &&
		c.Get(workspace.VolumeReady).Reason != workspace.ReasonNotObserved &&
		row.ArchiveKey == ""
}

// ownVolume reports whether a volume of this very home was last seen,
// complete or not. One that codehub did not make for it is never removed.
func ownVolume(c workspace.Conditions) bool {
	switch c.Get(workspace.VolumeReady).Reason {
	case workspace.ReasonVolumeReady, workspace.ReasonFilling, workspace.ReasonDiscarding, workspace.ReasonRemoving:
		return true
	}
	return false
}
