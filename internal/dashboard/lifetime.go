package dashboard

import (
	"time"

	"codehub/internal/lifecycle"
	"codehub/internal/workspace"
)

// lifetime is what the TTLs have in store for a workspace, and what they count
// from.
type lifetime struct {
	Key  string     // the text lifetime.<Key>; empty for nothing to say
	At   time.Time  // when it happens; zero for never
	Used *time.Time // last use of a running one; nil if it was never used
	Kind string     // of that use, the text used.<Kind>
}

// lifetimeOf says when w stops or is archived by itself. While something is
// under way or asked for there is nothing to say.
func lifetimeOf(w workspace.Workspace, on terms) lifetime {
	if w.DeletedAt != nil || w.Operation != workspace.OpNone || w.NextDesired != "" {
		return lifetime{}
	}
	at, ends := lifecycle.EndsAt(w, on.ttl)
	switch {
	case w.Phase == workspace.PhaseRunning && w.DesiredState == workspace.DesiredRunning:
		l := lifetime{Key: "never", Used: w.LastAccessAt, Kind: w.LastAccess}
		if ends {
			l.Key, l.At = "stops", at
		}
		if ends && keptAwake(w, on.now) {
			l.Key = "awake"
		}
		return l
	case w.Phase == workspace.PhaseStandby && w.DesiredState == workspace.DesiredStandby:
		if ends {
			return lifetime{Key: "archives", At: at}
		}
		return lifetime{Key: "stays"}
	}
	return lifetime{}
}

// keptAwake reports whether its owner keeps w awake now.
func keptAwake(w workspace.Workspace, now time.Time) bool {
	return w.KeepAwakeTil != nil && w.KeepAwakeTil.After(now)
}

// whyOf names why w is at rest, or on its way there, in the texts
// cause.<why>; and for how long it had not been used, where that is known.
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

// Bounds of how long before it stops by itself a workspace's owner is told.
const (
	warnAtLeast = time.Minute
	warnAtMost  = 5 * time.Minute
)

// warnBefore is how long before it stops the owner is told of a workspace that
// is stopped after ttl without use: the last fifth of it.
func warnBefore(ttl time.Duration) time.Duration {
	return min(max(ttl/5, warnAtLeast), warnAtMost)
}
