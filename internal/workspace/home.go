package workspace

// HomeState is what may be done with the volume of a workspace. It is written
// by the controller alone, in the transaction of the step it belongs to
// (design §2, "The home's state").
type HomeState string

const (
	HomeAbsent   HomeState = "absent"   // no volume should exist
	HomeFilling  HomeState = "filling"  // being provisioned or restored: only this home may be wiped and filled again
	HomeLive     HomeState = "live"     // complete, the only current copy: never wiped
	HomeRemoving HomeState = "removing" // archived and verified, or deleted past its grace: only the removal may follow
)

// HomeStates lists every state of a home.
func HomeStates() []HomeState {
	return []HomeState{HomeAbsent, HomeFilling, HomeLive, HomeRemoving}
}

// Home is the content of the column home_ctx.
type Home struct {
	State HomeState `json:"state"`
	// Claim is the claim id of the operation that made the volume. The volume
	// carries it as a label: a volume with another claim, or none, is not this
	// home, whatever its name.
	Claim string `json:"claim,omitempty"`
	// Marker is the archive_key that was restored into the volume; empty for a
	// home that began empty.
	Marker string `json:"marker,omitempty"`
}

// ArchiveLost reports whether what is lost is the archive that the row names:
// the home is in it, and it is missing or damaged. There is no going on with
// that one; should it be back, a fresh look finds it.
func (w Workspace) ArchiveLost() bool {
	if w.ArchiveKey == "" || w.Home.State == HomeLive {
		return false
	}
	lost := w.ErrorReason
	if health := w.Conditions.Get(Healthy); lost == "" && !health.True() {
		lost = ErrorReason(health.Reason) // a recovery has just cleared the error, and the loss is still seen
	}
	return lost == ErrDataLost || lost == ErrArchiveCorrupted
}
