package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"codehub/internal/control/reconcile"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// first runs a function once and signals that it was reached.
type first struct {
	once    sync.Once
	reached chan struct{}
}

func newFirst() *first { return &first{reached: make(chan struct{})} }

func (f *first) do(g func()) {
	f.once.Do(func() {
		close(f.reached)
		g()
	})
}

// A runtime that hangs delays an observation by ObserveTimeout at most.
func TestHangingObservationTimesOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.lookWithin = 100 * time.Millisecond })
	hang := newFirst()
	w.fake.SetBefore(func(ctx context.Context, op string, _ workspace.ID) error {
		if op == "Containers" {
			hang.do(func() { <-ctx.Done() })
		}
		return nil
	})
	w.lead()
	<-hang.reached
	id := w.create("one", workspace.DesiredRunning)
	if ws := w.awaitPhase(id, workspace.PhaseRunning); ws.ErrorCount != 0 {
		t.Errorf("the hang counted as %d failures", ws.ErrorCount)
	}
}

// rows is the database with injected faults.
type rows struct {
	*postgres.Controller
	before func([]postgres.Change) error // its error replaces the call to Apply
	refuse func(postgres.Change) bool
}

func (r rows) Apply(ctx context.Context, changes []postgres.Change) ([]bool, error) {
	if r.before != nil {
		if err := r.before(changes); err != nil {
			return nil, err
		}
	}
	if r.refuse == nil {
		return r.Controller.Apply(ctx, changes)
	}
	refused := &postgres.Refused{Rows: map[workspace.ID]error{}}
	var good []postgres.Change
	var at []int
	for i, c := range changes {
		if r.refuse(c) {
			refused.Rows[c.Seen.ID] = errors.New("violates a constraint")
			continue
		}
		good, at = append(good, c), append(at, i)
	}
	some, err := r.Controller.Apply(ctx, good)
	if err != nil {
		return nil, err
	}
	landed := make([]bool, len(changes))
	for i, ok := range some {
		landed[at[i]] = ok
	}
	if len(refused.Rows) > 0 {
		return landed, refused
	}
	return landed, nil
}

func TestRefusedRowDelaysNoOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad := w.create("bad", workspace.DesiredRunning)
	w.wrap = func(c *postgres.Controller) reconcile.Rows {
		return rows{Controller: c, refuse: func(c postgres.Change) bool { return c.Seen.ID == bad }}
	}
	w.lead()
	id := w.create("good", workspace.DesiredRunning)
	w.awaitPhase(id, workspace.PhaseRunning)
	if ws := w.row(bad); ws.Phase != workspace.PhasePending {
		t.Errorf("the refused row is %s", ws.Phase)
	}
}

// A failed statement, such as a lock timeout, costs one tick; the term and its
// executors continue.
func TestFailedStatementKeepsTerm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var fails atomic.Int32
	w.wrap = func(c *postgres.Controller) reconcile.Rows {
		return rows{Controller: c, before: func([]postgres.Change) error {
			if fails.Add(1) <= 2 {
				return fmt.Errorf("write the workspaces: %w", &pgconn.PgError{Severity: "ERROR", Code: "55P03", Message: "canceling statement due to lock timeout"})
			}
			return nil
		}}
	}
	w.lead() // reports an error of Run
	id := w.create("one", workspace.DesiredRunning)
	w.awaitPhase(id, workspace.PhaseRunning)
	if fails.Load() < 3 {
		t.Error("no statement failed")
	}
}

// A lost session ends the term with an error.
func TestLostSessionEndsTerm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	conn := w.Conn()
	done := make(chan error, 1)
	go func() { done <- w.controller().Run(t.Context(), postgres.NewController(postgres.NewSession(conn))) }()
	id := w.create("one", workspace.DesiredRunning)
	w.awaitPhase(id, workspace.PhaseRunning)
	w.Exec(`SELECT pg_terminate_backend($1)`, conn.PgConn().PID())
	if err := <-done; err == nil {
		t.Error("the term ended without an error")
	}
}

