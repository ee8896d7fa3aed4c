package lifecycle

import (
	"time"

	"codehub/internal/workspace"
)

// Input is everything one decision is made of.
type Input struct {
	// Now and all other times here are by the database's clock.
	Now time.Time
	// WaitsSince is since when every deletion waits its whole grace again;
	// zero: since it was made.
	WaitsSince time.Time
	Row        workspace.Workspace
	Obs        Observation
	// Work is what this process knows of the running operation, taken before
	// the observation was begun, so that the observation is never older than
	// the result it is held against.
	Work Work
	// Aside is why the volume in the home's way was not set aside for the
	// present request; nil: it was not tried, or is being tried.
	Aside  *Failure
	Policy Policy
	// UpSince is since when the backend has answered without a break, as far
	// as this process knows. Deadlines count from here at the earliest: an
	// outage, or a server that was down, does not use up a deadline.
	UpSince time.Time
	// BucketUpSince is the same for the bucket, and counts for the operations
	// that work with it (OnBucket); Now while it does not answer.
	BucketUpSince time.Time
	// ClaimID is a fresh id, used if an operation is claimed.
	ClaimID string
	// Jitter in [0,1) spreads retries.
	Jitter float64
}

// Observation is what the backends said of one workspace. A condition that
// was not observed stays as it was.
type Observation struct {
	ContainerKnown bool
	Container      *Container // nil: there is none
	VolumeKnown    bool
	Volume         *Volume // nil: there is none
	Archive        Archive
	Earlier        Archive // what the row's RecoverFrom names; see AsksEarlier
}

// Container is the workspace's container as observed.
type Container struct {
	ID      string
	State   ContainerState
	Answers bool   // it answered on /healthz in this observation
	Detail  string // the backend's words
	Image   string // the image it was made from; empty if that is not known
}

// ContainerState is what a container is doing.
type ContainerState int

const (
	Created ContainerState = iota // made, not started
	Running
	Exited
)

// Volume is the workspace's volume as observed.
type Volume struct {
	Claim  string // claim id of the home it was made for
	Seeded bool   // its seeding is known to have finished
	Marker string // archive_key of what was restored into it, if that has finished
	// Removing is whether its removal has begun: it is never complete again.
	Removing bool
}

// Complete reports whether the volume holds a whole home. What says so is
// removed before any of its content is.
func (v Volume) Complete() bool { return v.Seeded || v.Marker != "" }

// Archive is what the bucket said of the object that archive_key names.
type Archive int

const (
	ArchiveUnknown Archive = iota // it was not asked, or did not answer
	ArchivePresent
	ArchiveMissing
	ArchiveCorrupted
)

// Work is the executor of the running operation, seen from inside the process.
type Work struct {
	Running    bool      // an executor of exactly this claim is at work
	ProgressAt time.Time // when it last got further; zero: never
	Moving     bool      // it has got further, and not with an image alone
	Pulling    bool      // it waits for an image
	PulledAt   time.Time // when the image was there; zero: not known
	Failure    *Failure  // the executor has ended without success; one that passes also while it is tried again
}

// Failure is why an executor gave up.
type Failure struct {
	Reason  workspace.ErrorReason
	Message string

	// Passing: the cause passes by itself. The operation goes on, its executor is
	// run again, and nothing counts as an attempt before the deadline.
	Passing bool
	// InUse: the cause is a container that uses the home. An archiving waits for
	// it without a deadline.
	InUse bool
}

// Policy has the deadlines and retry delays of docs/states.md.
type Policy struct {
	DeleteGrace  time.Duration
	Provisioning time.Duration // deadline of PROVISIONING
	Stopping     time.Duration // deadline of STOPPING
	Starting     time.Duration // deadline of STARTING, after the pull
	Deleting     time.Duration // deadline of DELETING
	NoProgress   time.Duration // pulls and storage jobs: longest time without progress
	RetryBase    time.Duration // first wait after a failed attempt; doubles
	RetryMax     time.Duration
}

// DefaultPolicy is the policy of docs/states.md. The grace and the deadline of a start
// are settings.
func DefaultPolicy() Policy {
	return Policy{
		DeleteGrace:  2 * time.Hour,
		Provisioning: time.Minute,
		Stopping:     time.Minute,
		Starting:     2 * time.Minute,
		Deleting:     5 * time.Minute,
		NoProgress:   10 * time.Minute,
		RetryBase:    2 * time.Second,
		RetryMax:     time.Minute,
	}
}
