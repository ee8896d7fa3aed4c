package lifecycle_test

import (
	"time"

	"codehub/internal/lifecycle"
	"codehub/internal/workspace"
)

// mayStart: a container is started only for a claimed STARTING of a live home. Calls
// that a killed server left running are checked by their effect.
func (w *world) mayStart(e *executor) {
	if w.row.Operation != workspace.OpStarting || w.row.OpID != e.claim || w.row.Home.State != workspace.HomeLive || w.row.DeletedAt != nil {
		w.failf("a container is started")
	}
}

// invariants hold after every step, whatever happened.
func (w *world) invariants() {
	r := w.row
	if (r.Operation == workspace.OpNone) != (r.OpID == "") || (r.Operation == workspace.OpNone) != (r.OpStartedAt == nil) {
		w.failf("operation and claim do not agree")
	}
	if r.Phase == workspace.PhaseError && r.Operation != workspace.OpNone {
		w.failf("ERROR with an operation")
	}
	if r.Phase == workspace.PhaseRunning && r.Home.State != workspace.HomeLive {
		w.failf("RUNNING on a home in %s", r.Home.State)
	}
	if w.home.has && w.copyExists() {
		w.home.gone = false // put back
	}
	if w.home.has && !w.home.gone && !w.copyExists() {
		w.failf("the home %d is lost", w.home.latest)
	}
	if r.Phase == workspace.PhaseDeleted {
		if r.DeletedAt == nil {
			w.failf("DELETED and not deleted")
		}
		if w.home.has && !w.home.gone {
			w.failf("DELETED with the home there")
		}
	}
}

// checkDecision checks what the judge said, before anything comes of it.
func (w *world) checkDecision(in lifecycle.Input, r lifecycle.Result) {
	if r.Action.Kind == lifecycle.Claim {
		w.checkClaim(in, r)
	}
	if in.Row.Operation != workspace.OpNone && r.Row.Operation != in.Row.Operation && r.Row.Operation != workspace.OpNone {
		w.failf("%s became %s", in.Row.Operation, r.Row.Operation)
	}
	w.checkSeen(in, r)
	w.checkComplete(in, r)
	w.checkAnswered(in, r)
	if r.Row.Operation != workspace.OpNone && r.Action.Kind != lifecycle.Claim && in.Obs.ContainerKnown && in.Obs.VolumeKnown {
		if r.LookAgain.IsZero() || r.LookAgain.After(in.Now.Add(w.policy.NoProgress)) {
			w.failf("%s has no deadline: %v", r.Row.Operation, r.LookAgain)
		}
	}
	if !r.LookAgain.IsZero() && !r.LookAgain.After(in.Now) {
		w.failf("to be looked at again in the past: %v", r.LookAgain.Sub(in.Now))
	}
	if r.Action.Kind == lifecycle.Fail {
		w.checkFail(in, r)
	}
}

// checkSeen: a condition that was not observed stays as it was, and a container is
// ready only if it was observed to run.
func (w *world) checkSeen(in lifecycle.Input, r lifecycle.Result) {
	stays := func(t workspace.ConditionType) {
		if was, is := in.Row.Conditions.Get(t), r.Row.Conditions.Get(t); was.Reason != is.Reason {
			w.failf("%s was %s and is %s, without having been seen", t, was.Reason, is.Reason)
		}
	}
	if !in.Obs.ContainerKnown {
		stays(workspace.ContainerReady)
	}
	if !in.Obs.VolumeKnown {
		stays(workspace.VolumeReady)
	}
	if k := in.Obs.Container; in.Obs.ContainerKnown && r.Row.Conditions.Is(workspace.ContainerReady) &&
		(k == nil || k.State != lifecycle.Running || !k.Answers && !in.Row.Conditions.Is(workspace.ContainerReady)) {
		w.failf("ready, but seen was %+v", k)
	}
	if v := in.Obs.Volume; in.Obs.VolumeKnown && r.Row.Conditions.Is(workspace.VolumeReady) && (v == nil || v.Claim != r.Row.Home.Claim) {
		w.failf("there is a home, but seen was %+v", v)
	}
}