// slowIntents simulates waiting for the lock on the limits.
type slowIntents struct {
	reconcile.Intents
	id   workspace.ID
	hold chan struct{}
}

func (s slowIntents) ApplyQueued(ctx context.Context, id workspace.ID) (bool, error) {
	if id == s.id {
		select {
		case <-s.hold:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return s.Intents.ApplyQueued(ctx, id)
}

func TestSlowQueuedStateDelaysNoOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow := w.create("slow", workspace.DesiredRunning)
	s := slowIntents{Intents: w.DB, id: slow, hold: make(chan struct{})}
	w.intents = s
	w.fake.NeverHealthy(slow, true)
	w.lead()
	w.await(slow, "starting", func(ws workspace.Workspace) bool { return ws.Operation == workspace.OpStarting })
	w.want(slow, workspace.DesiredStandby, true)
	w.fake.NeverHealthy(slow, false)
	w.await(slow, "running", func(ws workspace.Workspace) bool { return ws.Phase == workspace.PhaseRunning })
	id := w.create("quick", workspace.DesiredRunning)
	w.awaitPhase(id, workspace.PhaseRunning)
	close(s.hold)
	w.awaitPhase(slow, workspace.PhaseStandby)
}

func TestHangingPrepareTimesOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.choreWithin = 50 * time.Millisecond })
	hang := newFirst()
	w.fake.SetBefore(func(ctx context.Context, op string, _ workspace.ID) error {
		if op == "Prepare" {
			hang.do(func() { <-ctx.Done() })
		}
		return nil
	})
	w.lead()
	<-hang.reached
	w.awaitCalls("Prepare", 2)
}

// A failed settling is retried.
func TestFailedSettlingIsRetried(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var failed atomic.Bool
	w.fake.SetBefore(func(_ context.Context, op string, _ workspace.ID) error {
		if op == "SettleVolume" && failed.CompareAndSwap(false, true) {
			return errors.New("not now")
		}
		return nil
	})
	w.lead()
	id := w.create("one", workspace.DesiredStandby)
	w.awaitPhase(id, workspace.PhaseStandby)
	w.awaitCalls("SettleVolume", 2)
}

// A home is settled again in the same term if the container that holds it was
// removed, and only then.
func TestReleasedVolumeIsSettledAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lead()
	id := w.create("one", workspace.DesiredStandby)
	w.awaitPhase(id, workspace.PhaseStandby)
	for range 3 {
		w.awaitHeld(id)
		before := w.fake.Calls("SettleVolume")
		w.awaitCalls("Volumes", w.fake.Calls("Volumes")+10)
		// One more call is possible if an observation began before the settling.
		if n := w.fake.Calls("SettleVolume"); n > before+1 {
			t.Errorf("a home that is held was settled another %d times", n-before)
		}
		w.fake.Prune(id)
	}
}

func (w *world) awaitHeld(id workspace.ID) {
	w.Helper()
	harness.Await(w, patience, "held", func() []runtime.Volume {
		list, err := w.fake.Volumes(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		return list
	}, func(list []runtime.Volume) bool {
		return slices.ContainsFunc(list, func(v runtime.Volume) bool { return v.Workspace == id && v.Held })
	})
}

// Side tasks are limited.
func TestSideTasksAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.lead()
	var ids []workspace.ID
	for i := range 16 {
		ids = append(ids, w.create(fmt.Sprint("ws", i), workspace.DesiredStandby))
	}
	for _, id := range ids {
		w.awaitPhase(id, workspace.PhaseStandby)
	}
	stop()
	var now, most atomic.Int32
	w.fake.SetBefore(func(ctx context.Context, op string, _ workspace.ID) error {
		if op == "SettleVolume" {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(2 * time.Millisecond)
			now.Add(-1)
		}
		return nil
	})
	before := w.fake.Calls("SettleVolume")
	w.lead()
	w.awaitCalls("SettleVolume", before+16)
	if most.Load() > 8 {
		t.Errorf("%d volumes were settled at once", most.Load())
	}
}
