package workspace

import "time"

// Why a desired state is not what a person requested (docs/states.md#idle-timeouts).
const (
	CauseIdle   = "idle"   // RUNNING and not used for the standby TTL
	CauseUnused = "unused" // STANDBY for the archive TTL
	// CauseRestart is a stop that a queued start follows.
	CauseRestart = "restart"
)

// Kinds of a last use that the API layer records itself (LastAccess). The others
// are those of package activity.
const (
	AccessOpen = "open" // a person opened the workspace
	AccessStay = "stay" // its owner asked for it to stay as it is
	// AccessRequest is any other request that leaves the phase as it is for now.
	AccessRequest = "request"
)

// MaxTTL bounds a TTL, in seconds: ten years.
const MaxTTL = 10 * 365 * 24 * 3600

// TTL is after how long without use a workspace is stopped, and a stopped one
// archived. 0 means never.
type TTL struct {
	Standby time.Duration
	Archive time.Duration
}
