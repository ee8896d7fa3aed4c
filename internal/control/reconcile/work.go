package reconcile

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// term holds the state of one term of leadership, including its running operations.
type term struct {
	*Controller
	ctx     context.Context // of the term
	rows    Rows
	upSince time.Time // since when the runtime has responded without interruption; zero: it does not
	hasRead bool      // the rows have been read in this term

	group sync.WaitGroup // executors, lookups and side tasks

	mu             sync.Mutex
	works          map[workspace.ID]*work
	stopping       map[workspace.ID]chan struct{} // executors that were cancelled: the workspace's next one waits for them
	answered       map[string]time.Time           // container IDs that have responded on /healthz, and when
	busy           map[string]bool                // running side tasks by what they work on
	settled        map[workspace.ID]settlement
	jobRetryAt     map[string]time.Time // orphaned jobs by runtime ID: when to try their removal again
	fullDiskDetail string               // the disk that is too full to start anything; empty: none
	disksSeen      bool
	crashes        crashes
	orphans        orphans
	asides         asides
	sideTasks      chan struct{} // limits concurrent side tasks
	queuedStates   chan struct{} // limits how many queued states are applied at once
	bucket         *bucket
	newest         newestImages

	// Only the tick uses these.
	tickBegan      time.Time // start of the current tick
	judgedAt       time.Time // when the current tick began to judge; zero: it has not
	lastJudged     time.Time // judgedAt of the previous tick
	removable      bool      // MayRemove as of before the tick read the rows
	clock          postgres.Clock
	watch          postgres.ClockWatch
	waits          bool      // the delays are to restart before anything is judged
	preparedAt     time.Time // last check of the network isolation
	disksCheckedAt time.Time // last check of the disks
	inventory      inventory
	waitingSince   map[workspace.ID]time.Time         // when a tick first refused the workspace a slot
	refusedRows    map[workspace.ID]*health.Condition // rows that the database refuses
}

const (
	// maxSideTasks limits concurrent side tasks, such as probes and removals.
	maxSideTasks = 8
	// maxQueuedStates limits how many queued states are applied at once. They need the
	// database alone and must not wait for side tasks, which wait for the runtime.
	maxQueuedStates = 8
)

// work is the executor of one claim.
type work struct {
	opID   string
	lane   lane
	owner  string // of the workspace
	cancel context.CancelFunc
	done   chan struct{} // closed when the executor has returned
	began  time.Time

	backoff time.Duration // the first pause after a failure that does not count: retryMin, except in tests

	mu          sync.Mutex
	ended       time.Time // zero: still running
	retryAt     time.Time // earliest next run once it has ended
	refusals    int       // consecutive failures because of the bucket or disk space
	noSpace     bool      // the last attempt ran out of disk space
	room        *noRoom   // the archive did not fit on its disk; nil: it did, or that is not known
	busy        int       // consecutive attempts that ended with runtime.ErrBusy
	changes     int       // how often the home changed after it was packed
	failure     *lifecycle.Failure
	waitingFor  *lifecycle.Failure // why the last attempt ended, until this one gets further
	waitedSteps map[string]bool    // the steps of the last attempt
	steps       map[string]bool    // the steps of this attempt
	progress    runtime.Progress
	history     []workspace.ProgressStep // the steps of all attempts, the current one last
	meter       meter
	reached     map[string]sample // the furthest progress of each step
	movedAt     time.Time         // when any step last exceeded its furthest progress
	moving      bool              // a step that is not a preparation has exceeded it
	preparing   bool              // see lifecycle.Work
	preparedAt  time.Time
	pulling     bool // it pulls an image or waits for one
	outside     bool // it waits for the cluster
}

const (
	// retryMin is the pause before an executor runs again that ended before its
	// operation was complete. After failures because of the bucket or disk space
	// the pause doubles up to retryMax.
	retryMin = time.Second
	retryMax = 5 * time.Minute
	// busyRetryMax limits the pause after a transient failure such as
	// runtime.ErrBusy, because no event reports its end.
	busyRetryMax = 30 * time.Second
	// maxChanges is how often a home is packed again that changes while it is
	// packed.
	maxChanges = 3
)

