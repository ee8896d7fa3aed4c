package lifecycle_test

import (
	"fmt"
	"time"

	"codehub/internal/workspace"
)

// settleDown ends all faults and requests, and lets the world run until
// nothing happens any more.
func (w *world) settleDown() {
	w.logf("calm")
	w.calm = true
	for len(w.late) > 0 {
		w.land()
	}
	w.engineComes()
	w.bucketComes()
	w.imageBad = false
	if w.srv == nil {
		w.startServer()
	}
	w.runTick() // one that was begun before
	w.run()
}

// enough bounds the way to rest: the longest is an archive to be finished,
// restored, seeded and started, with every deadline on the way missed.
const enough = 2000

// run lets the calm world run. Time alone moves it only when the judge has
// said when to look again: a moment it forgot to name is a workspace that is
// stuck.
func (w *world) run() {
	for range enough {
		before, moved := describe(w.row)+w.requestsMade(), false
		for range 3 {
			moved = w.stepWorld() || moved
		}
		w.runTick()
		w.sweep()
		w.invariants()
		if w.row.Phase == workspace.PhaseDeleted {
			return
		}
		at := w.srv.lookAgain
		switch {
		case moved || describe(w.row)+w.requestsMade() != before || w.working():
			w.now = w.now.Add(time.Second)
		case !at.IsZero():
			w.now = at
		case w.collects(): // by a clock of its own
			w.now = w.row.DeletedAt.Add(w.policy.DeleteGrace)
		default:
			return
		}
	}
	w.failf("no rest after %d steps", enough)
}

func (w *world) requestsMade() string {
	return fmt.Sprint(w.row.RecoverRequestedAt, w.row.CancelRequestedAt, w.row.ForceStopRequestedAt, w.row.RestoreFrom)
}

// working: an executor is at work and gets on.
func (w *world) working() bool {
	e := w.srv.exec
	return e != nil && (!e.ended || w.now.Sub(e.endedAt) <= time.Second)
}

// collects: the archives of a deleted workspace go once the grace is over.
func (w *world) collects() bool {
	r := w.row
	return r.DeletedAt != nil && r.ArchiveKey != "" && r.Home.State == workspace.HomeAbsent &&
		w.now.Before(r.DeletedAt.Add(w.policy.DeleteGrace))
}

func (w *world) stepWorld() (moved bool) {
	before := w.backends()
	w.stepExecutor()
	w.stepContainer()
	w.stepJobs()
	w.invariants()
	return w.backends() != before
}

// comesToRest checks where the workspace has come to: where it is wanted,
// gone, or in an ERROR that the owner can leave.
func (w *world) comesToRest(stats map[string]int) {
	r := w.row
	if r.Operation != workspace.OpNone || r.NextDesired != "" && r.Phase != workspace.PhaseError && r.DeletedAt == nil {
		w.failf("at rest with something to do")
	}
	if r.Phase != workspace.PhaseDeleted && (r.CancelRequestedAt != nil || r.ForceStopRequestedAt != nil || r.RecoverRequestedAt != nil) {
		w.failf("at rest with a request: %s", w.requestsMade())
	}
	if r.RestoreFrom != nil && r.Phase != workspace.PhaseError {
		w.failf("at rest with a restore")
	}
	if image := ""; r.Phase != workspace.PhaseDeleted {
		if w.container != nil {
			image = w.container.image
		}
		if r.RunningImage != image {
			w.failf("the container has the image %q, and the row %q", image, r.RunningImage)
		}
	}
	switch {
	case r.Phase == workspace.PhaseDeleted:
		stats["DELETED"]++
		w.nothingLeft()
	case r.DeletedAt != nil:
		stats["deletion stuck"]++
		if r.ErrorReason != workspace.ErrTimeout && r.ErrorReason != workspace.ErrRetryExceeded {
			w.failf("a deletion is stuck on what is none of its errors")
		}
		w.deleteWorkspace(false)
		w.run()
		if w.row.Phase != workspace.PhaseDeleted {
			w.failf("deleted again, and not gone")
		}
	case r.Phase == workspace.PhaseError:
		stats[string(r.ErrorReason)]++
		w.wayOut()
	default:
		stats[string(r.Phase)]++
		w.whereWanted()
		w.backupReplaces(stats)
	}
}

