package lifecycle

import (
	"time"

	"codehub/internal/workspace"
)

// Input is everything that one decision depends on.
type Input struct {
	// Now and all other times here are by the database's clock.
	Now time.Time
	// WaitsSince is the time from which every deletion waits its whole grace again;
	// zero: each counts from its request.
	WaitsSince time.Time
	Row        workspace.Workspace
	Obs        Observation
	// Work is the state of the running operation's executor. It is read before the
	// observation begins, so the observation is never older than a result in it.
	Work Work
	// Aside is why the present request to set a volume aside failed; nil: it was not
	// tried yet, or is in progress.
	Aside  *Failure
	Policy Policy
	// Newest is the image that the row's ImageRef names now.
	Newest Newest
	// UpSince is since when the backend has answered without a break, as far
	// as this process knows. Deadlines count from here at the earliest: an
	// outage, or a server that was down, does not use up a deadline.
	UpSince time.Time
	// BucketUpSince is the same for the bucket, and applies to the operations that
	// need it (OnBucket); Now while it does not respond.
	BucketUpSince time.Time
	// ClaimID is a new id, used if an operation is claimed.
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
	Earlier        Archive // the archive that the row's RecoverFrom names; see AsksEarlier
}

// Container is the workspace's container as observed.
type Container struct {
	ID      string
	State   ContainerState
	Answers bool   // it answered on /healthz in this observation
	Detail  string // Docker's status text
	// LostNode is the node that has the container, if that does not respond.
	LostNode string
	Image    string // the image it was made from; empty if that is not known
	// Pin is the image that the container was made from; its ID is empty if that is not
	// known.
	Pin workspace.ImagePin

	Size      string // name of the size that it was created with
	EnvDigest string // of the workspace's own environment variables that it was created with
}

// Newest is the image that a reference names now, in its registry or on the machine; an
// empty field is not known.
type Newest struct{ ID, Digest string }

// ContainerState is the state of a container.
type ContainerState int

const (
	Created ContainerState = iota // created, not started
	Running
	Exited
)

// Volume is the workspace's volume as observed.
type Volume struct {
	Claim  string // claim id of the home it was created for
	Seeded bool   // its seeding has finished
	Marker string // archive_key of the archive that was restored into it, once that has finished
	// Removing is whether its removal has begun. Such a volume is never complete again, unless
	// it is Lost: what it stored its files on is gone, and may come back.
	Removing, Lost bool
	Limit          int64 // bytes that it can hold; 0: no limit
}

// Complete reports whether the volume holds a complete home. A removal removes the
// marks of that before any content.
func (v Volume) Complete() bool { return v.Seeded || v.Marker != "" }

// Archive is the result of looking up an archive in the bucket.
type Archive int

const (
	ArchiveUnknown Archive = iota // it was not looked up, or the bucket did not respond
	ArchivePresent
	ArchiveMissing
	ArchiveCorrupted
)

// Work is the state of the running operation's executor in this process.
type Work struct {
	Running    bool      // an executor of this claim runs
	ProgressAt time.Time // when it last made progress; zero: never
	Moving     bool      // it has made progress beyond preparing
	// Preparing: it pulls an image, gives the home to a uid, or waits for the cluster to have
	// room. That may take any time as long as it makes progress, and the operation's deadline
	// counts from its end.
	Preparing  bool
	PreparedAt time.Time // when that, or a wait for a node or for the cluster, last ended; zero: not known
	Failure    *Failure  // why the executor ended without success; a passing one also while it is retried
}

// Failure is why an executor failed.
type Failure struct {
	Reason  workspace.ErrorReason
	Message string

	// Outage: Docker or the bucket does not respond, or a disk is full. The executor is
	// run again, and nothing is recorded.
	Outage bool
	// Passing: the cause passes by itself. The executor is run again, and nothing
	// counts as a failed attempt before the operation's deadline.
	Passing bool
	// InUse: the cause is a container that uses the home. ARCHIVING waits for it
	// without a deadline.
	InUse bool
}

// Settings are the deadlines that codehub serve declares as settings.
type Settings struct {
	StartTimeout time.Duration `name:"start-timeout" env:"CODEHUB_START_TIMEOUT" min:"10s" max:"1h" default:"2m" help:"Deadline of the creation of a home, and of a start, each after the image is pulled."`
}

// Policy returns DefaultPolicy with these settings and the server's grace of deletions.
func (s Settings) Policy(deleteGrace time.Duration) Policy {
	p := DefaultPolicy()
	p.DeleteGrace, p.Starting = deleteGrace, s.StartTimeout
	return p
}

// Policy has the deadlines and retry delays of docs/states.md.
type Policy struct {
	DeleteGrace time.Duration
	Stopping    time.Duration // deadline of STOPPING
	Starting    time.Duration // deadline of PROVISIONING and of STARTING, each after the pull
	Deleting    time.Duration // deadline of DELETING
	NoProgress  time.Duration // pulls and storage jobs: longest time without progress
	RetryBase   time.Duration // first wait after a failed attempt; doubles
	RetryMax    time.Duration
}

// DefaultPolicy is the policy of docs/states.md. The grace and the deadline of a start
// are settings.
func DefaultPolicy() Policy {
	return Policy{
		DeleteGrace: 2 * time.Hour,
		Stopping:    time.Minute,
		Starting:    2 * time.Minute,
		Deleting:    5 * time.Minute,
		NoProgress:  10 * time.Minute,
		RetryBase:   2 * time.Second,
		RetryMax:    time.Minute,
	}
}