// newWork returns the state of a new executor. before is the ended executor of the
// same claim, or nil. Its deadline and furthest progress carry over: repeating
// finished work does not extend the deadline.
func newWork(row workspace.Workspace, cancel context.CancelFunc, before *work) *work {
	now := time.Now()
	w := &work{
		opID: row.OpID, lane: laneOf(row), owner: row.OwnerID, cancel: cancel, done: make(chan struct{}), began: now, movedAt: now, backoff: retryMin,
		reached: map[string]sample{}, steps: map[string]bool{},
	}
	if before == nil {
		return w
	}
	before.mu.Lock()
	defer before.mu.Unlock()
	w.refusals, w.noSpace, w.progress, w.history, w.meter = before.refusals, before.noSpace, before.progress, before.history, before.meter
	w.reached, w.movedAt, w.moving, w.preparedAt = before.reached, before.movedAt, before.moving, before.preparedAt
	w.room = before.room
	w.busy, w.changes, w.waitingFor, w.waitedSteps = before.busy, before.changes, before.waitingFor, before.waitedSteps
	return w
}

// step records progress. Executors pass it to the runtime.
func (w *work) step(p runtime.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	p.Detail = truncate(p.Detail)
	if p.Uncounted {
		w.movedAt = now
	}
	if p.Step == runtime.StepWaitingPull {
		// The runtime bounds this wait, and the pull may begin again after it.
		w.movedAt = now
		delete(w.reached, runtime.StepPulling)
	}
	if r := w.reached[p.Step]; p.Done > r.done || p.Entries > r.entries {
		w.reached[p.Step] = sample{done: max(p.Done, r.done), entries: max(p.Entries, r.entries)}
		w.movedAt = now
		w.moving = w.moving || !prepares(p.Step)
	}
	if w.preparing && !prepares(p.Step) {
		w.preparedAt = now
	}
	w.preparing, w.pulling, w.outside = prepares(p.Step), workspace.AwaitsImage(p.Step), waitsForCluster(p.Step)
	w.steps[p.Step] = true
	if w.waitingFor != nil {
		if w.waitedSteps[p.Step] { // the failed attempt got this far, too
			if p.Step == w.progress.Step {
				w.show(now, p) // it waits for something else now
			}
			return
		}
		w.waitingFor, w.movedAt = nil, now
	}
	w.show(now, p)
}

// maxHistory limits the steps that are kept: an operation may wait and go on often.
const maxHistory = 20

// show makes p the progress that users see. The caller holds w.mu.
func (w *work) show(now time.Time, p runtime.Progress) {
	last := len(w.history) - 1
	if last < 0 || w.history[last].Step != p.Step {
		w.history = append(w.history, workspace.ProgressStep{Step: p.Step, BeganAt: now.UTC()})
		w.history = w.history[max(0, len(w.history)-maxHistory):]
		last = len(w.history) - 1
	}
	w.history[last].Done = max(w.history[last].Done, p.Done)
	w.progress = p
	w.meter.record(now, p)
}

// waitsForCluster reports whether a step waits for the cluster to have a node with room, room in
// a quota, or the home's volume. Only the cluster or its administrators end that, so it may take
// any time.
func waitsForCluster(step string) bool {
	return slices.Contains([]string{runtime.StepWaitingRoom, runtime.StepWaitingQuota, runtime.StepWaitingVolume}, step)
}

// prepares reports whether a step counts as lifecycle.Work.Preparing.
func prepares(step string) bool {
	return workspace.AwaitsImage(step) || step == runtime.StepOwning || waitsForCluster(step)
}

// resetReached starts the progress of a new job from zero.
func (w *work) resetReached() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reached = map[string]sample{}
}

// end records the executor's result. Time spent waiting for the bucket or for space
// does not count towards the deadline, nor does repeating what was interrupted.
func (w *work) end(err error) *lifecycle.Failure {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.ended, w.failure, w.preparing, w.pulling, w.outside, w.retryAt = now, failure(err), false, false, false, now.Add(retryMin)
	if w.failure != nil && w.failure.Passing {
		return w.endBusy(err, now)
	}
	if w.waitingFor != nil {
		w.waitingFor, w.movedAt = nil, now
	}
	w.busy = 0
	w.refusals++
	bucket := errors.Is(err, store.ErrUnavailable)
	w.noSpace = !bucket && lacksSpace(err)
	if !bucket && !w.noSpace {
		w.refusals = 0
		return w.failure
	}
	w.movedAt, w.reached = now, map[string]sample{}
	w.retryAt = now.Add(min(w.backoff<<min(w.refusals-1, 16), retryMax))
	if bucket {
		w.show(now, runtime.Progress{Step: runtime.StepWaitingBucket})
	} else {
		w.preparedAt = w.retryAt // the pull deadline restarts with the next attempt
	}
	return w.failure
}

