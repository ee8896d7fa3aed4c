package reconcile

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"codehub/internal/archive"
	"codehub/internal/lifecycle"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// term is one term of leadership: what is known of the running operations
// lives and dies with it.
type term struct {
	*Controller
	ctx     context.Context // of the term
	rows    Rows
	upSince time.Time // since when the backend has answered without a break; zero: it does not

	group sync.WaitGroup // executors, probes, removals

	mu        sync.Mutex
	works     map[workspace.ID]*work
	leaving   map[workspace.ID]chan struct{} // executors told to end: the next one waits for them
	answered  map[string]time.Time           // container ids that have answered on /healthz, and when
	busy      map[string]bool                // side effects under way, by what they work on
	settled   map[workspace.ID]settlement
	endings   map[string]time.Time // jobs that nobody needs, by their backend ids: not removed again before
	full      string               // which disk is too full to start anything; empty: none is
	noSpace   bool                 // some work waits for space
	disksSeen bool
	crashes   crashes
	orphans   orphans
	asides    asides
	hands     chan struct{} // for chores, so that they never ask for everybody at once
	bucket    *bucket

	// The tick alone uses these.
	began       time.Time // of the present tick
	removable   bool      // whether anything could be removed for good before the tick read the rows
	clock       postgres.Clock
	watch       postgres.ClockWatch
	waits       bool      // the waits are to be restarted before anything is judged
	prepared    time.Time // when the surroundings of the containers were last checked
	weighed     time.Time // when the disks were
	roll        roll
	saidStrange string
	refused     map[workspace.ID]string // what the database said of rows that it does not take
	saidSkipped string
	saidDown    time.Time
	saidGone    bool
}

// chores is how many small things are done at once beside the operations.
const chores = 8

// work is the executor of one claim.
type work struct {
	opID   string
	lane   lane
	cancel context.CancelFunc
	done   chan struct{} // closed when the executor has returned
	began  time.Time

	mu       sync.Mutex
	ended    time.Time // zero: at work
	again    time.Time // once it has ended: not run again before
	refusals int       // by the bucket, or for want of space, one after the other
	noSpace  bool      // the last attempt ended for want of space
	busy     int       // attempts, one after the other, that ended with runtime.ErrBusy
	changes  int       // how often the home had changed since it was packed
	failure  *lifecycle.Failure
	waits    *lifecycle.Failure // why the last attempt ended, until this one gets further
	waitedAt map[string]bool    // the steps that the last attempt took
	steps    map[string]bool    // the steps that this one has taken
	progress runtime.Progress
	meter    meter
	reached  map[string]sample // how far each step has ever been
	movedAt  time.Time         // when one was last further than ever
	moving   bool              // one was, other than a pull
	pulling  bool
	pulledAt time.Time
}

const (
	// rerun is how long an executor that ended without its operation being
	// complete is left alone before it is run again; one that the bucket has
	// refused, or that found no space, ever longer, up to refused.
	rerun   = time.Second
	refused = 5 * time.Minute
	// busyMost bounds the pause after a refusal that passes by itself. What ends
	// it is outside of codehub, and tells nobody.
	busyMost = 30 * time.Second
	// maxChanges is how often a home is packed that changes each time.
	maxChanges = 3
)

// newWork is the work of an executor that begins; before is that of the same
// claim that has ended, if there was one: what is run again goes on with its
// time, and gets none for doing again what was done before.
func newWork(row workspace.Workspace, cancel context.CancelFunc, before *work) *work {
	now := time.Now()
	w := &work{
		opID: row.OpID, lane: laneOf(row.Operation), cancel: cancel, done: make(chan struct{}), began: now, movedAt: now,
		reached: map[string]sample{}, steps: map[string]bool{},
	}
	if before == nil {
		return w
	}
	before.mu.Lock()
	defer before.mu.Unlock()
	w.refusals, w.noSpace, w.progress, w.meter = before.refusals, before.noSpace, before.progress, before.meter
	w.reached, w.movedAt, w.moving, w.pulledAt = before.reached, before.movedAt, before.moving, before.pulledAt
	w.busy, w.changes, w.waits, w.waitedAt = before.busy, before.changes, before.waits, before.waitedAt
	return w
}

