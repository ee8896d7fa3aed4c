package lifecycle_test

import (
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
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

// checkDecision: time goes on to what the judge named. The tables say what it decides.
func (w *world) checkDecision(in lifecycle.Input, r lifecycle.Result) {
	if !r.LookAgain.IsZero() && !r.LookAgain.After(in.Now) {
		w.failf("to be looked at again in the past: %v", r.LookAgain.Sub(in.Now))
	}
}

// replaced follows the backup that is the home from now on. What was the home is in an archive.
func (w *world) replaced(k *tick, key string) {
	before := w.objects[k.row.ArchiveKey]
	if w.home.has && !w.home.gone && k.hands == w.hands && (before == nil || !before.meta || before.content != w.home.latest) {
		w.failf("the home %d is in no archive", w.home.latest)
	}
	o := w.objects[key]
	if o == nil || !o.meta {
		if k.hands == w.hands {
			w.failf("replaced by a backup that is not there")
		}
		w.home = homeTruth{has: true, gone: true}
		return
	}
	w.home = homeTruth{has: true, latest: o.content}
	w.home.gone = !w.copyExists()
}

// checkWritten follows what a write that landed means for the owner's home.
func (w *world) checkWritten(k *tick, r lifecycle.Result) {
	from, to := k.row.Home, r.Row.Home
	switch {
	case r.ClearRestore && r.Row.ArchiveKey != k.row.ArchiveKey:
		w.replaced(k, r.Row.ArchiveKey)
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
