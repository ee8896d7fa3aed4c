package lifecycle_test

import (
	"fmt"
	"slices"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// container is the workspace's container at the engine.
type container struct {
	id, claim string
	image     string
	state     lifecycle.ContainerState
	answers   bool
	volume    *volume
}

// volume is the workspace's volume at the engine.
type volume struct {
	claim    string
	seeded   bool
	marker   string
	content  int  // which version of the home it holds
	complete bool // the content is all there and synced
}

// object is an archive in the bucket.
type object struct {
	content int
	meta    bool
	damaged bool
}

// job is a storage job: a container of its own, that outlives the server.
type job struct {
	claim, key, volumeClaim string
	pack                    bool // else it restores
	pc                      int
	content                 int
	failure                 *lifecycle.Failure
	done                    bool
	mounted                 *volume
	movedAt                 time.Time
}

// call is one call that a killed server had under way, landing late.
type call struct {
	name   string
	effect func()
}

// homeTruth is what really became of the owner's home, whatever the row says.
type homeTruth struct {
	has    bool // there is a home to lose
	latest int  // the version that must not be lost
	// gone: hands have destroyed the last copy, which excuses what follows.
	gone bool
}

// copyExists reports whether a complete copy of the newest home is where the
// row says it is.
func (w *world) copyExists() bool {
	h := w.row.Home
	inVolume := w.volume != nil && w.volume.claim == h.Claim && w.volume.complete && w.volume.content == w.home.latest
	o := w.objects[w.row.ArchiveKey]
	inBucket := w.row.ArchiveKey != "" && o != nil && o.meta && !o.damaged && o.content == w.home.latest
	switch h.State {
	case workspace.HomeLive:
		return inVolume
	case workspace.HomeArchived:
		return inBucket || inVolume && (w.volume.seeded || w.volume.marker != "")
	}
	return inBucket
}

// damaged: an archive can be damaged without a look at its .meta telling.
func (w *world) damaged(key string) bool {
	o := w.objects[key]
	return o != nil && o.damaged
}

// byHand is a step that no program is to blame for.
func (w *world) byHand(what string, f func()) {
	w.logf("by hand: %s", what)
	w.hands++
	f()
	w.home.gone = w.home.has && !w.copyExists()
}

func (w *world) jobsOfOthers(claim string) []string {
	var out []string
	for c := range w.job {
		if c != claim {
			out = append(out, c)
		}
	}
	slices.Sort(out)
	return out
}

// wipe empties a volume that is about to be filled: never one that codehub did
// not create, and never a live home. A job of an earlier attempt, such as a cancelled
// restore, may still write to a volume whose content is in the bucket.
func (w *world) wipe(v *volume, who string) {
	h := w.row.Home
	goes := (h.State == workspace.HomeDiscarding || h.State == workspace.HomeDeleting) && (w.home.gone || !w.home.has || w.copyExists())
	if v.claim == stranger || v.claim == h.Claim && h.State != workspace.HomeFilling && !goes && w.row.DeletedAt == nil {
		w.failf("%s wipes a volume of claim %s", who, v.claim)
	}
	v.content, v.complete, v.marker, v.seeded = 0, false, "", false
}

// stranger is the claim of a volume that codehub did not make.
const stranger = "stranger"

// setAside keeps what is in the way of the home with the claim: nothing is lost
// by it but the name.
func (w *world) setAside(claim string) error {
	v := w.volume
	if v == nil || v.claim == claim || w.container != nil && w.container.volume == v {
		return nil
	}
	if w.row.Home.Claim == v.claim && w.row.Home.State == workspace.HomeLive {
		w.failf("a live home is set aside")
	}
	w.logf("volume of claim %s set aside", v.claim)
	w.volume = nil
	return nil
}

// takeApart is one step of the removal of the volume, if that carries the claim
// of e's home. It fails while something has the volume mounted.
func (w *world) takeApart(e *executor, step func(v *volume)) error {
	v := w.volume
	if v == nil {
		return nil
	}
	if v.claim != e.row.Home.Claim {
		return fmt.Errorf("the volume is of claim %q", v.claim)
	}
	if w.container != nil && w.container.volume == v {
		return fmt.Errorf("the volume is in use by container %s", w.container.id)
	}
	for _, j := range w.job {
		if !j.done && j.failure == nil {
			return fmt.Errorf("the volume is in use by job %s", j.claim)
		}
	}
	step(v)
	if w.home.has && !w.home.gone && !w.copyExists() {
		if w.hands == e.hands && !w.damaged(w.row.ArchiveKey) {
			w.failf("the volume is removed without a copy")
		}
		w.home.gone = true // the archive was taken after it was looked at, or damaged where no look tells
	}
	return nil
}

// mayRemove: only the volume of a home whose state allows its removal. A volume that no
// row names is an orphan. One that a removal had emptied, and that was then taken away and
// put back by hand, may be removed by a delayed call.
func (w *world) mayRemove(v *volume) {
	h := w.row.Home
	if v.claim == h.Claim && h.State == workspace.HomeAbsent && !v.complete && v.content == 0 {
		return
	}
	if v.claim == stranger || v.claim == h.Claim && !h.State.Removable() && h.State != workspace.HomeDeleting {
		w.failf("the volume of claim %s is removed", v.claim)
	}
}

func (w *world) startContainer(id string) error {
	k := w.container
	switch {
	case k == nil || k.id != id:
		return fmt.Errorf("no container %s", id)
	case k.state == lifecycle.Created:
		k.state = lifecycle.Running
		w.logf("container %s started", id)
	}
	return nil
}

func (w *world) endContainer(id string) error {
	if k := w.container; k != nil && k.id == id {
		k.state, k.answers = lifecycle.Exited, false
		w.logf("container %s ended", id)
	}
	return nil
}

func (w *world) removeContainer(id string) error {
	if k := w.container; k != nil && k.id == id {
		w.container = nil
		w.logf("container %s removed", id)
	}
	return nil
}

// stepContainer: what runs answers after a while.
func (w *world) stepContainer() {
	if k := w.container; k != nil && k.state == lifecycle.Running && !k.answers {
		k.answers = true
	}
}

func (w *world) stepJobs() {
	for _, c := range w.jobsOfOthers("") {
		w.stepJob(w.job[c])
	}
}

// stepJob takes a storage job one step on. Jobs are no part of the server.
func (w *world) stepJob(j *job) {
	if j.done || j.failure != nil {
		return
	}
	fail := func(reason workspace.ErrorReason) {
		j.failure = &lifecycle.Failure{Reason: reason, Message: "job: " + string(reason)}
		w.logf("job %s failed: %s", j.claim, reason)
	}
	switch w.outcome() {
	case refused, lost:
		fail(workspace.ErrActionFailed)
		return
	case unreachable, unanswered:
		return // hangs for now
	}
	if !w.bucketUp {
		return
	}
	j.movedAt = w.now
	if j.pack {
		w.stepPack(j, fail)
	} else {
		w.stepUnpack(j, fail)
	}
}

// mounted reports whether the job still works on the volume that it found by
// its claim when it began.
func (w *world) mounted(j *job) bool {
	if j.mounted == nil && w.volume != nil && w.volume.claim == j.volumeClaim {
		j.mounted = w.volume
	}
	return j.mounted != nil && j.mounted == w.volume
}

func (w *world) stepPack(j *job, fail func(workspace.ErrorReason)) {
	switch j.pc {
	case 0:
		if !w.mounted(j) {
			fail(workspace.ErrActionFailed)
			return
		}
		if !w.volume.complete {
			w.failf("a home that is not complete is packed")
		}
		j.content = w.volume.content
	case 1:
		w.objects[j.key] = &object{content: j.content}
	case 2:
		if w.objects[j.key] == nil {
			fail(workspace.ErrActionFailed)
			return
		}
		w.objects[j.key].meta = true
		j.done = true
	}
	j.pc++
}

func (w *world) stepUnpack(j *job, fail func(workspace.ErrorReason)) {
	if !w.mounted(j) {
		fail(workspace.ErrActionFailed)
		return
	}
	switch j.pc {
	case 0, 1: // unpacked next to the home, verified
		switch o := w.objects[j.key]; {
		case o == nil || !o.meta:
			fail(workspace.ErrDataLost)
			return
		case o.damaged:
			fail(workspace.ErrArchiveCorrupted)
			return
		default:
			j.content = o.content
		}
	case 2:
		w.wipe(w.volume, "a restore job")
	case 3:
		w.volume.content, w.volume.complete = j.content, true
		j.done = true
		w.logf("job %s restored %d", j.claim, j.content)
	}
	j.pc++
}
