package lifecycle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"codehub/internal/workspace"
)

// Movable reports whether a workspace can be copied to another installation: it is
// archived, stays archived, and no operation runs or is requested.
func Movable(w workspace.Workspace) bool {
	return Present(w) == nil && w.Phase == workspace.PhaseArchived && w.Operation == workspace.OpNone &&
		w.DesiredState == workspace.DesiredArchived && w.NextDesired == "" && w.PendingRequest() == "" && w.ArchiveKey != "" && !InBackup(w)
}

// InBackup reports whether the home is only in a backup or in the archive of another workspace, which no
// move copies: of a fork that was never started, or after a restore that ended early. The next archive of such a home is one that can be moved.
func InBackup(w workspace.Workspace) bool {
	return w.Home.State != workspace.HomeLive && workspace.SharedArchive(w.ID, w.ArchiveKey)
}

// ArchiveToMove requests that a workspace is archived so that it can be moved. A home that is only in a
// backup is unpacked first: the request has to be repeated once it is. Neither is activity of the owner.
// The errors are those of Desire.
func ArchiveToMove(w workspace.Workspace, now time.Time) (Intent, error) {
	want := workspace.DesiredArchived
	if InBackup(w) {
		want = workspace.DesiredStandby
	}
	out, err := Desire(w, now, want, true)
	out.Workspace.LastAccessAt, out.Workspace.LastAccess = w.LastAccessAt, w.LastAccess
	return out, err
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
