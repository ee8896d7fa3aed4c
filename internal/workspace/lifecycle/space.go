package lifecycle

import (
	"time"

	"codehub/internal/base/setting"
	"codehub/internal/workspace"
)

// HomeSpace is how much disk space the home of a workspace uses, and may use.
type HomeSpace struct {
	Used     int64 // bytes, as last measured
	Measured bool  // false: Used is not known
	Limit    int64 // bytes; 0: none
	// Enforced reports that the home's volume has the limit: what does not fit cannot be
	// written. Otherwise a home over the limit is not started.
	Enforced bool
	Asked    int64 // the limit of the workspace's size; a volume may have another one
}

// nearLimit is the share of the limit from which on the owner is warned, in percent.
const nearLimit = 90

// SpaceOf returns how much space the home of the workspace uses and may use. All that a
// measurement decides is decided with it: what was measured once counts only while the server
// measures.
func SpaceOf(w workspace.Workspace, offered workspace.Sizes) HomeSpace {
	s := HomeSpace{Limit: offered.Of(w.Size).Disk}
	s.Asked = s.Limit
	if w.HomeLimit > 0 {
		s.Limit, s.Enforced = w.HomeLimit, true
	}
	if w.HomeBytes != nil && !offered.Unmeasured {
		s.Used, s.Measured = *w.HomeBytes, true
	}
	return s
}

// OnFileSystem returns s as the file system that the home is on has it, in bytes, if that has
// nothing but the home: it is not larger than the limit of the home's volume.
func (s HomeSpace) OnFileSystem(used, size int64) HomeSpace {
	if s.Enforced && size > 0 && size <= s.Limit {
		s.Used, s.Measured = used, true
	}
	return s
}

// Near reports whether the home is so full that its owner should free space.
func (s HomeSpace) Near() bool {
	return s.Measured && s.Limit > 0 && float64(s.Used) >= float64(s.Limit)/100*nearLimit
}

// Waits reports that the home's volume has less space than the workspace's size says. It gets that
// at the next start, or if it cannot grow when the home is made again.
func (s HomeSpace) Waits() bool { return s.Enforced && (s.Asked == 0 || s.Limit < s.Asked) }

// Over reports whether the home uses more than it may, so that the workspace is started only to
// free space.
func (s HomeSpace) Over() bool { return !s.Enforced && s.Measured && s.Limit > 0 && s.Used > s.Limit }

// freeingAgain is the time after which a workspace over a limit may be started again to free
// space, although its home has not become smaller since the last time.
const freeingAgain = 24 * time.Hour

// MayFree reports whether a workspace over the limit of its home or of its owner may be started
// now to free space: it was not before, or that has made the home smaller, or is long ago. So no
// limit can be ignored, and no workspace is stuck. The size of an archived home is not known, so
// an archived workspace always may; one that was never started has nothing to delete.
func MayFree(w workspace.Workspace, now time.Time) bool {
	switch w.Phase {
	case workspace.PhaseArchived:
		return true
	case workspace.PhaseStandby:
		return w.FreeingAt == nil || w.HomeBytes == nil || *w.HomeBytes < w.FreeingFrom || now.Sub(*w.FreeingAt) >= freeingAgain
	}
	return false
}

// freeing records in the intent that it starts w to free space. What is compared later must be a
// measurement of the same home: a home that was not measured since it was created or restored (0)
// is not recorded.
func freeing(w workspace.Workspace, out Intent, now time.Time) Intent {
	out.Workspace.FreeingAt, out.Workspace.FreeingFrom = nil, 0
	if w.Phase == workspace.PhaseStandby && w.HomeBytes != nil && *w.HomeBytes > 0 {
		out.Workspace.FreeingAt, out.Workspace.FreeingFrom = &now, *w.HomeBytes
	}
	if out.Audit.Details != nil {
		out.Audit.Details["free_space"] = true
	}
	return out
}

// CheckSpace refuses an intent that starts a stopped workspace whose home is over its limit with
// CodeQuotaExceeded, unless the start is requested to free space and that may be done now.
// An archived home is restored: its size is not known before. For the limit of the owner see
// CheckOwned.
func CheckSpace(w workspace.Workspace, out Intent, offered workspace.Sizes, free bool, now time.Time) (Intent, error) {
	out.FreesSpace = free
	space := SpaceOf(w, offered)
	if !out.Changed || out.AccessOnly || w.Phase != workspace.PhaseStandby || !space.Over() {
		return out, nil
	}
	if !free || !MayFree(w, now) {
		return Intent{}, overLimit(w, space, now)
	}
	return freeing(w, out, now), nil
}

// CheckQueuedSpace drops the queued start of ApplyQueued that CheckSpace would refuse, since it was
// queued before the workspace stopped: it stays stopped. A start that was queued to free space
// since then goes on, and so does that of a restart, which ends no use of the workspace.
func CheckQueuedSpace(w workspace.Workspace, out Intent, offered workspace.Sizes) Intent {
	if !out.NeedsSlot || w.Phase != workspace.PhaseStandby || w.DesiredCause == workspace.CauseRestart || !SpaceOf(w, offered).Over() {
		return out
	}
	if queuedToFree(w) {
		return out
	}
	out = Intent{Workspace: w, Changed: true}
	out.Workspace.NextDesired = ""
	return out
}

func overLimit(w workspace.Workspace, s HomeSpace, now time.Time) error {
	message := "The home of this workspace uses %s, and at most %s are allowed. Choose a larger size, or start the workspace once to free space. The home is measured again about a minute after a stop."
	may := MayFree(w, now)
	if !may {
		message = "The home of this workspace uses %s, and at most %s are allowed. It has not become smaller since the last start to free space. Choose a larger size, archive the workspace, or ask an administrator for a larger size. The home is measured again about a minute after a stop."
	}
	e := workspace.Errorf(workspace.CodeQuotaExceeded, message, setting.FormatBytes(s.Used), setting.FormatBytes(s.Limit))
	e.Details = map[string]any{"limit_type": "home", "current": s.Used, "max": s.Limit, "free_space": may}
	if !may {
		e.Details["free_space_after"] = w.FreeingAt.Add(freeingAgain).UTC()
	}
	return e
}

// checkShrink refuses a size whose disk space is less than what the home uses, with
// CodeQuotaExceeded.
func checkShrink(w workspace.Workspace, to workspace.Size, offered workspace.Sizes) error {
	space := SpaceOf(w, offered)
	if to.Disk == 0 || !space.Measured || space.Used <= to.Disk {
		return nil
	}
	e := workspace.Errorf(workspace.CodeQuotaExceeded, "The home of this workspace uses %s, and the size %s has %s of disk space. Delete files first, or choose a larger size.", setting.FormatBytes(space.Used), to.Name, setting.FormatBytes(to.Disk))
	e.Details = map[string]any{"limit_type": "size", "field": "size", "size": to.Name, "current": space.Used, "max": to.Disk}
	return e
}
