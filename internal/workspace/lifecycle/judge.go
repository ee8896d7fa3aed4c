package lifecycle

import (
	"fmt"
	"time"

	"codehub/internal/workspace"
)

// Judge decides what one workspace's row should be and what is to be done, from one
// observation.
func Judge(in Input) Result {
	in.Row.Conditions = Conditions(in)
	in.Row.Phase = Phase(in.Row, in.Row.Conditions)
	if in.Obs.ContainerKnown {
		in.Row.RunningImage, in.Row.RunningEnv, in.Row.RunningSize = "", "", ""
		if in.Obs.Container != nil {
			in.Row.RunningImage, in.Row.RunningEnv, in.Row.RunningSize = in.Obs.Container.Image, in.Obs.Container.EnvDigest, in.Obs.Container.Size
		}
	}
	if in.Obs.VolumeKnown {
		in.Row.HomeLimit = 0
		if v := in.Obs.Volume; v != nil && v.Claim == in.Row.Home.Claim {
			in.Row.HomeLimit = v.Limit
		}
	}
	in.Row = pinned(in)

	r := decide(in)
	settle(in, &r)
	return r
}

func decide(in Input) Result {
	if r, handled := forcedStop(in); handled {
		return r
	}
	return ordinary(in)
}

func ordinary(in Input) Result {
	switch {
	case in.Row.Operation != workspace.OpNone:
		return running(in)
	case in.Row.DeletedAt != nil:
		return deleting(in)
	}
	return idle(in)
}

// settle computes conditions and phase again if the action changed what they depend
// on, so that one transaction writes both.
func settle(in Input, r *Result) {
	before := in.Row
	if r.Action.Kind != None || !r.Row.Home.Equal(before.Home) {
		r.Row.Conditions = Conditions(with(in, r.Row))
		r.Row.Phase = Phase(r.Row, r.Row.Conditions)
	}
}

// with is the same observation, for a row that may name another archive.
func with(in Input, row workspace.Workspace) Input {
	if row.ArchiveKey != in.Row.ArchiveKey {
		in.Obs.Archive = ArchiveUnknown
		if from := EarlierOf(in.Row); from != nil && from.Key == row.ArchiveKey {
			in.Obs.Archive = in.Obs.Earlier
		}
	}
	in.Row = row
	return in
}

// forcedStop removes the container now, in any phase. A container that cannot be
// removed delays other decisions for no longer than the deadline of DELETING.
func forcedStop(in Input) (Result, bool) {
	if in.Row.ForceStopRequestedAt == nil {
		return Result{}, false
	}
	switch in.Row.Operation {
	case workspace.OpStarting, workspace.OpStopping:
		r := cancelled(in)
		r.ClearCancel = true
		return r, true
	case workspace.OpNone:
		if !in.Obs.ContainerKnown {
			return Result{Row: in.Row}, true
		}
		if r, ok := removal(in, *in.Row.ForceStopRequestedAt); ok {
			r.Row.StopReason = StopForced
			return r, true
		}
	}
	// Nothing to remove: the other operations have no container.
	r := ordinary(in)
	r.ClearForceStop = true
	return r, true
}

// removal removes the observed container, if there is one, for at most
// Policy.Deleting after the request.
func removal(in Input, asked time.Time) (Result, bool) {
	due := later(in.UpSince, asked).Add(in.Policy.Deleting)
	if !in.Obs.ContainerKnown || in.Obs.Container == nil || !due.After(in.Now) {
		return Result{}, false
	}
	return Result{Row: in.Row, Action: Action{Kind: RemoveContainer}, LookAgain: due}, true
}

// Why a workspace stopped; shown to its owner.
const (
	StopRequested = "requested"
	StopForced    = "forced"
	StopExited    = "exited"
	StopIdle      = "idle" // the standby TTL stopped it
)