// endBusy records a transient failure. The caller holds w.mu.
func (w *work) endBusy(err error, now time.Time) *lifecycle.Failure {
	w.refusals, w.noSpace = 0, false
	w.busy++
	w.retryAt = now.Add(min(w.backoff<<min(w.busy-1, 16), busyRetryMax))
	if errors.Is(err, errHomeChanged) {
		w.waitingFor = nil
		if w.changes++; w.changes >= maxChanges {
			w.failure.Passing = false
		}
		return w.failure
	}
	w.waitingFor, w.waitedSteps = w.failure, w.steps
	waits := runtime.Progress{Step: runtime.StepWaitingBackend, Detail: truncate(err.Error())}
	var busy *runtime.BusyError
	if errors.As(err, &busy) {
		waits.Step, waits.Detail = cmp.Or(busy.Step, waits.Step), truncate(busy.Reason)
		if busy.Container != "" {
			waits = runtime.Progress{Step: runtime.StepWaitingInUse, Detail: truncate(busy.Container)}
		}
	}
	var full *noRoom
	if errors.As(err, &full) {
		w.room = full
		waits = runtime.Progress{Step: runtime.StepWaitingStorage, Detail: truncate(full.Error())}
	}
	if full != nil || waits.Step == runtime.StepWaitingNode || waits.Step == runtime.StepPulling || waitsForCluster(waits.Step) {
		w.preparedAt = w.retryAt // the deadline counts from the end of the wait
	}
	w.show(now, waits)
	return w.failure
}

// truncate shortens a text that is shown inline.
func truncate(text string) string {
	const most = 200
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// waitReason returns why the last attempt failed while this one waits for the same.
func (w *work) waitReason() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waitingFor == nil {
		return ""
	}
	return w.waitingFor.Message
}

// lacksSpace reports whether the work waits for disk space.
func (w *work) lacksSpace() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.noSpace
}

// lacksRoom returns why the archive does not fit on its disk; nil: it is not known not to.
func (w *work) lacksRoom() *noRoom {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.room
}

// hasRoom ends the wait for the disk of the archives.
func (w *work) hasRoom() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room, w.waitingFor, w.movedAt, w.reached = nil, nil, time.Now(), map[string]sample{}
}

// resume makes work that waits for the bucket or space run again now.
func (w *work) resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refusals > 0 {
		w.refusals, w.retryAt = 0, time.Time{}
	}
}

// snapshot returns the work as lifecycle.Judge needs it, and its progress as users
// see it.
func (w *work) snapshot(now time.Time) (lifecycle.Work, *workspace.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	failure := w.failure
	if w.ended.IsZero() {
		failure = w.waitingFor
	}
	waits := failure == nil || failure.Outage || failure.Passing
	running := w.ended.IsZero() || waits && now.Before(w.retryAt)
	j := lifecycle.Work{Running: running, Failure: failure, ProgressAt: w.movedAt, Moving: w.moving, Preparing: w.preparing, PreparedAt: w.preparedAt}
	if w.progress.Step == "" {
		return j, nil
	}
	shown := w.meter.shown(now, w.progress)
	shown.Steps = slices.Clone(w.history)
	return j, shown
}

// occupies reports whether the work counts against its lane's limit. An image pull
// and a transient wait do not. An archive that waits for the bucket, for a node or for its
// home's volume does: otherwise all archives would start together.
func (w *work) occupies() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lane == archiving && w.refusals > 0 {
		return true
	}
	return w.ended.IsZero() && !w.pulling && (!w.outside || w.lane == archiving)
}

func (w *work) endedAt() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

// hasEnded reports whether the executor has returned.
func (w *work) hasEnded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.ended.IsZero()
}

// view is a work as of before the observation began.
type view struct {
	opID     string
	work     lifecycle.Work
	progress *workspace.Progress
	ended    time.Time // zero: the executor is running
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

// operating reports whether an executor runs or has just ended.
func (t *term) operating() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.works) > 0
}

// lane is the queue of an operation. Each has its own limit, so that archives delay
// neither starts nor restores, and the removal of large homes delays only removals.
type lane int

const (
	short lane = iota
	archiving
	restoring
	removing // of homes of deleted workspaces
)

// laneOf returns the lane of the operation that row has claimed.
func laneOf(row workspace.Workspace) lane {
	switch {
	case row.Operation == workspace.OpArchiving:
		return archiving
	case row.Operation == workspace.OpRestoring:
		return restoring
	case removes(row):
		return removing
	}
	return short
}