// step records progress; it is what executors hand to the runtime.
func (w *work) step(p runtime.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if r := w.reached[p.Step]; p.Done > r.done || p.Entries > r.entries {
		w.reached[p.Step] = sample{done: max(p.Done, r.done), entries: max(p.Entries, r.entries)}
		w.movedAt = now
		w.moving = w.moving || p.Step != runtime.StepPulling
	}
	pulling := p.Step == runtime.StepPulling
	if w.pulling && !pulling {
		w.pulledAt = now
	}
	w.pulling = pulling
	w.steps[p.Step] = true
	if w.waits != nil {
		if w.waitedAt[p.Step] {
			return // the attempt that was refused was here, too
		}
		w.waits, w.movedAt = nil, now
	}
	w.progress = p
	w.meter.note(now, p)
}

// afresh is told that another job begins: what it moves was not moved before.
func (w *work) afresh() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reached = map[string]sample{}
}

// end records what the executor has ended with. Time in which the bucket
// refused, or there was no space, is nobody's, nor is that in which what was
// broken off is done again.
func (w *work) end(err error) *lifecycle.Failure {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.ended, w.failure, w.pulling, w.again = now, failure(err), false, now.Add(rerun)
	if w.failure != nil && w.failure.Passing {
		return w.endBusy(err, now)
	}
	if w.waits != nil {
		w.waits, w.movedAt = nil, now
	}
	w.busy = 0
	w.refusals++
	bucket := errors.Is(err, archive.ErrUnavailable)
	w.noSpace = !bucket && lacksSpace(err)
	if !bucket && !w.noSpace {
		w.refusals = 0
		return w.failure
	}
	w.movedAt, w.reached = now, map[string]sample{}
	w.again = now.Add(min(rerun<<min(w.refusals-1, 16), refused))
	if bucket {
		w.progress = runtime.Progress{Step: runtime.StepWaitingBucket}
		w.meter.note(now, w.progress)
	} else {
		w.pulledAt = w.again // its time counts from the next try
	}
	return w.failure
}

// endBusy records a failure that passes by itself. It is w's lock holder that
// calls it.
func (w *work) endBusy(err error, now time.Time) *lifecycle.Failure {
	w.refusals, w.noSpace = 0, false
	w.busy++
	w.again = now.Add(min(rerun<<min(w.busy-1, 16), busyMost))
	if errors.Is(err, errHomeChanged) {
		w.waits = nil
		if w.changes++; w.changes >= maxChanges {
			w.failure.Passing = false
		}
		return w.failure
	}
	w.waits, w.waitedAt = w.failure, w.steps
	w.progress = runtime.Progress{Step: runtime.StepWaitingBackend, Detail: shortened(err.Error())}
	var busy *runtime.BusyError
	if errors.As(err, &busy) {
		w.progress.Detail = shortened(busy.Reason)
		if busy.Container != "" {
			w.progress = runtime.Progress{Step: runtime.StepWaitingInUse, Detail: shortened(busy.Container)}
		}
	}
	w.meter.note(now, w.progress)
	return w.failure
}

// shortened is text that is shown beside other things.
func shortened(text string) string {
	const most = 200
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// waitsFor is why the last attempt was refused, if this one waits for the same.
func (w *work) waitsFor() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waits == nil {
		return ""
	}
	return w.waits.Message
}

// lacksSpace reports whether the work waits for space, or tries again.
func (w *work) lacksSpace() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.noSpace
}

// resume has what was refused tried again now.
func (w *work) resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refusals > 0 {
		w.refusals, w.again = 0, time.Time{}
	}
}

// snapshot is the work as lifecycle.Judge takes it, with its progress for people.
func (w *work) snapshot(now time.Time) (lifecycle.Work, *workspace.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	failure := w.failure
	if w.ended.IsZero() {
		failure = w.waits
	}
	waits := failure == nil || failure.Reason == workspace.ErrUnreachable || failure.Passing
	running := w.ended.IsZero() || waits && now.Before(w.again)
	j := lifecycle.Work{Running: running, Failure: failure, ProgressAt: w.movedAt, Moving: w.moving, Pulling: w.pulling, PulledAt: w.pulledAt}
	if w.progress.Step == "" {
		return j, nil
	}
	return j, w.meter.shown(now, w.progress)
}

// occupies reports whether the work is one of those that may be at once. What
// waits for an image, or for something that passes by itself, is not; an archive that the bucket has refused still is:
// others would fare no better, and all would be tried again together.
func (w *work) occupies() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended.IsZero() && !w.pulling || w.lane == archiving && w.refusals > 0
}

func (w *work) endedAt() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

// over reports whether the executor has ended.
func (w *work) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.ended.IsZero()
}

// view is a work frozen before an observation was begun.
type view struct {
	opID     string
	work     lifecycle.Work
	progress *workspace.Progress
	ended    time.Time // zero: the executor is at work
}

