package lifecycle_test

import (
	"errors"
	"fmt"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// executor carries out one claim, one call to a backend after the other.
type executor struct {
	claim    string
	row      workspace.Workspace // as claimed
	seen     *container          // as observed when the claim was made
	hands    int                 // how much had been done by hand when it looked at the archive
	pc       int
	ended    bool
	endedAt  time.Time
	failure  *lifecycle.Failure
	movedAt  time.Time // of what moves bytes alone: a step that is repeated for ever is no progress
	pulling  bool
	pulledAt time.Time
}

// pending is the next call of an executor. Without an effect there is none:
// it waits, or is at its end.
type pending struct {
	name   string
	late   bool // at a crash the engine may carry it out later
	bucket bool
	effect func() error
	ended  bool
	fails  *lifecycle.Failure
}

func (w *world) stepExecutor() {
	e := w.srv.exec
	if e == nil || e.ended {
		return
	}
	c := w.next(e)
	switch {
	case c.fails != nil || c.ended:
		e.ended, e.endedAt, e.failure = true, w.now, c.fails
	case c.effect == nil:
	default:
		up := w.reachable
		if c.bucket {
			up = w.bucketUp
		}
		err := w.call(up, c.effect)
		w.logf("%s: %s: %v", e.row.Operation, c.name, err)
		if err != nil {
			e.ended, e.endedAt, e.failure = true, w.now, failure(err)
			return
		}
		e.pc++
	}
}

var errPull = errors.New("pull access denied")

func failure(err error) *lifecycle.Failure {
	reason := workspace.ErrActionFailed
	switch {
	case errors.Is(err, errUnreachable):
		return &lifecycle.Failure{Outage: true, Message: err.Error()}
	case errors.Is(err, errPull):
		reason = workspace.ErrImagePullFailed
	}
	return &lifecycle.Failure{Reason: reason, Message: err.Error()}
}

// next is what the executor does next.
func (w *world) next(e *executor) pending {
	var steps []func(*executor) pending
	switch e.row.Operation {
	case workspace.OpProvisioning:
		steps = []func(*executor) pending{w.endJobs, w.pull, w.createVolume, w.wipeVolume, w.seedVolume, w.markSeeded}
	case workspace.OpStarting:
		steps = []func(*executor) pending{w.endStale, w.removeStale, w.pull, w.createContainer, w.start, w.await}
	case workspace.OpStopping:
		steps = []func(*executor) pending{w.endSeen, w.removeSeen}
	case workspace.OpDeleting:
		steps = []func(*executor) pending{w.endJobs, w.endSeen, w.removeSeen}
		if e.row.Home.State == workspace.HomeDeleting {
			steps = append(steps, w.unmarkVolume, w.emptyVolume, w.dropVolume)
		}
	case workspace.OpRestoring:
		steps = []func(*executor) pending{w.endJobs, w.createVolume, w.startRestore, w.awaitJob, w.markRestored}
	case workspace.OpArchiving:
		steps = []func(*executor) pending{w.endJobs, w.startPack, w.awaitJob, w.verify, w.commit, w.removeJob, w.lookFirst, w.unmarkVolume, w.emptyVolume, w.dropVolume}
		if e.row.Home.State.Removable() {
			steps = []func(*executor) pending{w.endJobs, w.lookFirst, w.unmarkVolume, w.emptyVolume, w.dropVolume}
		}
	case workspace.OpCreateEmptyArchive:
		steps = []func(*executor) pending{w.endJobs, w.putEmpty, w.verify, w.commit}
	}
	if e.pc >= len(steps) {
		return pending{ended: true}
	}
	return steps[e.pc](e)
}

var nothing = func() error { return nil }

func (w *world) endJobs(e *executor) pending {
	return pending{name: "end other jobs", effect: func() error {
		for _, c := range w.jobsOfOthers(e.claim) {
			delete(w.job, c)
		}
		return nil
	}}
}

func (w *world) pull(e *executor) pending {
	if w.imageThere {
		if e.pulling {
			e.pulling, e.pulledAt = false, w.now
		}
		return pending{name: "image is there", effect: nothing}
	}
	if !e.pulling {
		e.pulling, e.movedAt = true, w.now
	}
	return pending{name: "pull", effect: func() error {
		if w.imageBad {
			return errPull
		}
		w.imageThere, e.pulling, e.pulledAt = true, false, w.now
		return nil
	}}
}

func (w *world) ownVolume(e *executor) error {
	if w.volume == nil || w.volume.claim != e.row.Home.Claim {
		return fmt.Errorf("the volume is not that of claim %s", e.row.Home.Claim)
	}
	return nil
}

func (w *world) createVolume(e *executor) pending {
	return pending{name: "create volume", late: true, effect: func() error {
		if w.volume == nil {
			delete(w.job, e.claim) // what it did was done to another one
			w.volume = &volume{claim: e.row.Home.Claim}
		}
		return w.ownVolume(e)
	}}
}

func (w *world) wipeVolume(e *executor) pending {
	if w.ownVolume(e) == nil && w.volume.seeded {
		return pending{ended: true}
	}
	return pending{name: "wipe volume", effect: func() error {
		if err := w.ownVolume(e); err != nil {
			return err
		}
		if !w.volume.seeded {
			w.wipe(w.volume, "PROVISIONING")
		}
		return nil
	}}
}

func (w *world) seedVolume(e *executor) pending {
	return pending{name: "seed volume", effect: func() error {
		if err := w.ownVolume(e); err != nil {
			return err
		}
		w.serial++
		w.volume.content, w.volume.complete = w.serial, true
		return nil
	}}
}

func (w *world) markSeeded(e *executor) pending {
	return pending{name: "mark volume seeded", effect: func() error {
		if err := w.ownVolume(e); err != nil {
			return err
		}
		w.volume.seeded = true
		return nil
	}}
}

// The removal of a volume: what marks it as complete goes first, so that what
// is half removed is never taken for a home.
func (w *world) unmarkVolume(e *executor) pending {
	return pending{name: "unmark volume", late: true, effect: func() error {
		return w.takeApart(e, func(v *volume) { v.seeded, v.marker = false, "" })
	}}
}

func (w *world) emptyVolume(e *executor) pending {
	return pending{name: "empty volume", late: true, effect: func() error {
		return w.takeApart(e, func(v *volume) {
			w.mayRemove(v)
			v.content, v.complete = 0, false
		})
	}}
}

func (w *world) dropVolume(e *executor) pending {
	return pending{name: "remove volume", late: true, effect: func() error {
		return w.takeApart(e, func(v *volume) {
			w.mayRemove(v)
			for c, j := range w.job {
				if j.mounted == v {
					delete(w.job, c)
				}
			}
			w.volume = nil
			w.logf("volume removed")
		})
	}}
}

func (w *world) endContainerOf(k *container) pending {
	if k == nil {
		return pending{name: "no container to end", effect: nothing}
	}
	return pending{name: "end container", late: true, effect: func() error { return w.endContainer(k.id) }}
}

func (w *world) removeContainerOf(k *container) pending {
	if k == nil {
		return pending{name: "no container to remove", effect: nothing}
	}
	return pending{name: "remove container", late: true, effect: func() error { return w.removeContainer(k.id) }}
}

func (w *world) endSeen(e *executor) pending    { return w.endContainerOf(e.seen) }
func (w *world) removeSeen(e *executor) pending { return w.removeContainerOf(e.seen) }

// stale is an earlier container that a start has to remove first.
func (e *executor) stale() *container {
	if k := e.seen; k != nil && (k.state == lifecycle.Exited || k.claim != e.claim) {
		return k
	}
	return nil
}

func (w *world) endStale(e *executor) pending    { return w.endContainerOf(e.stale()) }
func (w *world) removeStale(e *executor) pending { return w.removeContainerOf(e.stale()) }

func (w *world) createContainer(e *executor) pending {
	return pending{name: "create container", late: true, effect: func() error {
		switch k := w.container; {
		case k != nil && (k.claim != e.claim || k.state == lifecycle.Exited):
			return fmt.Errorf("container %s has the name", k.id)
		case k != nil:
			return nil
		}
		if err := w.ownVolume(e); err != nil {
			return err
		}
		w.container = &container{id: w.id("c"), claim: e.claim, image: w.row.ImageRef, state: lifecycle.Created, volume: w.volume}
		w.logf("container %s created", w.container.id)
		return nil
	}}
}

func (w *world) start(e *executor) pending {
	k := w.container
	if k == nil || k.claim != e.claim {
		return pending{fails: &lifecycle.Failure{Reason: workspace.ErrActionFailed, Message: "the container is gone"}}
	}
	return pending{name: "start container", late: true, effect: func() error {
		if w.srv != nil && w.srv.exec == e {
			w.mayStart(e)
		}
		return w.startContainer(k.id)
	}}
}

func (w *world) await(e *executor) pending {
	switch k := w.container; {
	case k == nil || k.claim != e.claim || k.state == lifecycle.Exited:
		return pending{fails: &lifecycle.Failure{Reason: workspace.ErrActionFailed, Message: "the container ended"}}
	case k.answers:
		return pending{ended: true}
	}
	return pending{}
}

func (w *world) startRestore(e *executor) pending {
	if w.ownVolume(e) == nil && w.volume.marker == e.row.ArchiveKey {
		return pending{ended: true}
	}
	return pending{name: "start restore job", effect: func() error {
		w.attach(&job{claim: e.claim, key: e.row.ArchiveKey, volumeClaim: e.row.Home.Claim})
		return nil
	}}
}

func (w *world) startPack(e *executor) pending {
	return pending{name: "start archive job", effect: func() error {
		w.attach(&job{claim: e.claim, key: keyOf(e.claim), volumeClaim: e.row.Home.Claim, pack: true})
		return nil
	}}
}

// emptyHome is what every archive of no home holds.
const emptyHome = -1

// putEmpty: there is no home that a job would be needed for.
func (w *world) putEmpty(e *executor) pending {
	if e.row.ArchiveKey == keyOf(e.claim) {
		return pending{ended: true}
	}
	return pending{name: "store an empty archive", bucket: true, late: true, effect: func() error {
		w.objects[keyOf(e.claim)] = &object{content: emptyHome, meta: true}
		return nil
	}}
}

func (w *world) markRestored(e *executor) pending {
	return pending{name: "mark volume restored", effect: func() error {
		if err := w.ownVolume(e); err != nil {
			return err
		}
		w.volume.marker, w.volume.seeded = e.row.ArchiveKey, false
		return nil
	}}
}

func (w *world) removeJob(e *executor) pending {
	return pending{name: "remove job", effect: func() error { delete(w.job, e.claim); return nil }}
}

// lookFirst: a volume is not removed on the word of an earlier look.
func (w *world) lookFirst(e *executor) pending {
	key := e.row.ArchiveKey
	if !e.row.Home.State.Removable() {
		key = keyOf(e.claim)
	}
	if key == "" {
		return pending{name: "nothing to look at", effect: nothing}
	}
	return pending{name: "look at the archive", bucket: true, effect: func() error {
		if o := w.objects[key]; o == nil || !o.meta {
			return errors.New("the archive is not there")
		}
		e.hands = w.hands
		return nil
	}}
}

// attach starts a job, or goes on with the one this claim has.
func (w *world) attach(j *job) {
	if w.job[j.claim] == nil {
		j.movedAt = w.now
		w.job[j.claim] = j
	}
}

func keyOf(claim string) string { return "archives/" + claim }

func (w *world) awaitJob(e *executor) pending {
	j := w.job[e.claim]
	switch {
	case j == nil:
		return pending{fails: &lifecycle.Failure{Reason: workspace.ErrActionFailed, Message: "the job is gone"}}
	case j.failure != nil:
		return pending{fails: j.failure}
	case !j.done:
		e.movedAt = j.movedAt
		return pending{}
	}
	return pending{name: "collect job", effect: nothing}
}

func (w *world) verify(e *executor) pending {
	return pending{name: "read archive back", bucket: true, effect: func() error {
		if o := w.objects[keyOf(e.claim)]; o == nil || !o.meta || o.damaged {
			return errors.New("the archive is not what was packed")
		}
		return nil
	}}
}

// commit stores the key, in one transaction that checks again that no request for the
// workspace has arrived.
func (w *world) commit(e *executor) pending {
	r := &w.row
	if r.Operation != e.row.Operation || r.OpID != e.claim {
		return pending{ended: true}
	}
	if r.Operation == workspace.OpArchiving &&
		(r.Home.State != workspace.HomeLive || r.DesiredState != workspace.DesiredArchived || r.DeletedAt != nil || r.CancelRequestedAt != nil ||
			r.NextDesired == workspace.DesiredRunning || r.NextDesired == workspace.DesiredStandby || r.NextDesired == workspace.DesiredDeleted ||
			r.Conditions.HasContainer()) {
		return pending{ended: true}
	}
	return pending{name: "store archive_key", effect: func() error {
		if r.Operation != e.row.Operation || r.OpID != e.claim {
			return errors.New("the claim is over")
		}
		r.ArchiveKey = keyOf(e.claim)
		w.generations = append(w.generations, r.ArchiveKey)
		if r.Operation == workspace.OpArchiving {
			r.Home.State = workspace.HomeArchived
			return nil
		}
		if o := w.objects[r.ArchiveKey]; o != nil {
			w.home = homeTruth{has: true, latest: o.content}
		}
		return nil
	}}
}
