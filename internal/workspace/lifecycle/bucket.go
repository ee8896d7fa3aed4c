package lifecycle

import "codehub/internal/workspace"

// AsksBucket reports whether to observe the row's archive before the row is judged:
// if an operation uses it or may begin to, if it was never observed, or if a recovery
// is requested. Otherwise the last observation stays. A deleted workspace has nothing
// to lose.
func AsksBucket(row workspace.Workspace) bool {
	if row.ArchiveKey == "" || row.DeletedAt != nil {
		return false
	}
	switch {
	case row.Operation == workspace.OpNone:
		return row.RecoverRequestedAt != nil || !archiveSeen(row) || row.Home.State.Removable() || leftOver(row) || replaceable(row) ||
			row.Home.State != workspace.HomeLive && Wanted(row) != workspace.DesiredArchived
	case OnBucket(row.Operation):
		return true
	}
	return false
}

// AsksEarlier reports whether the archive that a recovery names is looked up. It
// replaces the lost home only if it is present.
func AsksEarlier(row workspace.Workspace) bool {
	return row.Operation == workspace.OpNone && row.RecoverRequestedAt != nil &&
		row.RecoverAction == workspace.RecoverArchive && row.RecoverFrom != nil
}

// EarlierOf is the archive or backup that a request names in place of the present archive, if it is
// looked up now; otherwise nil. See AsksEarlier, and restored.
func EarlierOf(row workspace.Workspace) *workspace.Archive {
	switch {
	case AsksEarlier(row):
		return row.RecoverFrom
	case row.RecoverRequestedAt == nil && replaceable(row):
		return row.RestoreFrom
	}
	return nil
}

// leftOver reports whether the volume is left from a cancelled restore. The archive
// holds all of it.
func leftOver(row workspace.Workspace) bool {
	return row.Home.State == workspace.HomeFilling && row.ArchiveKey != "" &&
		Wanted(row) == workspace.DesiredArchived && row.Conditions.Get(workspace.VolumeReady).Reason == workspace.ReasonFilling
}

// archiveSeen reports whether the archive condition is about the archive that the
// row names now.
func archiveSeen(row workspace.Workspace) bool {
	return row.Conditions.Get(workspace.ArchiveReady).Message == row.ArchiveKey
}
