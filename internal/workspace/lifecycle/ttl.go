package lifecycle

import (
	"time"

	"codehub/internal/workspace"
)

// TTLOf returns the timeouts of a workspace: its own settings before the
// server's.
func TTLOf(w workspace.Workspace, server workspace.TTL) workspace.TTL {
	if w.StandbyTTL != nil {
		server.Standby = time.Duration(*w.StandbyTTL) * time.Second
	}
	if w.ArchiveTTL != nil {
		server.Archive = time.Duration(*w.ArchiveTTL) * time.Second
	}
	return server
}

// IdleSince is when the idle timeout of a workspace began: at its last change of
// phase or its last use, whichever was later. A stopped workspace is used by what
// its owner requests: a start or an archiving that is cancelled leaves its phase
// as it was, and must not be followed by the timeout a minute later.
func IdleSince(w workspace.Workspace) time.Time {
	if w.LastAccessAt != nil && w.LastAccessAt.After(w.PhaseChangedAt) {
		return *w.LastAccessAt
	}
	return w.PhaseChangedAt
}

// TimeoutTo is the state that an idle timeout would change the workspace to now,
// whether one is set or not: a running one to STANDBY, a stopped one to ARCHIVED. It
// is empty while an operation runs or another state is desired or queued, or a restore is requested.
func TimeoutTo(w workspace.Workspace) workspace.DesiredState {
	switch {
	case w.Operation != workspace.OpNone, w.DeletedAt != nil, w.NextDesired != "", w.RestoreFrom != nil:
	case w.Phase == workspace.PhaseRunning && w.DesiredState == workspace.DesiredRunning:
		return workspace.DesiredStandby
	case w.Phase == workspace.PhaseStandby && w.DesiredState == workspace.DesiredStandby:
		return workspace.DesiredArchived
	}
	return ""
}

// EndsAt is when an idle timeout will stop a running workspace, or archive a
// stopped one, unless it is used before. It is false if no timeout applies now.
// server has the server's defaults.
func EndsAt(w workspace.Workspace, server workspace.TTL) (at time.Time, ok bool) {
	ttl := TTLOf(w, server)
	var after time.Duration
	switch TimeoutTo(w) {
	case workspace.DesiredStandby:
		after = ttl.Standby
	case workspace.DesiredArchived:
		after = ttl.Archive
	}
	if after <= 0 {
		return time.Time{}, false
	}
	at = IdleSince(w).Add(after + w.Unwatched)
	if w.KeepAwakeTil != nil && w.KeepAwakeTil.After(at) {
		at = *w.KeepAwakeTil
	}
	return at, true
}

// EndIdle is what an idle timeout makes of a workspace: the desired state one
// level below, and why. It changes nothing unless EndsAt is before watched, the
// time through which activity is recorded. The leader applies the same rule to
// all workspaces at once, in SQL (internal/postgres, ttl.go).
func EndIdle(w workspace.Workspace, watched time.Time, server workspace.TTL) Intent {
	at, ok := EndsAt(w, server)
	if !ok || !watched.After(at) {
		return unchanged(w)
	}
	out := Intent{Workspace: w, Changed: true}
	to, cause := TimeoutTo(w), workspace.CauseUnused
	if to == workspace.DesiredStandby {
		cause = workspace.CauseIdle
	}
	out.Audit = Entry{AuditDesired, map[string]any{"from": w.DesiredState, "to": to, "cause": cause}}
	out.Workspace.DesiredState, out.Workspace.DesiredCause = to, cause
	return out
}