// idle decides for a workspace that is not deleted and on which nothing runs.
func idle(in Input) Result {
	row := in.Row
	r := Result{Row: row, ClearCancel: row.CancelRequestedAt != nil}
	if row.RecoverRequestedAt != nil {
		return recovered(in)
	}
	health := row.Conditions.Get(workspace.Healthy)
	switch {
	case row.ErrorReason.Final():
		r.ApplyQueued = row.NextDesired == workspace.DesiredDeleted
		return r
	case !health.True():
		return failed(in, workspace.ErrorReason(health.Reason), health.Message)
	case row.NextDesired != "":
		return queued(in, r)
	case row.RetryAt != nil && row.RetryAt.After(in.Now):
		r.LookAgain = *row.RetryAt
		return r
	}
	if row.Home.State.Removable() && in.Obs.VolumeKnown && !ownVolume(row.Conditions) {
		// The volume disappeared after the ARCHIVING that removes it had ended.
		r.Action = Action{Kind: Settle}
		r.Row.Home = workspace.Home{State: workspace.HomeAbsent}
		return r
	}
	if row.RestoreFrom != nil {
		if r, done := restored(in, r); done {
			return r
		}
	}
	if op := choose(in); op != workspace.OpNone {
		claim(in, &r, op)
		return r
	}
	if (row.ErrorReason != "" || row.ErrorCount > 0) && !unrestorable(row) {
		// The next operation has all its attempts again.
		r.Action = Action{Kind: Settle}
		clearError(&r.Row)
	}
	return r
}

// queued applies a queued state. A start may have to wait for the running limits;
// the container of a cancelled start is removed meanwhile, since it would exceed
// them. A workspace that is RUNNING already is not stopped.
func queued(in Input, r Result) Result {
	row := in.Row
	start := row.NextDesired == workspace.DesiredRunning && row.DesiredState != workspace.DesiredRunning
	waits := row.RetryAt != nil && row.RetryAt.After(in.Now)
	restart := Restarting(row)
	switch {
	case restart && waits:
		r.LookAgain = *row.RetryAt
		return r
	case restart, start && row.Phase != workspace.PhaseRunning && row.Conditions.HasContainer() && !waits:
		claim(in, &r, workspace.OpStopping)
		return r
	}
	r.ApplyQueued = true
	return r
}

// choose compares the phase with the desired state and returns the operation to
// claim: see the table of operations in docs/states.md.
func choose(in Input) workspace.Operation {
	row := in.Row
	container := row.Conditions.Get(workspace.ContainerReady).Reason
	up := wantsHome(Wanted(row))
	run := Wanted(row) == workspace.DesiredRunning
	fillable := row.Home.State == workspace.HomeAbsent || row.Home.State == workspace.HomeFilling

	switch row.Phase {
	case workspace.PhaseRunning:
		if !run {
			return workspace.OpStopping
		}
		return workspace.OpNone
	case workspace.PhaseStandby:
		switch {
		case row.Home.State.Removable() && container == workspace.ReasonNoContainer:
			return removing(in)
		case run && row.Home.State == workspace.HomeLive:
			return workspace.OpStarting
		case row.Conditions.HasContainer():
			return workspace.OpStopping // an exited container is removed before anything else
		case Wanted(row) == workspace.DesiredArchived && container == workspace.ReasonNoContainer && !unrestorable(row):
			return workspace.OpArchiving
		}
		return workspace.OpNone
	}
	if row.Conditions.HasContainer() {
		return workspace.OpStopping
	}
	if row.Home.State.Removable() {
		return removing(in)
	}
	switch {
	case row.Phase == workspace.PhaseArchived && up && fillable:
		return workspace.OpRestoring
	case row.Phase == workspace.PhaseArchived && leftOver(row) && in.Obs.Archive == ArchivePresent:
		return workspace.OpArchiving // only the removal: what is archived costs no volume
	case row.Phase == workspace.PhasePending && row.ArchiveKey == "" && fillable && up:
		return workspace.OpProvisioning
	case row.Phase == workspace.PhasePending && row.ArchiveKey == "" && fillable:
		return workspace.OpCreateEmptyArchive
	}
	return workspace.OpNone
}

// removing is ARCHIVING where only the volume of the home is left to remove, for any
// desired state. The archive must be present in this observation.
func removing(in Input) workspace.Operation {
	switch {
	case !ownVolume(in.Row.Conditions):
		return workspace.OpNone
	case in.Row.ArchiveKey != "" && in.Obs.Archive != ArchivePresent:
		return workspace.OpNone
	}
	return workspace.OpArchiving
}

// unrestorable reports whether the home was found to be one that cannot be
// archived. It stays in STANDBY, with the error shown, until another desired
// state is requested.
func unrestorable(row workspace.Workspace) bool {
	return row.ErrorReason == workspace.ErrUnrestorable && Wanted(row) == workspace.DesiredArchived && row.Home.State == workspace.HomeLive
}

