package dashboard

import (
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// lifetime is the next effect of a workspace's idle timeouts, and the activity from which they
// count.
type lifetime struct {
	Key  string     // the text lifetime.<Key>; empty for none
	At   time.Time  // when it happens; zero for never
	Used *time.Time // last activity of a running one; nil if there was none
	Kind string     // of that activity, the text used.<Kind>
}

// lifetimeOf returns when w is stopped or archived automatically. It is empty while an
// operation or a request is pending.
func lifetimeOf(w workspace.Workspace, on terms) lifetime {
	at, ends := lifecycle.EndsAt(w, on.ttl)
	switch lifecycle.TimeoutTo(w) {
	case workspace.DesiredStandby:
		l := lifetime{Key: "never", Used: w.LastAccessAt, Kind: w.LastAccess}
		if ends {
			l.Key, l.At = "stops", at
		}
		if ends && keptAwake(w, on.now) {
			l.Key = "awake"
		}
		return l
	case workspace.DesiredArchived:
		if ends {
			return lifetime{Key: "archives", At: at}
		}
		return lifetime{Key: "stays"}
	}
	return lifetime{}
}

// keptAwake reports whether the owner keeps w awake at now.
func keptAwake(w workspace.Workspace, now time.Time) bool {
	return w.KeepAwakeTil != nil && w.KeepAwakeTil.After(now)
}

// whyOf returns why w is at rest, or about to be, as the text cause.<why>; and for how long it
// had been idle, where known.
func whyOf(w workspace.Workspace) (why string, unused time.Duration) {
	switch {
	case w.DeletedAt != nil:
	case w.DesiredCause == workspace.CauseIdle && w.Phase == workspace.PhaseRunning:
		return "stopping_idle", 0
	case w.DesiredCause == workspace.CauseUnused && w.Phase == workspace.PhaseArchived && w.Operation == workspace.OpNone:
		return "archived_unused", 0
	case w.DesiredCause == workspace.CauseUnused && w.Phase == workspace.PhaseStandby:
		return "archiving_unused", 0
	case w.Phase != workspace.PhaseStandby || w.Operation != workspace.OpNone:
	case w.StopReason == lifecycle.StopIdle && w.LastAccessAt != nil && w.PhaseChangedAt.Sub(*w.LastAccessAt) >= time.Minute:
		return "idle_for", w.PhaseChangedAt.Sub(*w.LastAccessAt)
	default:
		return w.StopReason, 0
	}
	return "", 0
}

// Bounds of the time before an automatic stop at which the owner is warned.
const (
	warnAtLeast = time.Minute
	warnAtMost  = 5 * time.Minute
)

// warnBefore returns how long before an automatic stop the owner is warned: the last fifth of
// the idle timeout.
func warnBefore(ttl time.Duration) time.Duration {
	return min(max(ttl/5, warnAtLeast), warnAtMost)
}