// checkComplete: a complete operation has reached its result (docs/states.md#operations).
func (w *world) checkComplete(in lifecycle.Input, r lifecycle.Result) {
	if r.Action.Kind != lifecycle.Complete {
		return
	}
	gone := in.Obs.ContainerKnown && in.Obs.Container == nil
	ok := false
	switch phase := r.Row.Phase; r.Action.Op {
	case workspace.OpProvisioning, workspace.OpRestoring:
		ok = phase == workspace.PhaseStandby && r.Row.Home.State == workspace.HomeLive
	case workspace.OpStarting:
		ok = phase == workspace.PhaseRunning
	case workspace.OpStopping:
		ok = gone && phase != workspace.PhaseRunning
	case workspace.OpArchiving:
		ok = phase == workspace.PhaseArchived || phase == workspace.PhasePending && r.Row.ArchiveKey == ""
	case workspace.OpCreateEmptyArchive:
		ok = phase == workspace.PhaseArchived
	case workspace.OpDeleting:
		ok = gone
	}
	if !ok {
		w.failf("%s is complete, in %s", r.Action.Op, r.Row.Phase)
	}
}

// checkAnswered: requests are answered, and what is asked for is done.
func (w *world) checkAnswered(in lifecycle.Input, r lifecycle.Result) {
	row := in.Row
	if row.Operation == workspace.OpNone {
		return
	}
	if row.CancelRequestedAt != nil && !r.ClearCancel {
		w.failf("a request to cancel is not answered")
	}
	wanted := row.NextDesired == workspace.DesiredRunning || row.NextDesired == workspace.DesiredStandby
	deleted := row.NextDesired == workspace.DesiredDeleted
	ends := (row.CancelRequestedAt != nil || deleted) && lifecycle.Cancellable(row) || row.Operation == workspace.OpCreateEmptyArchive && (wanted || deleted) ||
		row.Operation == workspace.OpArchiving && row.Home.State == workspace.HomeLive && (wanted || in.Obs.Container != nil)
	if ends && r.Row.Operation != workspace.OpNone {
		w.failf("%s goes on", row.Operation)
	}
}

// checkClaim: an operation leads to a neighbouring level towards the desired state, and
// the home's state allows it.
func (w *world) checkClaim(in lifecycle.Input, r lifecycle.Result) {
	phase := lifecycle.Phase(in.Row, lifecycle.Conditions(in))
	home, want := in.Row.Home.State, in.Row.DesiredState
	up := want != workspace.DesiredArchived
	fillable := home == workspace.HomeAbsent || home == workspace.HomeFilling
	ok := false
	switch r.Action.Op {
	case workspace.OpProvisioning:
		ok = phase == workspace.PhasePending && up && in.Row.ArchiveKey == "" && fillable
	case workspace.OpCreateEmptyArchive:
		ok = phase == workspace.PhasePending && !up && in.Row.ArchiveKey == "" && fillable
	case workspace.OpRestoring:
		ok = phase == workspace.PhaseArchived && up && fillable
	case workspace.OpStarting:
		ok = phase == workspace.PhaseStandby && want == workspace.DesiredRunning && home == workspace.HomeLive
	case workspace.OpStopping:
		ok = phase == workspace.PhaseRunning && want != workspace.DesiredRunning || phase != workspace.PhaseRunning && lifecycle.Conditions(in).HasContainer()
	case workspace.OpArchiving:
		ok = (phase == workspace.PhaseStandby && !up || home.Removable() ||
			phase == workspace.PhaseArchived && !up && home == workspace.HomeFilling) && !lifecycle.Conditions(in).HasContainer()
	case workspace.OpDeleting:
		ok = in.Row.DeletedAt != nil
	}
	if in.Row.RetryAt != nil && in.Row.RetryAt.After(in.Now) {
		w.failf("%s claimed before the time to retry", r.Action.Op)
	}
	if in.Row.Operation != workspace.OpNone || r.Row.OpID != in.ClaimID || (in.Row.DeletedAt != nil) != (r.Action.Op == workspace.OpDeleting) {
		ok = false
	}
	if !ok {
		w.failf("%s claimed in %s, home %s, for %s, op %s", r.Action.Op, phase, home, want, in.Row.Operation)
	}
}