func claim(in Input, r *Result, op workspace.Operation) {
	now := in.Now
	r.Action = Action{Kind: Claim, Op: op}
	r.Row.Operation, r.Row.OpID, r.Row.OpStartedAt = op, in.ClaimID, &now
	r.Row.Progress = nil
	switch op {
	case workspace.OpProvisioning, workspace.OpRestoring:
		// A home that is being filled keeps the claim of its volume, so that only a
		// volume created for it is ever wiped.
		if r.Row.Home.State != workspace.HomeFilling {
			r.Row.Home = workspace.Home{State: workspace.HomeFilling, Claim: in.ClaimID}
		}
		if op == workspace.OpProvisioning {
			r.Row.Home.FromImage = true
		}
	case workspace.OpArchiving, workspace.OpCreateEmptyArchive:
		r.Row.ArchiveOpID = in.ClaimID
		if op == workspace.OpArchiving && r.Row.Home.State == workspace.HomeFilling {
			r.Row.Home.State = workspace.HomeDiscarding
		}
	case workspace.OpStopping:
		switch {
		case in.Row.Conditions.Get(workspace.ContainerReady).Reason == workspace.ReasonContainerExited:
			r.Row.StopReason = StopExited
		case r.Row.StopReason != "":
		case in.Row.DesiredCause == workspace.CauseIdle:
			r.Row.StopReason = StopIdle
		default:
			r.Row.StopReason = StopRequested
		}
	}
}

// deleting decides for a deleted workspace without an operation: the container is
// removed at once, the volume after the grace.
func deleting(in Input) Result {
	row := in.Row
	r := Result{Row: row, ClearCancel: row.CancelRequestedAt != nil}
	if row.RecoverRequestedAt != nil {
		return recovered(in)
	}
	switch {
	case row.ErrorReason == workspace.ErrTimeout, row.ErrorReason == workspace.ErrRetryExceeded:
		return r // the deletion failed; deleting it again requests a recovery
	case row.ErrorReason.Final():
		// An error from before the deletion no longer matters.
		r.Action = Action{Kind: Settle}
		clearError(&r.Row)
		return r
	case row.RetryAt != nil && row.RetryAt.After(in.Now):
		r.LookAgain = *row.RetryAt
		return r
	}
	due := GraceEnds(*row.DeletedAt, in.WaitsSince, in.Policy.DeleteGrace)
	inGrace := due.After(in.Now)
	switch {
	case row.Conditions.HasContainer():
		claim(in, &r, workspace.OpDeleting)
	case inGrace && (mayBeWhole(row.Home.State) || ownVolume(row.Conditions)):
		// A home that may be complete keeps its grace even if its volume is not
		// observed: the volume may come back before the deletion is undone.
		r.LookAgain = due
	case ownVolume(row.Conditions):
		claim(in, &r, workspace.OpDeleting)
		r.Row.Home.State = workspace.HomeDeleting
	case in.Obs.VolumeKnown && row.Home.State != workspace.HomeAbsent:
		r.Action = Action{Kind: Settle}
		r.Row.Home = removed(row.Home)
	}
	return r
}

// mayBeWhole reports whether a volume of a home in this state can be a complete
// copy.
func mayBeWhole(s workspace.HomeState) bool {
	return s == workspace.HomeLive || s == workspace.HomeArchived
}

// recovered clears the error and judges again. RecoverEmpty gives up a lost home,
// RecoverArchive replaces it with an earlier archive that exists. Earlier observations
// do not count: the request waits for a complete one. A container without its volume
// is removed first. If the home is still lost, that is recorded at once.
func recovered(in Input) Result {
	row := in.Row
	r := Result{Row: row, ClearCancel: row.CancelRequestedAt != nil}
	if row.DeletedAt == nil && !fresh(in) {
		return r
	}
	if r, waits := settingAside(in); waits {
		return r
	}
	reason := lost(row)
	if reason == workspace.ErrContainerWithoutVolume && !homeGoes(row, row.Conditions) {
		// The container cannot be used or repaired. Without it, the observation shows
		// what is wrong with the home.
		if r, ok := removal(in, *row.RecoverRequestedAt); ok {
			return r
		}
	}
	switch home, done := doneMeanwhile(in, reason); {
	case done:
		r.Row.Home = home
	case reason != workspace.ErrDataLost && reason != workspace.ErrArchiveCorrupted:
	case row.RecoverAction == workspace.RecoverEmpty:
		giveUp(&r.Row, workspace.Archive{})
	case row.RecoverAction == workspace.RecoverArchive && row.RecoverFrom != nil && in.Obs.Earlier == ArchivePresent:
		giveUp(&r.Row, *row.RecoverFrom)
	}
	if r.Row.Home.State == workspace.HomeLive && row.Conditions.Is(workspace.ContainerReady) {
		r.Row.StopReason = "" // a start has completed
	}
	r.Action, r.ClearRecover = Action{Kind: Recover}, true
	clearError(&r.Row)
	stillLost(in, &r)
	return r
}

