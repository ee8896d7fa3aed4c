package lifecycle_test

import (
	"time"

	"pgregory.net/rapid"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// server is a codehub that leads. All it knows dies with it.
type server struct {
	upSince       time.Time // zero: the engine did not answer when last asked
	bucketUpSince time.Time
	exec          *executor
	tick          *tick
	lookAgain     time.Time
}

// tick is one look, taken in stages so that everything can happen in between.
type tick struct {
	stage       int
	row         workspace.Workspace
	work        lifecycle.Work
	workOf      string
	seen        *container // as listed: a copy
	obs         lifecycle.Observation
	failed      bool
	bucketFails bool
	hands       int  // how much had been done by hand when the look began
	sawGone     bool // hands had destroyed the last copy at some time during the look
}

func (w *world) startServer() {
	w.srv = &server{upSince: w.now, bucketUpSince: w.now}
	w.logf("server starts")
}

// kill ends the server wherever it is. What it had under way at the engine
// may be done already, never be done, or be done later.
func (w *world) kill() {
	s := w.srv
	w.srv = nil
	w.logf("server killed")
	if e := s.exec; e != nil && !e.ended && w.reachable {
		c := w.next(e)
		switch {
		case c.effect == nil:
		case c.late && w.chance("late", 2):
			w.late = append(w.late, call{c.name, func() {
				// An engine makes a volume within moments: not after another
				// server has found it, had it filled, and hands have taken it.
				if c.name != "create volume" || w.row.Home.State == workspace.HomeFilling {
					_ = c.effect()
				}
			}})
		case w.chance("lands", 2):
			_ = c.effect()
		}
	}
}

// step takes the tick one stage on.
func (w *world) stepTick() {
	s := w.srv
	if s.tick == nil {
		s.tick = &tick{hands: w.hands}
	}
	k := s.tick
	k.sawGone = k.sawGone || w.home.gone
	switch k.stage {
	case 0:
		k.work, k.workOf = s.work(w.now)
	case 1:
		k.row = w.row
		if k.row.Phase == workspace.PhaseDeleted {
			s.tick = nil
			return
		}
	case 2:
		k.obs.ContainerKnown = w.observe(k, func() {
			if c := w.container; c != nil {
				copied := *c
				k.seen = &copied
				k.obs.Container = &lifecycle.Container{ID: c.id, State: c.state, Answers: c.answers, Image: c.image}
			}
		})
	case 3:
		k.obs.VolumeKnown = w.observe(k, func() {
			if v := w.volume; v != nil {
				k.obs.Volume = &lifecycle.Volume{Claim: v.claim, Seeded: v.seeded, Marker: v.marker}
			}
		})
	case 4:
		w.askBucket(k)
	case 5:
		s.tick = nil
		w.decide(k)
		return
	}
	k.stage++
}

func (w *world) runTick() {
	if w.srv.tick == nil {
		w.stepTick()
	}
	for w.srv.tick != nil {
		w.stepTick()
	}
}

func (w *world) observe(k *tick, look func()) (known bool) {
	if !w.reachable || w.lookFails() {
		k.failed = true
		return false
	}
	look()
	return true
}

func (w *world) lookFails() bool {
	return !w.calm && rapid.IntRange(0, 39).Draw(w.t, "look") >= 40-w.faults.looks
}

func (w *world) askBucket(k *tick) {
	if lifecycle.OnBucket(k.row.Operation) && !w.bucketUp {
		k.bucketFails = true // an operation on the bucket detects its outage in any case
		return
	}
	ask := func(asked bool, key string, answer *lifecycle.Archive) {
		switch {
		case !asked:
		case !w.bucketUp || w.lookFails():
			k.bucketFails = true
		default:
			*answer = w.archiveAsSeen(key)
		}
	}
	ask(lifecycle.AsksBucket(k.row), k.row.ArchiveKey, &k.obs.Archive)
	if from := lifecycle.EarlierOf(k.row); from != nil {
		ask(true, from.Key, &k.obs.Earlier)
	}
}

func (w *world) archiveAsSeen(key string) lifecycle.Archive {
	switch o := w.objects[key]; {
	case o == nil || !o.meta:
		return lifecycle.ArchiveMissing
	case o.damaged && w.chance("damage shows", 2):
		return lifecycle.ArchiveCorrupted
	}
	return lifecycle.ArchivePresent
}

// decide has the tick judged, writes, and carries out.
func (w *world) decide(k *tick) {
	s := w.srv
	if k.failed {
		s.upSince = time.Time{}
		if w.chance("tick dropped", 2) {
			return
		}
	} else if s.upSince.IsZero() {
		s.upSince = w.now
	}
	if k.bucketFails {
		s.bucketUpSince = time.Time{}
	} else if s.bucketUpSince.IsZero() {
		s.bucketUpSince = w.now
	}
	in := lifecycle.Input{
		Now: w.now, Row: k.row, Obs: k.obs, Policy: w.policy,
		UpSince: s.upSince, BucketUpSince: s.bucketUpSince, ClaimID: w.id("op"),
	}
	if !w.calm {
		in.Jitter = 0.5
	}
	if in.UpSince.IsZero() {
		in.UpSince = w.now
	}
	if in.BucketUpSince.IsZero() {
		in.BucketUpSince = w.now
	}
	if k.row.Operation != workspace.OpNone && k.workOf == k.row.OpID {
		in.Work = k.work
	}
	r := lifecycle.Judge(in)
	w.checkDecision(in, r)
	s.lookAgain = r.LookAgain
	if r.Action.Kind != lifecycle.None || r.ApplyQueued {
		w.logf("judged: kind %d %s %s %q queued %v", r.Action.Kind, r.Action.Op, r.Action.Reason, r.Action.Message, r.ApplyQueued)
	}
	now := k.row
	if w.write(k.row, r) {
		now = r.Row
		w.checkWritten(k, r)
		w.carryOut(k, r)
	}
	w.sweepJobs(now)
}

// sweepJobs ends the jobs that are not the present operation's, but for those
// that have restored a home and hold it.
func (w *world) sweepJobs(row workspace.Workspace) {
	for _, c := range w.jobsOfOthers(row.OpID) {
		j := w.job[c]
		if restored := !j.pack && j.done && j.mounted == w.volume && w.volume != nil && w.volume.marker == j.key; !restored {
			_ = w.call(w.reachable, func() error { delete(w.job, c); return nil })
		}
	}
}

func (w *world) carryOut(k *tick, r lifecycle.Result) {
	s := w.srv
	switch r.Action.Kind {
	case lifecycle.Claim, lifecycle.Run:
		if s.exec == nil || s.exec.ended || s.exec.claim != r.Row.OpID {
			w.drop()
			s.exec = &executor{claim: r.Row.OpID, row: r.Row, seen: k.seen}
		}
	case lifecycle.Complete, lifecycle.Fail, lifecycle.Cancel:
		w.drop()
	case lifecycle.SetAside:
		_ = w.call(w.reachable, func() error { return w.setAside(r.Row.Home.Claim) })
	case lifecycle.RemoveContainer:
		if k.seen == nil {
			w.failf("a container is to be removed that nobody has seen")
		}
		_ = w.call(w.reachable, func() error { _ = w.endContainer(k.seen.id); return w.removeContainer(k.seen.id) })
	}
	if r.ApplyQueued {
		w.applyQueued()
	}
}

// drop ends the executor; a call under way may still get through.
func (w *world) drop() {
	e := w.srv.exec
	w.srv.exec = nil
	if e == nil || e.ended {
		return
	}
	e.ended = true
	if c := w.next(e); c.effect != nil && w.reachable && w.chance("lands", 2) {
		_ = c.effect()
	}
}

// work is what the server knows of the operation's executor.
func (s *server) work(now time.Time) (lifecycle.Work, string) {
	e := s.exec
	if e == nil {
		return lifecycle.Work{}, ""
	}
	running := !e.ended || e.failure == nil && now.Sub(e.endedAt) < time.Second
	return lifecycle.Work{Running: running, ProgressAt: e.movedAt, Preparing: e.pulling, PreparedAt: e.pulledAt, Failure: e.failure}, e.claim
}
