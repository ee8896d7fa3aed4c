package lifecycle

import "codehub/internal/workspace"

// LossOf returns why the home of a workspace is lost, DataLost or
// ArchiveCorrupted, and "" if it is not. It goes by what is recorded, and right
// after a recovery by the last observation. Only a lost home may be replaced, by
// an empty one or an archive. A home whose archive is lost while its volume is
// still complete is not lost: see VolumeKept.
func LossOf(w workspace.Workspace) workspace.ErrorReason {
	if w.DeletedAt != nil || VolumeKept(w) {
		return ""
	}
	return dataError(w)
}

// VolumeKept reports whether the archive of a workspace is lost and its volume
// still complete, so that a recovery goes on with the volume.
func VolumeKept(w workspace.Workspace) bool {
	return dataError(w) != "" && w.Home.State == workspace.HomeArchived && w.Conditions.Is(workspace.VolumeReady)
}

// ArchiveLost reports whether the archive that the workspace names is what is
// lost: its home is in the archive, and the archive is missing or damaged. No
// recovery can use that archive.
func ArchiveLost(w workspace.Workspace) bool {
	return w.ArchiveKey != "" && w.Home.State != workspace.HomeLive && dataError(w) != ""
}

// Vanishing reports whether only the running container keeps the home: its volume was removed
// in Kubernetes, which waits until no Pod uses it. The files can be copied out meanwhile, so the
// workspace can be opened, and nothing but a forced stop or a deletion ends its container.
func Vanishing(w workspace.Workspace) bool {
	return w.Phase == workspace.PhaseError && w.DeletedAt == nil && w.Operation == workspace.OpNone && homeGoes(w, w.Conditions) &&
		w.Conditions.Get(workspace.Healthy).Reason == workspace.ReasonContainerWithoutVolume
}

// homeGoes reports whether the volume of a complete home is being removed.
func homeGoes(w workspace.Workspace, c workspace.Conditions) bool {
	return w.Home.State == workspace.HomeLive && c.Get(workspace.VolumeReady).Reason == workspace.ReasonRemoving
}

// dataError is the error by which data is missing; "" if that is not its error.
func dataError(w workspace.Workspace) workspace.ErrorReason {
	reason := w.ErrorReason
	if health := w.Conditions.Get(workspace.Healthy); reason == "" && !health.True() {
		reason = workspace.ErrorReason(health.Reason) // a recovery has cleared the error, and the observation still shows it
	}
	switch reason {
	case workspace.ErrDataLost, workspace.ErrArchiveCorrupted:
		return reason
	}
	return ""
}

// lost is what a complete observation of the workspace shows to be missing. A
// damaged archive may be known from a failed restore alone. A deleted workspace
// has nothing to lose.
func lost(row workspace.Workspace) workspace.ErrorReason {
	if row.DeletedAt != nil {
		return ""
	}
	switch health := row.Conditions.Get(workspace.Healthy); {
	case !health.True():
		return workspace.ErrorReason(health.Reason)
	case row.Home.State != workspace.HomeLive && row.ErrorReason == workspace.ErrArchiveCorrupted:
		return row.ErrorReason
	}
	return ""
}
