package lifecycle_test

import (
	"fmt"
	"reflect"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// The API layer's writes: the production intents, applied to the row.

func (w *world) requested() time.Time {
	w.requestAt = w.requestAt.Add(time.Nanosecond)
	if w.requestAt.Before(w.now) {
		w.requestAt = w.now
	}
	return w.requestAt
}

// intend applies an intent. One that is refused does nothing.
func (w *world) intend(what string, f func(workspace.Workspace, time.Time) (lifecycle.Intent, error)) bool {
	out, err := f(w.row, w.requested())
	if err != nil || !out.Changed {
		return false
	}
	w.onlyOwned(what, out.Workspace)
	w.row = out.Workspace
	w.logf("%s", what)
	return true
}

// onlyOwned checks that an intent changed only what the API layer owns.
func (w *world) onlyOwned(what string, next workspace.Workspace) {
	r := w.row
	next.DesiredState, next.DesiredCause, next.NextDesired, next.DeletedAt = r.DesiredState, r.DesiredCause, r.NextDesired, r.DeletedAt
	next.ImageRef, next.PreviousImage = r.ImageRef, r.PreviousImage
	next.ImageGeneration, next.ImagePull = r.ImageGeneration, r.ImagePull
	next.LastAccessAt, next.LastAccess = r.LastAccessAt, r.LastAccess
	next.RecoverRequestedAt, next.RecoverAction, next.RecoverFrom = r.RecoverRequestedAt, r.RecoverAction, r.RecoverFrom
	next.RestoreFrom = r.RestoreFrom
	next.CancelRequestedAt, next.ForceStopRequestedAt = r.CancelRequestedAt, r.ForceStopRequestedAt
	if !reflect.DeepEqual(next, r) {
		w.failf("%s changed what the controller owns: %s", what, describe(next))
	}
}

func (w *world) patch(want workspace.DesiredState, queue bool) {
	w.intend(fmt.Sprintf("patch %s queue %v", want, queue), func(r workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		return lifecycle.Desire(r, now, want, queue)
	})
}

func (w *world) deleteWorkspace(queue bool) {
	w.intend(fmt.Sprintf("delete queue %v", queue), func(r workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		return lifecycle.Delete(r, now, queue)
	})
}

func (w *world) undelete() {
	w.intend("undelete", func(r workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		return lifecycle.Undelete(r, now, false)
	})
}

func (w *world) recover(action string) {
	w.intend("recover "+action, func(r workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		return lifecycle.RequestRecover(r, now, action)
	})
}

// recoverFrom is a recovery that is to go on with an archive that was kept.
func (w *world) recoverFrom(key string) {
	if key == "" {
		return
	}
	w.intend("recover from "+key, func(r workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		return lifecycle.RequestRecoverFrom(r, now, &workspace.Archive{Key: key})
	})
}

// makeBackup is a backup of the home in use.
func (w *world) makeBackup() {
	v := w.volume
	if v == nil || !v.complete || w.row.Home.State != workspace.HomeLive || v.claim != w.row.Home.Claim {
		return
	}
	w.backup = w.id("backup")
	w.objects[w.backup] = &object{content: v.content, meta: true}
	w.logf("%s of %d", w.backup, v.content)
}

func (w *world) restoreBackup(start bool) {
	if w.backup == "" {
		return
	}
	w.intend("restore "+w.backup, func(r workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		return lifecycle.RequestRestore(r, now, &workspace.Archive{Key: w.backup}, start)
	})
}

func (w *world) cancel() { w.intend("cancel "+string(w.row.Operation), lifecycle.RequestCancel) }

func (w *world) setImage(image string) {
	w.intend("image "+image, func(r workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		return lifecycle.SetImage(r, now, image)
	})
}

func (w *world) forceStop() { w.intend("force stop", lifecycle.RequestForceStop) }

func (w *world) restart() { w.intend("restart", lifecycle.Restart) }

// visit is a person opening the workspace.
func (w *world) visit() { w.intend("visit", lifecycle.Wake) }

// stay is its owner asking for it to stay.
func (w *world) stay() { w.intend("stay", lifecycle.Stay) }

// expire is an idle timeout running out.
func (w *world) expire() {
	out := lifecycle.EndIdle(w.row, w.now, workspace.TTL{Standby: 1, Archive: 1})
	if !out.Changed {
		return
	}
	w.onlyOwned("expire", out.Workspace)
	w.row = out.Workspace
	w.logf("expire: %s", w.row.DesiredCause)
}

// applyQueued is called by the server. At times the limits say no.
func (w *world) applyQueued() {
	out := lifecycle.ApplyQueued(w.row, w.requested())
	switch {
	case !out.Changed:
	case out.NeedsSlot && w.chance("limit", 4):
		w.logf("queued wish waits for the limits")
	default:
		w.logf("queued %s applied", w.row.NextDesired)
		w.onlyOwned("apply queued", out.Workspace)
		w.row = out.Workspace
	}
}

// useHome is the owner changing a file, as far as the proxy lets them in.
func (w *world) useHome() {
	k := w.container
	if w.row.Phase != workspace.PhaseRunning || w.row.Operation != workspace.OpNone || w.row.DeletedAt != nil {
		return
	}
	if k == nil || !k.answers || k.volume != w.volume || w.volume == nil {
		return
	}
	w.serial++
	w.volume.content = w.serial
	if !w.home.gone {
		w.home.latest = w.serial
	}
	w.logf("home is now %d", w.serial)
}

// write is the controller's write: a compare-and-swap that sets what differs
// between the row as it was read and as it is to be.
func (w *world) write(seen workspace.Workspace, r lifecycle.Result) bool {
	claim := false
	switch r.Action.Kind {
	case lifecycle.Claim, lifecycle.Settle, lifecycle.Recover, lifecycle.Cancel, lifecycle.Fail:
		claim = true
	}
	if r.Row.Phase == workspace.PhaseDeleted && seen.Phase != workspace.PhaseDeleted {
		claim = true
	}
	db := &w.row
	home := db.Home.Equal(seen.Home) || !claim && r.Row.Home.Equal(seen.Home)
	if db.Operation != seen.Operation || db.OpID != seen.OpID || !home || claim && decided(*db) != decided(seen) {
		w.logf("write lost")
		return false
	}
	next := r.Row
	from, to, row := reflect.ValueOf(seen), reflect.ValueOf(next), reflect.ValueOf(db).Elem()
	for i := range from.NumField() {
		if !reflect.DeepEqual(from.Field(i).Interface(), to.Field(i).Interface()) {
			row.Field(i).Set(to.Field(i))
		}
	}
	clear := func(ask bool, seen *time.Time, at **time.Time) {
		if ask && seen != nil && *at != nil && seen.Equal(**at) {
			*at = nil
		}
	}
	clear(r.ClearRecover, seen.RecoverRequestedAt, &db.RecoverRequestedAt)
	clear(r.ClearCancel, seen.CancelRequestedAt, &db.CancelRequestedAt)
	clear(r.ClearForceStop, seen.ForceStopRequestedAt, &db.ForceStopRequestedAt)
	if from := db.RestoreFrom; r.ClearRestore && from != nil && *from == *seen.RestoreFrom {
		db.RestoreFrom = nil
	}
	if db.RecoverRequestedAt == nil {
		db.RecoverAction, db.RecoverFrom = "", nil
	}
	return true
}

type decision struct {
	desired, next workspace.DesiredState
	reason        workspace.ErrorReason
	key, action   string
	image         string
	from, restore string // what RecoverFrom and RestoreFrom name
	times         [5]time.Time
}

// decided is what a claim compares, besides the home.
func decided(r workspace.Workspace) decision {
	d := decision{desired: r.DesiredState, next: r.NextDesired, reason: r.ErrorReason, image: r.ImageRef, key: r.ArchiveKey, action: r.RecoverAction}
	if r.RecoverFrom != nil {
		d.from = r.RecoverFrom.Key
	}
	if r.RestoreFrom != nil {
		d.restore = r.RestoreFrom.Key
	}
	for i, at := range []*time.Time{r.DeletedAt, r.RetryAt, r.RecoverRequestedAt, r.CancelRequestedAt, r.ForceStopRequestedAt} {
		if at != nil {
			d.times[i] = *at
		}
	}
	return d
}