// slots returns how many more operations may be claimed per lane, and how many of each
// owner occupy a slot.
func (t *term) slots() (free map[lane]int, running map[lane]map[string]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	free = map[lane]int{
		short: t.cfg.MaxOperations, archiving: t.cfg.MaxStorageJobs, restoring: t.cfg.MaxStorageJobs,
		removing: max(1, t.cfg.MaxOperations/4),
	}
	running = map[lane]map[string]int{}
	for _, w := range t.works {
		if !w.occupies() {
			continue
		}
		free[w.lane]--
		if running[w.lane] == nil {
			running[w.lane] = map[string]int{}
		}
		running[w.lane][w.owner]++
	}
	return free, running
}

// cancelWork cancels the work on id if it belongs to the claim opID.
func (t *term) cancelWork(id workspace.ID, opID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.works[id]; w != nil && w.opID == opID {
		w.cancel()
		delete(t.works, id)
		t.stopping[id] = w.done
	}
}

// detachWork forgets the work on id but lets its executor finish: the operation
// completes when the volume is gone, and the executor then removes the volume's
// record.
func (t *term) detachWork(id workspace.ID, opID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.works[id]; w != nil && w.opID == opID {
		delete(t.works, id)
		t.stopping[id] = w.done
	}
}

// execute starts the executor of row's claim after the workspace's previous one has
// ended. It does nothing if an executor of this claim is running.
func (t *term) execute(ctx context.Context, row workspace.Workspace, seen *runtime.Container) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var earlier *work
	if w := t.works[row.ID]; w != nil {
		switch {
		case w.opID == row.OpID && !w.hasEnded():
			return
		case w.opID == row.OpID:
			earlier = w
		}
		w.cancel()
		t.stopping[row.ID] = w.done
	}
	ctx, cancel := context.WithCancel(ctx)
	w := newWork(row, cancel, earlier)
	w.backoff = cmp.Or(t.cfg.Backoff, retryMin)
	t.works[row.ID] = w
	before := t.stopping[row.ID]
	delete(t.stopping, row.ID)
	t.group.Go(func() {
		defer close(w.done)
		defer cancel()
		if before != nil {
			<-before // its context is cancelled: one operation at a time per workspace
		}
		err := t.perform(ctx, row, seen, w)
		if ctx.Err() != nil {
			return
		}
		waited := w.waitReason()
		t.logEnd(row, w.end(err), waited, err)
		if errors.Is(err, store.ErrUnavailable) {
			t.bucket.markSuspect()
		}
		t.Wake()
	})
}

// inSession runs an executor's statements in the leader's database session.
// Cancelling the operation does not interrupt them: that would close the session
// and end the term. Each statement compares the claim, so a late one changes
// nothing.
func (t *term) inSession(ctx context.Context, f func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.ctx, databaseTimeout)
	defer cancel()
	return f(ctx)
}

// logEnd logs how an executor ended. A continuing wait is logged once.
func (t *term) logEnd(row workspace.Workspace, f *lifecycle.Failure, waited string, err error) {
	log := t.cfg.Log.With("workspace", row.ID, "operation", row.Operation)
	switch {
	case f == nil:
	case f.Passing && (f.Message == waited || waited != "" && errors.As(err, new(*noRoom))): // what is available changes
		log.Debug("operation still waiting", "err", f.Message)
	case f.Passing && !errors.Is(err, errHomeChanged):
		log.Info("operation waiting", "err", f.Message)
	case f.Passing:
		log.Warn("home changed while packing; packing again", "err", f.Message)
	case f.Outage:
		log.Warn("operation waiting", "err", f.Message)
	default:
		log.Warn("operation failed", "reason", f.Reason, "err", f.Message)
	}
}

// effect runs f outside the tick, one call at a time per key and with a time limit.
// If slots is not nil, it waits for a free slot. If f reports a change, the
// controller wakes.
func (t *term) effect(ctx context.Context, key string, slots chan struct{}, f func(ctx context.Context) (changed bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy[key] {
		return
	}
	t.busy[key] = true
	t.group.Go(func() {
		changed := t.runEffect(ctx, slots, f)
		t.mu.Lock()
		delete(t.busy, key)
		t.mu.Unlock()
		if changed {
			t.Wake()
		}
	})
}

func (t *term) runEffect(ctx context.Context, slots chan struct{}, f func(ctx context.Context) bool) bool {
	if slots != nil {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return false
		}
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.SideTaskTimeout)
	defer cancel()
	return f(ctx)
}

func (t *term) wait() { t.group.Wait() }
