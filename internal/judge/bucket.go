package judge

import "codehub/internal/workspace"

// AsksBucket reports whether the bucket is to be asked about the row's
// archive before it is judged: rows that are in an operation on it or may
// enter one (design §4), those whose archive nobody has seen yet, and those
// that are to be looked at afresh. All others keep what was last seen.
func AsksBucket(row workspace.Workspace) bool {
	if row.ArchiveKey == "" {
		return false
	}
	switch row.Operation {
	case workspace.OpNone:
		return row.RecoverRequestedAt != nil || !archiveSeen(row) || row.Home.State == workspace.HomeRemoving ||
			row.Home.State != workspace.HomeLive && row.DesiredState != workspace.DesiredArchived
	case workspace.OpRestoring, workspace.OpArchiving, workspace.OpCreateEmptyArchive:
		return true
	}
	return false
}

// archiveSeen reports whether the archive condition is about the archive that
// the row names, and not about none or an earlier one.
func archiveSeen(row workspace.Workspace) bool {
	return row.Conditions.Get(workspace.ArchiveReady).Message == row.ArchiveKey
}
