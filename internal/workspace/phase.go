package workspace

// Phase is what the conditions of a workspace add up to (docs/states.md#phases). The
// judge computes it; it is stored only as a cache for queries.
type Phase string

const (
	PhasePending  Phase = "PENDING"  // healthy, nothing there, and never was
	PhaseArchived Phase = "ARCHIVED" // an archive and no volume
	PhaseStandby  Phase = "STANDBY"  // a volume and no ready container
	PhaseRunning  Phase = "RUNNING"  // a ready container on a ready volume
	PhaseError    Phase = "ERROR"    // not healthy, or a final error is recorded
	PhaseDeleting Phase = "DELETING" // deleted, something of it is still there
	PhaseDeleted  Phase = "DELETED"  // deleted, nothing is left
)

// Phases lists every phase, in the order of the table in docs/states.md.
func Phases() []Phase {
	return []Phase{PhaseDeleted, PhaseDeleting, PhaseError, PhaseRunning, PhaseStandby, PhaseArchived, PhasePending}
}

// Level orders the phases that a workspace can rest in: 20 RUNNING, 10
// STANDBY, 5 ARCHIVED, 0 PENDING; -1 for the phases without a level.
func (p Phase) Level() int {
	switch p {
	case PhaseRunning:
		return 20
	case PhaseStandby:
		return 10
	case PhaseArchived:
		return 5
	case PhasePending:
		return 0
	}
	return -1
}

// DesiredState is what the owner, a TTL, or the proxy on the owner's behalf
// wants. A deletion is deleted_at; DesiredDeleted appears only as a queued
// request.
type DesiredState string

const (
	DesiredDeleted  DesiredState = "DELETED"
	DesiredArchived DesiredState = "ARCHIVED"
	DesiredStandby  DesiredState = "STANDBY"
	DesiredRunning  DesiredState = "RUNNING"
)

// ParseDesiredState accepts the states that a person can set; DELETED is not
// one of them, deletion has a call of its own.
func ParseDesiredState(s string) (DesiredState, bool) {
	switch d := DesiredState(s); d {
	case DesiredArchived, DesiredStandby, DesiredRunning:
		return d, true
	}
	return "", false
}

// Operation is the operation that runs on a workspace (docs/states.md#operations).
type Operation string

const (
	OpNone               Operation = "NONE"
	OpProvisioning       Operation = "PROVISIONING"         // PENDING → STANDBY
	OpCreateEmptyArchive Operation = "CREATE_EMPTY_ARCHIVE" // PENDING → ARCHIVED
	OpRestoring          Operation = "RESTORING"            // ARCHIVED → STANDBY
	OpStarting           Operation = "STARTING"             // STANDBY → RUNNING
	OpStopping           Operation = "STOPPING"             // RUNNING → STANDBY
	OpArchiving          Operation = "ARCHIVING"            // STANDBY → ARCHIVED
	OpDeleting           Operation = "DELETING"             // any → DELETED
)

// Operations lists every operation, OpNone first.
func Operations() []Operation {
	return []Operation{OpNone, OpProvisioning, OpCreateEmptyArchive, OpRestoring, OpStarting, OpStopping, OpArchiving, OpDeleting}
}
