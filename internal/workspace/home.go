package workspace

import "slices"

// HomeState is what may be done with the volume of a workspace. Only
// the controller writes it, in the transaction of the step that it belongs to
// (docs/states.md#the-home).
type HomeState string

const (
	HomeAbsent     HomeState = "absent"     // no volume should exist
	HomeFilling    HomeState = "filling"    // being provisioned or restored: only this home may be wiped and filled again
	HomeLive       HomeState = "live"       // complete, the only current copy: never wiped
	HomeArchived   HomeState = "archived"   // its content is in the verified archive that archive_key names; the volume waits for its removal
	HomeDiscarding HomeState = "discarding" // the half-filled volume of a cancelled restore: never complete, waits for its removal
	HomeDeleting   HomeState = "deleting"   // deleted past its grace: the removal of the volume is claimed
)

// HomeStates lists every state of a home.
func HomeStates() []HomeState {
	return []HomeState{HomeAbsent, HomeFilling, HomeLive, HomeArchived, HomeDiscarding, HomeDeleting}
}

// Removable reports whether ARCHIVING removes the volume of a home in this
// state and does nothing else with it.
func (s HomeState) Removable() bool { return s == HomeArchived || s == HomeDiscarding }

// Home is the content of the column home_ctx.
type Home struct {
	State HomeState `json:"state"`
	// Claim is the claim id of the operation that made the volume. The volume
	// carries it as a label: a volume with another claim, or none, is not this
	// home, whatever its name. An absent home has a claim only if a deletion
	// removed its volume: see Removed.
	Claim string `json:"claim,omitempty"`
	// Marker is the archive_key that was restored into the volume; empty for a
	// home that began empty.
	Marker string `json:"marker,omitempty"`
	// UID is the uid that the home was last given to; 0: none since it was filled, or
	// unknown.
	UID uint32 `json:"uid,omitempty"`
	// NextUIDs are the uids that the home was to be given to by changes that have not
	// ended: any of its files may have one of them.
	NextUIDs []uint32 `json:"next_uids,omitempty"`
	// FromImage reports whether the files have the owners that an image gave them.
	FromImage bool `json:"from_image,omitempty"`
}

// Equal reports whether both are the same.
func (h Home) Equal(other Home) bool {
	return h.State == other.State && h.Claim == other.Claim && h.Marker == other.Marker &&
		h.UID == other.UID && slices.Equal(h.NextUIDs, other.NextUIDs) && h.FromImage == other.FromImage
}

// BelongsTo reports whether all files of the workspace's user are known to have the uid.
func (h Home) BelongsTo(uid uint32) bool {
	return h.UID == uid && len(h.NextUIDs) == 0 && !h.FromImage
}

// UserIDs returns the uids that files of the workspace's user may have: ArchivedUID, which
// those from an archive have, and those that the home was given to. Those from an image may
// belong to root as well.
func (h Home) UserIDs() []uint32 {
	ids := append([]uint32{ArchivedUID}, h.NextUIDs...)
	if h.UID != 0 {
		ids = append(ids, h.UID)
	}
	if h.FromImage {
		ids = append(ids, 0)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Removed reports whether a deletion past its grace removed the home's volume.
// An archive that is still there may be older than what was removed.
func (h Home) Removed() bool { return h.State == HomeAbsent && h.Claim != "" }

// Obstructed reports whether a volume with the home's name was last seen that
// is not this home. It can be set aside (RecoverSetAside).
func (w Workspace) Obstructed() bool {
	switch w.Conditions.Get(VolumeReady).Reason {
	case ReasonForeignVolume, ReasonUnowned:
		return true
	}
	return false
}

// PendingRequest names the request that was accepted and is not carried out
// yet: force_stop, cancel, recover, set_aside or restore; empty if there is none.
func (w Workspace) PendingRequest() string {
	switch {
	case w.ForceStopRequestedAt != nil:
		return "force_stop"
	case w.CancelRequestedAt != nil:
		return "cancel"
	case w.RecoverRequestedAt != nil && w.RecoverAction == RecoverSetAside:
		return "set_aside"
	case w.RecoverRequestedAt != nil:
		return "recover"
	case w.RestoreFrom != nil:
		return "restore"
	}
	return ""
}