// doneMeanwhile returns the home if the result of the failed operation is there by
// now, or if a complete volume is there in place of a lost archive (reason, see
// lost). Nothing is repeated, wiped or replaced then.
func doneMeanwhile(in Input, reason workspace.ErrorReason) (home workspace.Home, done bool) {
	home, v := in.Row.Home, in.Obs.Volume
	if !in.Obs.VolumeKnown || reason == workspace.ErrContainerWithoutVolume {
		return home, false
	}
	key := in.Row.ArchiveKey
	own := v != nil && v.Claim != "" && v.Claim == home.Claim
	switch {
	case in.Row.DeletedAt != nil:
		return removed(home), home.State == workspace.HomeDeleting && !own
	case home.State == workspace.HomeFilling && own && (key == "" && v.Seeded || key != "" && v.Marker == key):
		home.State, home.Marker = workspace.HomeLive, key
		return home, true
	case home.State == workspace.HomeArchived && own && v.Complete() && reason != "":
		home.State = workspace.HomeLive
		return home, true
	case home.State.Removable() && !own && (key == "" || in.Obs.Archive == ArchivePresent):
		return removed(home), true
	}
	return home, false
}

// stillLost records what is lost after a recovery, so that the workspace is not shown
// as healthy until the next tick.
func stillLost(in Input, r *Result) {
	health := Conditions(with(in, r.Row)).Get(workspace.Healthy)
	if health.True() {
		return
	}
	message := health.Message
	if AsksEarlier(in.Row) {
		switch in.Obs.Earlier {
		case ArchiveMissing:
			message = sentences(message, fmt.Sprintf(msgEarlierMissing, in.Row.RecoverFrom.Key))
		case ArchiveCorrupted:
			message = sentences(message, fmt.Sprintf(msgEarlierDamaged, in.Row.RecoverFrom.Key))
		}
	}
	message = withWayOut(in, message)
	r.Row.ErrorReason, r.Row.ErrorMessage, r.Row.ErrorCount = workspace.ErrorReason(health.Reason), message, 1
	r.Action.Reason, r.Action.Message = r.Row.ErrorReason, message
}

// fresh reports whether this observation has everything that health depends on.
func fresh(in Input) bool {
	archive := in.Row.ArchiveKey != "" && in.Row.Home.State != workspace.HomeLive
	earlier := AsksEarlier(in.Row)
	return in.Obs.ContainerKnown && in.Obs.VolumeKnown &&
		(!archive || in.Obs.Archive != ArchiveUnknown) && (!earlier || in.Obs.Earlier != ArchiveUnknown)
}

// giveUp replaces a lost home by an archive or, without one, by an empty home. A
// volume that still exists is not forgotten: a filling one is filled again, and that
// of an archived home is removed first.
func giveUp(row *workspace.Workspace, instead workspace.Archive) {
	switch row.Home.State {
	case workspace.HomeLive:
		if row.Conditions.Get(workspace.VolumeReady).Reason == workspace.ReasonRemoving {
			row.Home.State = workspace.HomeDiscarding // the rest of the volume blocks the next home
			break
		}
		row.Home = workspace.Home{State: workspace.HomeAbsent}
	case workspace.HomeArchived:
		row.Home.State = workspace.HomeDiscarding
	}
	row.ArchiveKey, row.ArchiveDigest, row.ArchiveSize = instead.Key, instead.Digest, instead.Size
}

func clearError(row *workspace.Workspace) {
	row.ErrorReason, row.ErrorMessage, row.ErrorCount, row.RetryAt = "", "", 0, nil
}

func endOperation(row *workspace.Workspace) {
	row.Operation, row.OpID, row.OpStartedAt, row.Progress = workspace.OpNone, "", nil, nil
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
