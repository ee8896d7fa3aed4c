package lifecycle_test

import (
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// actions are the steps of a simulated world; rapid draws them in any order.
// What matters most is listed several times; what begins with + happens in
// every world.
func (w *world) actions() map[string]func(*rapid.T) {
	a := map[string]func(*rapid.T){"": func(*rapid.T) { w.invariants() }}
	add := func(name string, times int, f func()) {
		if !strings.HasPrefix(name, "+") && !w.happens(name) {
			return
		}
		for i := range times {
			a[name+string(rune('a'+i))] = func(t *rapid.T) {
				w.t = t
				f()
				w.invariants()
			}
		}
	}
	serving := func(f func()) func() {
		return func() {
			if w.srv != nil {
				f()
			}
		}
	}
	add("+tick", 8, serving(w.runTick))
	add("tick stage", 3, serving(w.stepTick))
	add("+executor", 8, serving(w.stepExecutor))
	add("+container answers", 1, w.stepContainer)
	add("job", 4, w.stepJobs)
	add("+goes on", 8, func() {
		for range rapid.IntRange(1, 6).Draw(w.t, "rounds") {
			w.stepJobs()
			w.stepContainer()
			if w.srv != nil {
				w.stepExecutor()
				w.wait(time.Second)
			}
			w.invariants()
		}
	})
	add("late call", 1, func() {
		if len(w.late) > 0 {
			w.land()
		}
	})
	add("time", 3, func() { w.wait(time.Duration(rapid.IntRange(1, 15).Draw(w.t, "seconds")) * time.Second) })
	add("long time", 1, func() {
		d := time.Duration(rapid.IntRange(1, 20).Draw(w.t, "minutes")) * time.Minute
		for end := w.now.Add(d); w.now.Before(end); {
			w.wait(15 * time.Second)
		}
	})
	add("kill", 1, serving(w.kill))
	add("+start", 2, func() {
		if w.srv == nil {
			w.startServer()
		}
	})
	add("use", 2, w.useHome)
	add("sweep", 1, w.sweep)
	w.requests(add)
	w.mishaps(add)
	return a
}

// wait lets time pass. A server that is alive ticks at least every 15 s.
func (w *world) wait(d time.Duration) {
	w.now = w.now.Add(d)
	if w.srv != nil {
		w.runTick()
		w.invariants()
	}
}

func (w *world) land() {
	c := w.late[0]
	w.late = w.late[1:]
	w.logf("late: %s", c.name)
	w.landed++
	c.effect()
}

// sweep collects garbage archives and settles a live home, which restores the record
// that its volume is complete.
func (w *world) sweep() {
	r := &w.row
	if v := w.volume; v != nil && r.Home.State == workspace.HomeLive && r.Home.Claim == v.claim && v.complete {
		v.seeded = v.marker == ""
	}
	if r.DeletedAt != nil && r.Operation == workspace.OpNone && r.Home.State == workspace.HomeAbsent &&
		r.ArchiveKey != "" && !w.now.Before(r.DeletedAt.Add(w.policy.DeleteGrace)) {
		delete(w.objects, r.ArchiveKey)
		r.ArchiveKey = ""
		w.home = homeTruth{}
	}
	o := w.objects[r.ArchiveKey]
	w.intend("recheck archive", func(r workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		return lifecycle.RecheckArchive(r, now, r.ArchiveKey, o != nil && o.meta, o != nil && !o.damaged), nil
	})
	if r.Phase == workspace.PhaseError {
		return
	}
	for key := range w.objects {
		if key != r.ArchiveKey && key != keyOf(r.ArchiveOpID) && key != w.earlier() && key != w.backup {
			delete(w.objects, key)
		}
	}
}

// earlier is the archive that was current before the present one, and is kept.
func (w *world) earlier() string {
	for _, key := range slices.Backward(w.generations) {
		if key != w.row.ArchiveKey {
			return key
		}
	}
	return ""
}

func (w *world) requests(add func(string, int, func())) {
	add("+patch", 3, func() { w.patch(drawDesired(w.t), rapid.Bool().Draw(w.t, "queue")) })
	add("visit", 2, w.visit)
	add("stay", 1, w.stay)
	add("restart", 1, w.restart)
	add("image", 1, func() { w.setImage(rapid.SampledFrom([]string{"image:1", "image:2"}).Draw(w.t, "image")) })
	add("expire", 2, w.expire)
	add("cancel", 1, w.cancel)
	add("force stop", 1, w.forceStop)
	add("recover", 2, func() { w.recover(workspace.RecoverAfresh) })
	add("recover empty", 1, func() { w.recover(workspace.RecoverEmpty) })
	add("set aside", 1, func() { w.recover(workspace.RecoverSetAside) })
	add("recover archive", 1, func() { w.recoverFrom(w.earlier()) })
	add("backup", 1, w.makeBackup)
	add("restore", 2, func() { w.restoreBackup(rapid.Bool().Draw(w.t, "start")) })
	add("delete", 1, func() {
		if w.chance("really", 4) {
			w.deleteWorkspace(rapid.Bool().Draw(w.t, "queue"))
		}
	})
	add("undelete", 2, w.undelete)
}

func (w *world) mishaps(add func(string, int, func())) {
	add("engine goes", 1, func() { w.reachable = false })
	add("+engine comes", 1, w.engineComes)
	add("bucket goes", 1, func() { w.bucketUp = false })
	add("+bucket comes", 1, w.bucketComes)
	add("image goes", 1, func() { w.imageThere, w.imageBad = false, rapid.Bool().Draw(w.t, "bad") })
	add("image comes", 1, func() { w.imageBad = false })
	add("container exits", 1, func() {
		if k := w.container; k != nil && k.state == lifecycle.Running {
			_ = w.endContainer(k.id)
		}
	})
	add("container is slow", 1, func() {
		if k := w.container; k != nil {
			k.answers = false
		}
	})
	add("container taken", 1, func() { w.container = nil })
	add("volume", 1, func() { w.handsOnVolume(rapid.IntRange(0, 5).Draw(w.t, "hands")) })
	add("archive", 1, func() { w.handsOnArchive(rapid.IntRange(0, 3).Draw(w.t, "hands")) })
}

// engineComes ends an outage. One that a living server has not noticed is none.
func (w *world) engineComes() {
	if w.reachable {
		return
	}
	if w.srv != nil {
		w.runTick()
	}
	w.reachable, w.reachableAt = true, w.now
}

func (w *world) bucketComes() {
	if w.bucketUp {
		return
	}
	if w.srv != nil {
		w.runTick()
	}
	w.bucketUp, w.bucketUpAt = true, w.now
}

func (w *world) handsOnVolume(what int) {
	switch {
	case what < 2 && w.volume != nil:
		w.byHand("take the volume", func() { w.takenVolume, w.volume = w.volume, nil })
	case what < 4 && w.volume == nil && w.takenVolume != nil:
		w.byHand("put the volume back", func() { w.volume, w.takenVolume = w.takenVolume, nil })
	case what == 4 && w.container == nil:
		w.byHand("another volume by that name", func() {
			if w.volume != nil && w.volume.claim != stranger {
				w.takenVolume = w.volume
			}
			w.volume = &volume{claim: stranger}
		})
	case what == 5 && w.volume != nil && w.volume.claim == stranger:
		w.byHand("remove the stranger's volume", func() { w.volume = nil })
	}
}

func (w *world) handsOnArchive(what int) {
	key := w.row.ArchiveKey
	if earlier := w.earlier(); earlier != "" && w.chance("the earlier one", 3) {
		key = earlier
	}
	if w.backup != "" && w.chance("the backup", 3) {
		key = w.backup
	}
	o := w.objects[key]
	switch {
	case key == "":
	case what == 0 && o != nil:
		w.byHand("take the archive", func() { w.takenObject[key] = o; delete(w.objects, key) })
	case what == 1 && o != nil:
		w.byHand("damage the archive", func() { o.damaged = true })
	case what >= 2:
		w.byHand("put the archive back", func() { w.putArchiveBack(key) })
	}
}

func (w *world) putArchiveBack(key string) {
	if o := w.takenObject[key]; o != nil && w.objects[key] == nil {
		w.objects[key] = o
	}
	if o := w.objects[key]; o != nil {
		o.damaged = false
	}
}
