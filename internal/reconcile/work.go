package reconcile

import (
	"context"
	"sync"
	"time"

	"codehub/internal/judge"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// term is one term of leadership: what is known of the running operations
// lives and dies with it.
type term struct {
	*Controller
	rows    Rows
	upSince time.Time // since when the backend has answered without a break; zero: it does not

	group sync.WaitGroup // executors, probes, removals

	mu       sync.Mutex
	works    map[workspace.ID]*work
	leaving  map[workspace.ID]chan struct{} // executors told to end: the next one waits for them
	answered map[string]time.Time           // container ids that have answered on /healthz, and when
	busy     map[string]bool                // side effects under way, by what they work on
	settled  map[workspace.ID]settlement
	crashes  crashes
	hands    chan struct{} // for chores, so that they never ask for everybody at once

	// The tick alone uses these.
	began       time.Time // of the present tick
	prepared    time.Time // when the surroundings of the containers were last checked
	strays      map[string]stray
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
	cancel context.CancelFunc
	done   chan struct{} // closed when the executor has returned
	began  time.Time

	mu       sync.Mutex
	ended    time.Time // zero: at work
	failure  *judge.Failure
	progress runtime.Progress
	movedAt  time.Time
	pulling  bool
	pulledAt time.Time
}

// rerun is how long an executor that ended without its operation being
// complete is left alone before it is run again.
const rerun = time.Second

// step records progress; it is what executors hand to the runtime.
func (w *work) step(p runtime.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if p != w.progress {
		w.movedAt = now
	}
	pulling := p.Step == runtime.StepPulling
	if w.pulling && !pulling {
		w.pulledAt = now
	}
	w.progress, w.pulling = p, pulling
}

func (w *work) end(f *judge.Failure) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended, w.failure, w.pulling = time.Now(), f, false
}

// snapshot is the work as the judge sees it, with its progress for people.
func (w *work) snapshot(now time.Time) (judge.Work, *workspace.Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	running := w.ended.IsZero() || (now.Sub(w.ended) < rerun && w.failure == nil)
	if w.failure != nil && w.failure.Reason == workspace.ErrUnreachable {
		running = now.Sub(w.ended) < rerun
	}
	j := judge.Work{Running: running, Failure: w.failure, ProgressAt: w.movedAt, Pulling: w.pulling, PulledAt: w.pulledAt}
	if w.progress.Step == "" {
		return j, nil
	}
	return j, &workspace.Progress{Step: w.progress.Step, Done: w.progress.Done, Total: w.progress.Total}
}

func (w *work) occupies() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended.IsZero() && !w.pulling
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
	judge    judge.Work
	progress *workspace.Progress
}

func (t *term) views(now time.Time) map[workspace.ID]view {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[workspace.ID]view, len(t.works))
	for id, w := range t.works {
		j, p := w.snapshot(now)
		out[id] = view{opID: w.opID, judge: j, progress: p}
	}
	return out
}

// operating reports whether any executor is at work or was until a moment ago.
func (t *term) operating() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.works) > 0
}

// free is how many more operations may be claimed now.
func (t *term) free() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.cfg.MaxOperations
	for _, w := range t.works {
		if w.occupies() {
			n--
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

// execute runs the executor of row's claim, after the one before it on the
// same workspace has ended. Nothing happens if one of this claim is at work.
func (t *term) execute(ctx context.Context, row workspace.Workspace, seen *runtime.Container) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.works[row.ID]; w != nil {
		if w.opID == row.OpID && !w.over() {
			return
		}
		w.cancel()
		t.leaving[row.ID] = w.done
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &work{opID: row.OpID, cancel: cancel, done: make(chan struct{}), began: time.Now(), movedAt: time.Now()}
	t.works[row.ID] = w
	before := t.leaving[row.ID]
	delete(t.leaving, row.ID)
	t.group.Go(func() {
		defer close(w.done)
		defer cancel()
		if before != nil {
			<-before // its context has ended: one operation at a time (design §3.4)
		}
		err := t.perform(ctx, row, seen, w.step)
		if ctx.Err() != nil {
			return
		}
		f := failure(err)
		if f != nil {
			t.cfg.Log.Warn("operation failed", "workspace", row.ID, "operation", row.Operation, "reason", f.Reason, "err", err)
		}
		w.end(f)
		t.Wake()
	})
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
