package lifecycle

import (
	"time"

	"codehub/internal/workspace"
)

// Rule is what holds for one operation.
type Rule struct {
	// From is the phase that a workspace leaves with the operation, To the one it
	// reaches. DELETING begins in any phase.
	From, To workspace.Phase
	// State is what is shown of the workspace meanwhile.
	State State
	// Complete reports whether the operation is done, by this observation alone and never by a
	// call's return: see the table of operations in docs/states.md.
	Complete func(Input) bool
	// Deadline is how long the operation may take. It counts from its beginning,
	// and not while Docker or, with Bucket, object storage is out of reach.
	Deadline func(Policy) time.Duration
	// Progress is when progress restarts the deadline, as Policy.NoProgress.
	Progress ProgressRule
	// Bucket is whether the operation needs object storage.
	Bucket bool
	// Cancelled is the desired state after a cancellation; empty if the operation
	// cannot be cancelled. See CancelTo.
	Cancelled workspace.DesiredState
	// StartsAfter is whether Wake queues a start, unless RUNNING is desired already.
	StartsAfter bool
}

// ProgressRule is when the progress of an operation restarts its deadline.
type ProgressRule int

const (
	ProgressOfPreparation ProgressRule = iota // while Work.Preparing
	ProgressOfHome                            // also once it writes or removes a home's files
	ProgressAlways                            // at any time
)

func noProgress(p Policy) time.Duration { return p.NoProgress }

// rules is the table of operations; OpNone has no rule.
var rules = map[workspace.Operation]Rule{
	workspace.OpProvisioning: {
		From: workspace.PhasePending, To: workspace.PhaseStandby, State: StatePreparing, Cancelled: workspace.DesiredArchived, StartsAfter: true,
		Complete: func(in Input) bool { return ownHome(in) && in.Obs.Volume.Seeded },
		Deadline: func(p Policy) time.Duration { return p.Starting }, Progress: ProgressOfHome,
	},
	workspace.OpCreateEmptyArchive: {
		From: workspace.PhasePending, To: workspace.PhaseArchived, State: StateArchiving, Complete: archived,
		Deadline: noProgress, Progress: ProgressAlways, Bucket: true,
	},
	workspace.OpRestoring: {
		From: workspace.PhaseArchived, To: workspace.PhaseStandby, State: StateRestoring, Cancelled: workspace.DesiredArchived, StartsAfter: true,
		Complete: func(in Input) bool {
			return ownHome(in) && in.Row.ArchiveKey != "" && in.Obs.Volume.Marker == in.Row.ArchiveKey
		},
		Deadline: noProgress, Progress: ProgressAlways, Bucket: true,
	},
	workspace.OpStarting: {
		From: workspace.PhaseStandby, To: workspace.PhaseRunning, State: StateStarting, Cancelled: workspace.DesiredStandby, StartsAfter: true,
		Complete: func(in Input) bool {
			return in.Obs.ContainerKnown && in.Row.Conditions.Is(workspace.ContainerReady)
		},
		Deadline: func(p Policy) time.Duration { return p.Starting },
	},
	workspace.OpStopping: {
		From: workspace.PhaseRunning, To: workspace.PhaseStandby, State: StateStopping, Complete: noContainer, StartsAfter: true,
		Deadline: func(p Policy) time.Duration { return p.Stopping },
	},
	workspace.OpArchiving: {
		From: workspace.PhaseStandby, To: workspace.PhaseArchived, State: StateArchiving, Cancelled: workspace.DesiredStandby, StartsAfter: true,
		Complete: func(in Input) bool {
			// Without a key the home was given up, and only its volume is to be removed.
			return in.Row.Home.State.Removable() && noHome(in) && (archived(in) || in.Row.ArchiveKey == "")
		},
		Deadline: noProgress, Progress: ProgressAlways, Bucket: true,
	},
	workspace.OpDeleting: {
		To: workspace.PhaseDeleted, State: StateDeleting,
		Complete: func(in Input) bool {
			return noContainer(in) && (in.Row.Home.State != workspace.HomeDeleting || noHome(in))
		},
		Deadline: func(p Policy) time.Duration { return p.Deleting }, Progress: ProgressOfHome,
	},
}

func ownHome(in Input) bool {
	v := in.Obs.Volume
	return in.Obs.VolumeKnown && v != nil && v.Claim != "" && v.Claim == in.Row.Home.Claim
}

func noHome(in Input) bool      { return in.Obs.VolumeKnown && !ownHome(in) }
func noContainer(in Input) bool { return in.Obs.ContainerKnown && in.Obs.Container == nil }

// archived reports whether the archive is there in this observation, not in an earlier one.
func archived(in Input) bool { return in.Row.ArchiveKey != "" && in.Obs.Archive == ArchivePresent }

// RuleOf returns the rule of an operation; false for OpNone.
func RuleOf(op workspace.Operation) (Rule, bool) {
	r, ok := rules[op]
	return r, ok
}

// CancelTo is the desired state once the running operation is cancelled; false
// if it cannot be. Once the removal of an archived home has begun, ARCHIVING can
// only be finished.
func CancelTo(w workspace.Workspace) (workspace.DesiredState, bool) {
	to := rules[w.Operation].Cancelled
	if to == "" || w.Operation == workspace.OpArchiving && w.Home.State != workspace.HomeLive {
		return "", false
	}
	return to, true
}

// Cancellable reports whether the running operation can be cancelled.
func Cancellable(w workspace.Workspace) bool {
	_, ok := CancelTo(w)
	return ok
}

// MakesArchive reports whether an operation makes an archive of the home.
func MakesArchive(op workspace.Operation) bool { return rules[op].To == workspace.PhaseArchived }

// OnBucket reports whether an operation needs object storage.
func OnBucket(op workspace.Operation) bool { return rules[op].Bucket }

// deadline is when the running operation has taken too long.
func deadline(in Input) time.Time {
	rule := rules[in.Row.Operation]
	start := in.UpSince
	if in.Row.OpStartedAt != nil {
		start = later(start, *in.Row.OpStartedAt)
	}
	if rule.Bucket {
		start = later(start, in.BucketUpSince)
	}
	if in.Work.Preparing {
		return later(start, in.Work.ProgressAt).Add(in.Policy.NoProgress)
	}
	start = later(start, in.Work.PreparedAt)
	unknown := rule.Deadline == nil // an operation of a newer version
	if unknown || rule.Progress == ProgressAlways || rule.Progress == ProgressOfHome && in.Work.Moving {
		return later(start, in.Work.ProgressAt).Add(in.Policy.NoProgress)
	}
	return start.Add(rule.Deadline(in.Policy))
}