// backupReplaces: in a calm world the last backup of the home replaces it. One that is not there any
// more does not, and the workspace goes on.
func (w *world) backupReplaces(stats map[string]int) {
	if w.backup == "" {
		return
	}
	o, content := w.objects[w.backup], w.home.latest
	there := o != nil && o.meta && !o.damaged
	w.restoreBackup(w.serial%2 == 0)
	w.run()
	r := w.row
	switch {
	case r.Phase == workspace.PhaseError: // a home or an archive that hands have damaged
		w.wayOut()
		return
	case r.RestoreFrom != nil:
		w.failf("at rest with a restore")
	case there && r.ArchiveKey != w.backup && r.Home.Marker != w.backup:
		w.failf("the backup has not replaced the home")
	case there:
		content = o.content
		stats["backup restored"]++
	}
	w.whereWanted()
	if w.home.latest != content {
		w.failf("the home is %d, not %d", w.home.latest, content)
	}
}

// nothingLeft: what hands put there, or a call of a killed server that landed
// after the end, is an orphan and collected as such.
func (w *world) nothingLeft() {
	if w.hands > 0 || w.landed > 0 {
		return
	}
	if w.container != nil || w.volume != nil {
		w.failf("DELETED, and something is left")
	}
}

// whereWanted: the workspace is what is desired, and what goes with it.
func (w *world) whereWanted() {
	r := w.row
	want := map[workspace.DesiredState]workspace.Phase{
		workspace.DesiredRunning:  workspace.PhaseRunning,
		workspace.DesiredStandby:  workspace.PhaseStandby,
		workspace.DesiredArchived: workspace.PhaseArchived,
	}[r.DesiredState]
	if r.Phase != want {
		w.failf("%s, but %s is wanted", r.Phase, r.DesiredState)
	}
	if r.ErrorReason != "" || r.ErrorCount != 0 || r.RetryAt != nil {
		w.failf("at rest with an error left")
	}
	k := w.container
	if r.Phase == workspace.PhaseRunning && (k == nil || !k.answers || k.volume != w.volume) {
		w.failf("RUNNING without a container that answers")
	}
	if r.Phase != workspace.PhaseRunning && k != nil {
		w.failf("%s with a container", r.Phase)
	}
	if v := w.volume; r.Phase == workspace.PhaseArchived && v != nil && v.claim == r.Home.Claim {
		w.failf("ARCHIVED, and it costs a volume")
	}
	home := workspace.HomeLive
	if r.Phase == workspace.PhaseArchived || r.Phase == workspace.PhasePending {
		home = workspace.HomeAbsent
	}
	if r.Home.State != home && !(home == workspace.HomeAbsent && r.Home.State == workspace.HomeFilling) {
		w.failf("%s with a home in %s", r.Phase, r.Home.State)
	}
}

// wayOut takes what the owner is offered in ERROR, in the order in which one
// would try it, until the workspace is where it is wanted.
func (w *world) wayOut() {
	ways := []struct {
		name string
		take func()
	}{
		{"recover", func() { w.recover(workspace.RecoverAfresh) }},
		{"start empty", func() { w.recover(workspace.RecoverEmpty) }},
		{"set aside what is in the way", func() {
			if v := w.volume; v != nil && v.claim != w.row.Home.Claim && w.hands == 0 && w.landed == 0 {
				w.failf("codehub's own volume is in its way")
			}
			w.recover(workspace.RecoverSetAside)
		}},
	}
	if o := w.objects[w.earlier()]; o != nil && o.meta && !o.damaged && w.serial%4 == 1 {
		ways[1].name, ways[1].take = "go back to the earlier archive", func() { w.recoverFrom(w.earlier()) }
		ways = append(ways, ways[1], ways[2])
		ways[3].name, ways[3].take = "start empty", func() { w.recover(workspace.RecoverEmpty) }
	}
	if w.home.gone && w.serial%2 == 0 {
		ways[0].name, ways[0].take = "put back, recover", func() {
			w.byHand("put everything back", func() {
				w.putArchiveBack(w.row.ArchiveKey)
				if w.takenVolume != nil && w.takenVolume.claim == w.row.Home.Claim {
					w.volume = w.takenVolume
				}
			})
			w.recover(workspace.RecoverAfresh)
		}
	}
	for _, way := range append(ways, ways...) { // one trouble may hide another
		if w.row.Phase != workspace.PhaseError {
			break
		}
		w.checkReason()
		w.logf("way out: %s", way.name)
		way.take()
		w.run()
	}
	if w.row.Phase == workspace.PhaseError {
		w.failf("no way out of %s", w.row.ErrorReason)
	}
	w.whereWanted()
}

// checkReason: what cannot be had in a calm world must be the reason of an
// error that stays.
func (w *world) checkReason() {
	r := w.row
	if !r.ErrorReason.Final() {
		w.failf("ERROR for %q", r.ErrorReason)
	}
	if r.RetryAt != nil {
		w.failf("ERROR with a retry")
	}
}