// checkFail: an outage is not a failure, and no deadline passes during one.
func (w *world) checkFail(in lifecycle.Input, r lifecycle.Result) {
	if r.Row.ErrorReason == workspace.ErrUnreachable {
		w.failf("an outage is recorded as a failure")
	}
	if r.Row.ErrorReason == workspace.ErrActionFailed && r.Row.ErrorCount >= workspace.MaxAttempts {
		w.failf("attempt %d is not the last", r.Row.ErrorCount)
	}
	if r.Action.Reason != workspace.ErrTimeout {
		return
	}
	if !in.Obs.ContainerKnown || !in.Obs.VolumeKnown {
		w.failf("a timeout is concluded from a failed observation")
	}
	bound := map[workspace.Operation]time.Duration{
		workspace.OpProvisioning: w.policy.Starting,
		workspace.OpStarting:     w.policy.Starting,
		workspace.OpStopping:     w.policy.Stopping,
		workspace.OpDeleting:     w.policy.Deleting,
	}[r.Action.Op]
	up := w.reachableAt
	if lifecycle.OnBucket(r.Action.Op) {
		bound = w.policy.NoProgress
		if w.bucketUpAt.After(up) {
			up = w.bucketUpAt
		}
	}
	switch {
	case in.Work.Preparing:
		bound = w.policy.NoProgress
		if in.Work.ProgressAt.After(up) {
			up = in.Work.ProgressAt
		}
	case in.Work.PreparedAt.After(up):
		up = in.Work.PreparedAt
	}
	if up.Add(bound).After(in.Now) {
		w.failf("%s timed out, but the backend answers for %s only", r.Action.Op, in.Now.Sub(up))
	}
}

// checkWritten follows what a write that landed means for the owner's home.
func (w *world) checkWritten(k *tick, r lifecycle.Result) {
	from, to := k.row.Home, r.Row.Home
	switch {
	case r.Action.Kind == lifecycle.Fail && r.Action.Reason == workspace.ErrDataLost && w.hands == 0 && w.landed == 0:
		w.failf("lost, and nobody has taken it: %s", r.Action.Message)
	case from.State == workspace.HomeArchived && to.State == workspace.HomeLive:
		if v := w.volume; (v == nil || v.claim != to.Claim || !v.complete) && k.hands == w.hands {
			w.failf("a home that is not complete is live")
		}
		w.home.gone = w.home.has && !w.copyExists()
	case from.State != workspace.HomeLive && to.State == workspace.HomeLive:
		v := w.volume
		if v == nil || v.claim != to.Claim || !v.complete {
			if k.hands == w.hands {
				w.failf("a home that is not complete is live")
			}
			w.home = homeTruth{has: true, gone: true}
			return
		}
		if k.row.Operation == workspace.OpProvisioning || r.Action.Kind == lifecycle.Recover && k.row.ArchiveKey == "" {
			w.home = homeTruth{has: true, latest: v.content}
		}
	case r.Action.Kind == lifecycle.Recover && from.State != workspace.HomeLive && to.State == workspace.HomeAbsent && k.row.ArchiveKey == r.Row.ArchiveKey:
		// What was to be removed is gone.
	case r.Action.Kind == lifecycle.Recover && (!from.Equal(to) || k.row.ArchiveKey != r.Row.ArchiveKey):
		if k.row.RecoverAction == workspace.RecoverAfresh || !k.sawGone && k.row.ErrorReason != workspace.ErrArchiveCorrupted {
			w.failf("a home was given up that was there, or without a word of its owner")
		}
		w.home = homeTruth{}
		if key := r.Row.ArchiveKey; key != "" { // from now on that archive is the home
			w.home.has = true
			if o := w.objects[key]; o != nil {
				w.home.latest = o.content
			}
			w.home.gone = !w.copyExists()
			if w.home.gone && k.hands == w.hands && !w.damaged(key) {
				w.failf("put back to an archive that is not there")
			}
		}
	case r.Action.Kind == lifecycle.Claim && r.Action.Op == workspace.OpDeleting && to.State == workspace.HomeDeleting:
		if w.now.Before(k.row.DeletedAt.Add(w.policy.DeleteGrace)) {
			w.failf("deleted within the grace")
		}
		w.home = homeTruth{}
	case from.State == workspace.HomeLive && to.State == workspace.HomeAbsent && !(k.row.DeletedAt != nil && k.sawGone):
		w.failf("a live home became absent")
	}
	if from.State == workspace.HomeLive && (to.State.Removable() || to.State == workspace.HomeDeleting && r.Action.Op != workspace.OpDeleting) {
		w.failf("the judge has a home removed")
	}
}
