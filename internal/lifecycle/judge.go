package lifecycle

import (
	"fmt"
	"time"

	"codehub/internal/workspace"
)

// Judge takes one look at one workspace and says what its row should be and
// what is to be done.
func Judge(in Input) Result {
	in.Row.Conditions = Conditions(in)
	in.Row.Phase = Phase(in.Row, in.Row.Conditions)
	if in.Obs.ContainerKnown {
		in.Row.RunningImage = ""
		if in.Obs.Container != nil {
			in.Row.RunningImage = in.Obs.Container.Image
		}
	}

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

// settle brings conditions and phase in line with what the action changed, so
// that one transaction holds all of it.
func settle(in Input, r *Result) {
	before := in.Row
	if r.Action.Kind != None || r.Row.Home != before.Home {
		r.Row.Conditions = Conditions(with(in, r.Row))
		r.Row.Phase = Phase(r.Row, r.Row.Conditions)
	}
}

// with is the same look at a row that names another archive, perhaps.
func with(in Input, row workspace.Workspace) Input {
	if row.ArchiveKey != in.Row.ArchiveKey {
		in.Obs.Archive = ArchiveUnknown
		if from := in.Row.RecoverFrom; from != nil && from.Key == row.ArchiveKey {
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

// removal has the container that was seen removed, if there is one, for as
// long as a DELETING may take from when it was asked for.
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
		// The volume went after the ARCHIVING that was to see it go had ended.
		r.Action = Action{Kind: Settle}
		r.Row.Home = workspace.Home{State: workspace.HomeAbsent}
		return r
	}
	if op := choose(in); op != workspace.OpNone {
		claim(in, &r, op)
		return r
	}
	if (row.ErrorReason != "" || row.ErrorCount > 0) && !unrestorable(row) {
		// At rest nothing fails any more: the next wish has all its attempts.
		r.Action = Action{Kind: Settle}
		clearError(&r.Row)
	}
	return r
}

// queued has a queued wish put into force. A start may have to wait for the
// limits, and what is left of one that was called off goes meanwhile: its
// container would run on beside as many as may. What is up already is not
// stopped for the moment that the wish takes.
func queued(in Input, r Result) Result {
	row := in.Row
	start := row.NextDesired == workspace.DesiredRunning && row.DesiredState != workspace.DesiredRunning
	waits := row.RetryAt != nil && row.RetryAt.After(in.Now)
	if start && (Restarting(row) || row.Phase != workspace.PhaseRunning && row.Conditions.HasContainer()) && !waits {
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
	up := row.DesiredState == workspace.DesiredRunning || row.DesiredState == workspace.DesiredStandby
	run := row.DesiredState == workspace.DesiredRunning
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
		case row.DesiredState == workspace.DesiredArchived && container == workspace.ReasonNoContainer && !unrestorable(row):
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

// removing is ARCHIVING for a home whose volume is all that is left to remove,
// whatever is wanted. An earlier observation of the archive does not count.
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
	return row.ErrorReason == workspace.ErrUnrestorable && row.DesiredState == workspace.DesiredArchived && row.Home.State == workspace.HomeLive
}

func claim(in Input, r *Result, op workspace.Operation) {
	now := in.Now
	r.Action = Action{Kind: Claim, Op: op}
	r.Row.Operation, r.Row.OpID, r.Row.OpStartedAt = op, in.ClaimID, &now
	r.Row.Progress = nil
	switch op {
	case workspace.OpProvisioning, workspace.OpRestoring:
		// A home that is being filled keeps the claim its volume carries, so
		// that only what was made for it can ever be wiped.
		if r.Row.Home.State != workspace.HomeFilling {
			r.Row.Home = workspace.Home{State: workspace.HomeFilling, Claim: in.ClaimID}
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
		return r // deleting it failed; to delete it again asks for a recovery
	case row.ErrorReason.Final():
		// Found in the very moment in which it was deleted: of no concern now.
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
		// A home that may be complete waits out the grace even where its
		// volume is not seen: it may be back before the deletion is undone.
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
	if reason == workspace.ErrContainerWithoutVolume {
		// It works on nothing, nobody is let in to it, and nothing can be
		// put under it: what is wrong with the home shows without it.
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
		r.Row.StopReason = "" // a start has come to its end
	}
	r.Action, r.ClearRecover = Action{Kind: Recover}, true
	clearError(&r.Row)
	stillLost(in, &r)
	return r
}

// doneMeanwhile is the home after a recovery that finds done what the failed
// operation was to do, or that finds a complete volume in place of a lost
// archive (reason, see lost). Nothing is done again, wiped or given up then.
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

// stillLost records what is lost after a recovery, so that nobody takes the
// workspace for healthy until the next look.
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

// fresh reports whether everything that health depends on was seen just now.
func fresh(in Input) bool {
	archive := in.Row.ArchiveKey != "" && in.Row.Home.State != workspace.HomeLive
	earlier := AsksEarlier(in.Row)
	return in.Obs.ContainerKnown && in.Obs.VolumeKnown &&
		(!archive || in.Obs.Archive != ArchiveUnknown) && (!earlier || in.Obs.Earlier != ArchiveUnknown)
}

// giveUp lets go of a home that is lost, for what an archive holds or, without
// one, an empty home. A volume that is still there is not forgotten: one in
// filling is filled anew, what is left of an archived home is removed first.
func giveUp(row *workspace.Workspace, instead workspace.Archive) {
	switch row.Home.State {
	case workspace.HomeLive:
		if row.Conditions.Get(workspace.VolumeReady).Reason == workspace.ReasonRemoving {
			row.Home.State = workspace.HomeDiscarding // what is left of it blocks the next home
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
