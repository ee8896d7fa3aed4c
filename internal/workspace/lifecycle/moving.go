package lifecycle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"codehub/internal/workspace"
)

// Movable reports whether a workspace can be copied to another installation: it is
// archived, stays archived, and no operation runs or is requested.
func Movable(w workspace.Workspace) bool {
	return Present(w) == nil && w.Phase == workspace.PhaseArchived && w.Operation == workspace.OpNone &&
		w.DesiredState == workspace.DesiredArchived && w.NextDesired == "" && w.PendingRequest() == "" && w.ArchiveKey != "" && CheckMove(w) == nil
}

// CheckMove returns CodeNotSupported for a workspace whose home is only in a backup, which no move
// copies. Its next archive is one that can be moved.
func CheckMove(w workspace.Workspace) error {
	if w.Home.State != workspace.HomeLive && workspace.IsBackup(w.ArchiveKey) {
		return workspace.Errorf(workspace.CodeNotSupported, "The home of this workspace is in a backup, which cannot be moved. Start the workspace, and move it afterwards.")
	}
	return nil
}

// moveFormat is the version of the inputs of MoveVersion.
const moveFormat = 2

// MoveVersion identifies what a move copies of a workspace: its archive and what its owner
// has set. Two equal versions of a workspace are the same copy. Targets keep versions
// between runs, so the inputs may not change without a new moveFormat.
func MoveVersion(w workspace.Workspace) string {
	b, err := json.Marshal([]any{
		moveFormat, w.ID, w.OwnerID, w.Name, w.Description, w.Memo, w.ImageRef, w.Size, w.Env, w.TimeZone, w.StandbyTTL, w.ArchiveTTL, w.AwakeWhileWorking,
		w.ArchiveOpID, w.ArchiveKey, w.ArchiveDigest, w.ArchiveSize,
	})
	if err != nil {
		panic(err) // texts, numbers and maps of texts can always be encoded
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