func (t *term) views(now time.Time) map[workspace.ID]view {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[workspace.ID]view, len(t.works))
	for id, w := range t.works {
		j, p := w.snapshot(now)
		out[id] = view{opID: w.opID, work: j, progress: p, ended: w.endedAt()}
	}
	return out
}

// operating reports whether any executor is at work or was until a moment ago.
func (t *term) operating() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.works) > 0
}

// lane is what an operation waits in line with. What takes as long as a home
// is large must not keep a start waiting, nor a restore somebody waits for.
type lane int

const (
	short lane = iota
	archiving
	restoring
)

func laneOf(op workspace.Operation) lane {
	switch op {
	case workspace.OpArchiving:
		return archiving
	case workspace.OpRestoring:
		return restoring
	}
	return short
}

// free is how many more operations of each lane may be claimed now.
func (t *term) free() map[lane]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := map[lane]int{short: t.cfg.MaxOperations, archiving: t.cfg.MaxJobs, restoring: t.cfg.MaxJobs}
	for _, w := range t.works {
		if w.occupies() {
			n[w.lane]--
		}
	}
	return n
}

// drop ends the work on id, unless it is another claim's.
func (t *term) drop(id workspace.ID, opID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.works[id]; w != nil && w.opID == opID {
		w.cancel()
		delete(t.works, id)
		t.leaving[id] = w.done
	}
}

// letEnd has the work on id come to its end by itself: the home is gone as soon
// as its volume is, and what tells of the home goes after that.
func (t *term) letEnd(id workspace.ID, opID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.works[id]; w != nil && w.opID == opID {
		delete(t.works, id)
		t.leaving[id] = w.done
	}
}

// execute runs the executor of row's claim, after the one before it on the
// same workspace has ended. Nothing happens if one of this claim is at work.
func (t *term) execute(ctx context.Context, row workspace.Workspace, seen *runtime.Container) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var earlier *work
	if w := t.works[row.ID]; w != nil {
		switch {
		case w.opID == row.OpID && !w.over():
			return
		case w.opID == row.OpID:
			earlier = w
		}
		w.cancel()
		t.leaving[row.ID] = w.done
	}
	ctx, cancel := context.WithCancel(ctx)
	w := newWork(row, cancel, earlier)
	t.works[row.ID] = w
	before := t.leaving[row.ID]
	delete(t.leaving, row.ID)
	t.group.Go(func() {
		defer close(w.done)
		defer cancel()
		if before != nil {
			<-before // its context has ended: one operation at a time (design §3.4)
		}
		err := t.perform(ctx, row, seen, w)
		if ctx.Err() != nil {
			return
		}
		waited := w.waitsFor()
		t.logEnd(row, w.end(err), waited, err)
		if errors.Is(err, archive.ErrUnavailable) {
			t.bucket.doubt()
		}
		t.Wake()
	})
}

// logEnd logs what an executor has ended with. What is waited for is logged once.
func (t *term) logEnd(row workspace.Workspace, f *lifecycle.Failure, waited string, err error) {
	log := t.cfg.Log.With("workspace", row.ID, "operation", row.Operation)
	switch {
	case f == nil:
	case f.Passing && f.Message == waited:
		log.Debug("operation still waiting", "err", f.Message)
	case f.Passing && !errors.Is(err, errHomeChanged):
		log.Info("operation waiting", "err", f.Message)
	case f.Passing:
		log.Warn("home changed while packing; packing again", "err", f.Message)
	default:
		log.Warn("operation failed", "reason", f.Reason, "err", f.Message)
	}
}

// effect runs f beside the tick, one at a time for each key, and bounded in
// time; if hands are given, once one of them is free. If f reports that
// something changed, everything is looked at again at once.
func (t *term) effect(ctx context.Context, key string, hands chan struct{}, f func(ctx context.Context) (changed bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy[key] {
		return
	}
	t.busy[key] = true
	t.group.Go(func() {
		changed := t.do(ctx, hands, f)
		t.mu.Lock()
		delete(t.busy, key)
		t.mu.Unlock()
		if changed {
			t.Wake()
		}
	})
}

func (t *term) do(ctx context.Context, hands chan struct{}, f func(ctx context.Context) bool) bool {
	if hands != nil {
		select {
		case hands <- struct{}{}:
			defer func() { <-hands }()
		case <-ctx.Done():
			return false
		}
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.ChoreWithin)
	defer cancel()
	return f(ctx)
}

func (t *term) wait() { t.group.Wait() }
