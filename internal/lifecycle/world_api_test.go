package lifecycle_test

import (
	"reflect"
	"time"

	"codehub/internal/lifecycle"
	"codehub/internal/workspace"
)

// The API layer's writes, with the effects that the store gives them. A
// request that would be refused does nothing.

func (w *world) requested() *time.Time {
	w.requestAt = w.requestAt.Add(time.Nanosecond)
	if w.requestAt.Before(w.now) {
		w.requestAt = w.now
	}
	at := w.requestAt
	return &at
}

func (w *world) patch(want workspace.DesiredState, queue bool) {
	r := &w.row
	switch {
	case r.DeletedAt != nil, r.Phase == workspace.PhaseError:
	case want == r.DesiredState:
		r.NextDesired = ""
	case r.Operation != workspace.OpNone && !queue:
	case r.Operation != workspace.OpNone:
		r.NextDesired = want
	default:
		r.DesiredState, r.NextDesired = want, ""
	}
	w.logf("patch %s queue %v", want, queue)
}

func (w *world) deleteWorkspace(queue bool) {
	r := &w.row
	switch {
	case r.Phase == workspace.PhaseDeleted:
	case r.DeletedAt != nil:
		if r.ErrorReason.Final() && r.RecoverRequestedAt == nil {
			r.RecoverRequestedAt, r.RecoverAction, r.RecoverFrom = w.requested(), workspace.RecoverAfresh, nil
		}
	case r.Operation != workspace.OpNone && !queue:
	case r.Operation != workspace.OpNone:
		r.NextDesired = workspace.DesiredDeleted
	default:
		w.deleteNow()
	}
	w.logf("delete queue %v", queue)
}

func (w *world) deleteNow() {
	r := &w.row
	r.DeletedAt, r.NextDesired = w.requested(), ""
	if r.ErrorReason.Final() && r.RecoverRequestedAt == nil {
		r.RecoverRequestedAt, r.RecoverAction = w.requested(), workspace.RecoverAfresh
	}
}

func (w *world) undelete() {
	r := &w.row
	volume := r.Conditions.Is(workspace.VolumeReady)
	switch {
	case r.DeletedAt == nil, r.Phase == workspace.PhaseDeleted, r.Home.State == workspace.HomeDeleting, r.Home.Removed():
		return
	case !volume && r.ArchiveKey == "":
		return
	}
	r.DeletedAt, r.NextDesired, r.DesiredState = nil, "", workspace.DesiredArchived
	if volume && r.Home.State == workspace.HomeLive {
		r.DesiredState = workspace.DesiredStandby
	}
	w.logf("undelete")
}

func (w *world) recover(action string) {
	r := &w.row
	stuck := r.DeletedAt != nil && r.ErrorReason.Final()
	if r.Phase == workspace.PhaseDeleted || r.Phase != workspace.PhaseError && !stuck {
		return
	}
	r.RecoverRequestedAt, r.RecoverAction, r.RecoverFrom = w.requested(), action, nil
	w.logf("recover %s", action)
}

// recoverFrom is a recovery that is to go on with an archive that was kept.
func (w *world) recoverFrom(key string) {
	if key == "" {
		return
	}
	w.recover(workspace.RecoverArchive)
	if r := &w.row; r.RecoverAction == workspace.RecoverArchive && r.RecoverFrom == nil {
		r.RecoverFrom = &workspace.Archive{Key: key}
		w.logf("from %s", key)
	}
}

func (w *world) cancel() {
	r := &w.row
	if r.DeletedAt != nil {
		return
	}
	switch {
	case r.Operation == workspace.OpStarting:
		r.DesiredState = workspace.DesiredStandby
	case r.Operation == workspace.OpRestoring, r.Operation == workspace.OpProvisioning:
		r.DesiredState = workspace.DesiredArchived
	case r.Operation == workspace.OpArchiving && r.Home.State == workspace.HomeLive:
		r.DesiredState = workspace.DesiredStandby
	default:
		return
	}
	r.NextDesired, r.CancelRequestedAt = "", w.requested()
	w.logf("cancel %s", r.Operation)
}

func (w *world) forceStop() {
	r := &w.row
	if r.DeletedAt != nil {
		return
	}
	r.ForceStopRequestedAt = w.requested()
	if r.DesiredState == workspace.DesiredRunning {
		r.DesiredState = workspace.DesiredStandby
	}
	if r.NextDesired == workspace.DesiredRunning {
		r.NextDesired = ""
	}
	w.logf("force stop")
}

// visit is a person opening the workspace.
func (w *world) visit() {
	r := &w.row
	if r.DeletedAt != nil {
		return
	}
	switch r.Operation {
	case workspace.OpNone:
		if (r.Phase == workspace.PhaseStandby || r.Phase == workspace.PhaseRunning) && r.NextDesired != workspace.DesiredDeleted {
			r.DesiredState, r.NextDesired = workspace.DesiredRunning, ""
		}
	case workspace.OpStopping, workspace.OpArchiving, workspace.OpProvisioning, workspace.OpRestoring, workspace.OpStarting:
		if r.DesiredState != workspace.DesiredRunning && r.NextDesired != workspace.DesiredDeleted {
			r.NextDesired = workspace.DesiredRunning
		}
	}
	w.logf("visit")
}

// expire is a TTL running out.
func (w *world) expire() {
	r := &w.row
	if r.DeletedAt != nil || r.Operation != workspace.OpNone {
		return
	}
	switch {
	case r.Phase == workspace.PhaseRunning && r.DesiredState == workspace.DesiredRunning:
		r.DesiredState = workspace.DesiredStandby
	case r.Phase == workspace.PhaseStandby && r.DesiredState == workspace.DesiredStandby:
		r.DesiredState = workspace.DesiredArchived
	}
	w.logf("expire")
}

// applyQueued is called by the server. At times the limits say no.
func (w *world) applyQueued() {
	r := &w.row
	switch want := r.NextDesired; {
	case want == "", r.DeletedAt != nil, r.Operation != workspace.OpNone:
	case want == workspace.DesiredDeleted:
		w.deleteNow()
		w.logf("queued deletion applied")
	case r.Phase == workspace.PhaseError:
	case want == workspace.DesiredRunning && w.chance("limit", 4):
		w.logf("queued wish waits for the limits")
	default:
		r.DesiredState, r.NextDesired = want, ""
		w.logf("queued %s applied", want)
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
	if db.Operation != seen.Operation || db.OpID != seen.OpID || claim && decided(*db) != decided(seen) {
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
	if db.RecoverRequestedAt == nil {
		db.RecoverAction, db.RecoverFrom = "", nil
	}
	return true
}

type decision struct {
	desired, next workspace.DesiredState
	reason        workspace.ErrorReason
	key, action   string
	home          workspace.Home
	times         [5]time.Time
}

// decided is what a claim compares.
func decided(r workspace.Workspace) decision {
	d := decision{desired: r.DesiredState, next: r.NextDesired, reason: r.ErrorReason, key: r.ArchiveKey, action: r.RecoverAction, home: r.Home}
	for i, at := range []*time.Time{r.DeletedAt, r.RetryAt, r.RecoverRequestedAt, r.CancelRequestedAt, r.ForceStopRequestedAt} {
		if at != nil {
			d.times[i] = *at
		}
	}
	return d
}
