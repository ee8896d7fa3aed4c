package workspace

import "time"

// Why a desired state is what it is where nobody asked for it (design §4).
const (
	CauseIdle   = "idle"   // RUNNING and not used for the standby TTL
	CauseUnused = "unused" // STANDBY for the archive TTL
)

// MaxTTL bounds a TTL, in seconds: ten years.
const MaxTTL = 10 * 365 * 24 * 3600

// TTL is after how long without use a workspace is stopped, and a stopped one
// archived. 0 means never.
type TTL struct {
	Standby time.Duration
	Archive time.Duration
}

// TTLOf is what holds for the workspace: its own settings before the server's.
func (w Workspace) TTLOf(server TTL) TTL {
	if w.StandbyTTL != nil {
		server.Standby = time.Duration(*w.StandbyTTL) * time.Second
	}
	if w.ArchiveTTL != nil {
		server.Archive = time.Duration(*w.ArchiveTTL) * time.Second
	}
	return server
}

// IdleSince is from when on the workspace's TTL counts: its last change of
// phase, or its last use if that was later. A stopped one is used by what its
// owner asks for: a start or an archiving that is taken back leaves its phase
// as it was, and it is not to be archived the minute after.
func (w Workspace) IdleSince() time.Time {
	if w.LastAccessAt != nil && w.LastAccessAt.After(w.PhaseChangedAt) {
		return *w.LastAccessAt
	}
	return w.PhaseChangedAt
}

// EndsAt is when a TTL will stop the workspace (a running one) or archive it
// (a stopped one) unless somebody uses it before, as far as is known now. It
// is false for one that no TTL is about to touch. server is the server's
// default.
func (w Workspace) EndsAt(server TTL) (at time.Time, ok bool) {
	if w.Operation != OpNone || w.DeletedAt != nil || w.NextDesired != "" {
		return time.Time{}, false
	}
	ttl := w.TTLOf(server)
	var after time.Duration
	switch {
	case w.Phase == PhaseRunning && w.DesiredState == DesiredRunning:
		after = ttl.Standby
	case w.Phase == PhaseStandby && w.DesiredState == DesiredStandby:
		after = ttl.Archive
	}
	if after <= 0 {
		return time.Time{}, false
	}
	at = w.IdleSince().Add(after + w.Unwatched)
	if w.KeepAwakeTil != nil && w.KeepAwakeTil.After(at) {
		at = *w.KeepAwakeTil
	}
	return at, true
}
