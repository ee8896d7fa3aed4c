package lifecycle

import (
	"time"

	"codehub/internal/base/setting"
	"codehub/internal/workspace"
)

// OwnedSpace is how much disk space the workspaces of one owner use and may use, in bytes. A
// workspace counts with its home as last measured, or with its current archive if it is archived
// or its home is not measured. Other archives do not count: only the server's policy keeps them,
// and their owner cannot delete them.
type OwnedSpace struct {
	Used  int64
	Limit int64 // 0: none
}

// Full reports whether no workspace is added, and a workspace is started only to free space.
func (s OwnedSpace) Full() bool { return s.Limit > 0 && s.Used >= s.Limit }

// Check returns CodeQuotaExceeded if no workspace may be added.
func (s OwnedSpace) Check() error {
	if !s.Full() {
		return nil
	}
	return s.refusal("Free space in one of them, delete one, or ask an administrator for a higher limit.")
}

// CheckOwned refuses an intent that starts a workspace of an owner who uses as much space as
// allowed with CodeQuotaExceeded, unless the start is requested to free space (Intent.FreesSpace)
// and that may be done now. A workspace that runs, a restart and a recovery go on: their start was
// allowed.
func CheckOwned(w workspace.Workspace, out Intent, owned OwnedSpace, now time.Time) (Intent, error) {
	if !out.NeedsSlot || !owned.Full() || !rests(w) || restarts(w) || queuedToFree(w) {
		return out, nil
	}
	if !out.FreesSpace || !MayFree(w, now) {
		return Intent{}, owned.overLimit(w, now)
	}
	return freeing(w, out, now), nil
}

// rests reports whether a start of the workspace begins a new use of it.
func rests(w workspace.Workspace) bool {
	return w.Phase == workspace.PhaseStandby || w.Phase == workspace.PhaseArchived || w.Phase == workspace.PhasePending
}

// restarts reports whether the queued start is that of a restart.
func restarts(w workspace.Workspace) bool {
	return w.DesiredCause == workspace.CauseRestart && w.NextDesired == workspace.DesiredRunning
}

// queuedToFree reports whether the queued start was requested to free space since the workspace
// stopped.
func queuedToFree(w workspace.Workspace) bool {
	return w.NextDesired == workspace.DesiredRunning && w.FreeingAt != nil && w.FreeingAt.After(w.PhaseChangedAt)
}

func (s OwnedSpace) overLimit(w workspace.Workspace, now time.Time) error {
	switch {
	case w.Phase == workspace.PhasePending:
		return s.Check()
	case MayFree(w, now):
		e := s.refusal("Start the workspace once to free space, delete a workspace, or ask an administrator for a higher limit.")
		e.Details["free_space"] = true
		return e
	}
	e := s.refusal("The home of this workspace has not become smaller since its last start to free space. Free space in another workspace, delete a workspace, or ask an administrator for a higher limit. The home is measured again about a minute after a stop.")
	e.Details["free_space"], e.Details["free_space_after"] = false, w.FreeingAt.Add(freeingAgain).UTC()
	return e
}

func (s OwnedSpace) refusal(what string) *workspace.Error {
	e := workspace.Errorf(workspace.CodeQuotaExceeded, "Your workspaces use %s, and at most %s are allowed. "+what, setting.FormatBytes(s.Used), setting.FormatBytes(s.Limit))
	e.Details = map[string]any{"limit_type": LimitBytes, "current": s.Used, "max": s.Limit}
	return e
}

// LimitBytes is the limit_type of CodeQuotaExceeded at the limit of OwnedSpace.
const LimitBytes = "bytes"
