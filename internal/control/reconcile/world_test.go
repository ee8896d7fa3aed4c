package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/control/reconcile"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
	"codehub/internal/workspace/lifecycle"
)

// patience limits every wait. It is much longer than what is waited for takes on a
// busy machine, and shorter than the timeouts that would have the same effect.
const patience = 20 * time.Second

var quiet = postgres.Options{Log: slog.New(slog.DiscardHandler)}

// world is a controller with a real database and a runtime with faults. No event
// reaches it, so it relies on its ticks.
type world struct {
	*testing.T
	*fixture.Database
	fake   *runtimetest.Fake
	owner  workspace.Caller
	policy lifecycle.Policy
	maxOps int
	accept bool // AcceptVolumeLoss
	images imageref.Allowed
	sizes  workspace.Sizes
	checks time.Duration // ImageCheckInterval

	archives *archives
	minFree  float64
	health   health.Monitor
	uids     workspace.UIDRange
	maxJobs  int
	step     func(id workspace.ID, step string)
	gates    []*gate
	setups   []reconcile.Setup
	backup   func(ctx context.Context, row workspace.Workspace, cause string, step func(runtime.Progress))

	lookWithin, choreWithin time.Duration
	orphanDelay             time.Duration
	mayRemove               func() bool
	intents                 reconcile.Intents
	wrap                    func(*postgres.Controller) reconcile.Rows

	mu     sync.Mutex
	closed []workspace.ID // routes, in the order of their closing
}

// few returns the first two cases, which differ most, and in make verify all of them.
func few[V any](cases ...V) []V {
	if harness.Verifying() {
		return cases
	}
	return cases[:2]
}

func (w *world) CloseRoute(id workspace.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = append(w.closed, id)
}

func newWorld(t *testing.T, change ...func(*world)) *world {
	t.Helper()
	w := &world{T: t, Database: fixture.NewDatabase(t, quiet), fake: runtimetest.NewFake(), policy: lifecycle.DefaultPolicy(), maxOps: 32}
	w.policy.DeleteGrace = 0
	w.policy.RetryBase = 10 * time.Millisecond
	addArchives(w)
	for _, f := range change {
		f(w)
	}
	w.intents = w.DB
	w.wrap = func(c *postgres.Controller) reconcile.Rows { return c }
	t.Cleanup(func() {
		if err := w.fake.Close(); err != nil {
			t.Error(err)
		}
	})
	w.owner = w.AddUser("ada")
	return w
}

func (w *world) controller() *reconcile.Controller {
	return reconcile.New(reconcile.Config{
		Conditions: &w.health, Archives: w.archives, MinFree: w.minFree, Step: w.step,
		Runtime: w.fake, Intents: w.intents, Routes: w, Policy: w.policy, Images: w.images, Sizes: w.sizes, Log: slog.New(slog.NewTextHandler(w.Output(), nil)),
		Settings: reconcile.Settings{
			IdleInterval: 20 * time.Millisecond, ActiveInterval: 10 * time.Millisecond, ActiveFor: time.Second,
			MaxOperations: w.maxOps, MaxStorageJobs: w.maxJobs, AcceptVolumeLoss: w.accept, OrphanDelay: w.orphanDelay,
			ImageCheckInterval: w.checks, UIDs: w.uids,
		},
		StopGrace: time.Second, Backoff: 20 * time.Millisecond, ObserveTimeout: w.lookWithin, SideTaskTimeout: w.choreWithin,
		MayRemove: w.mayRemove, Setups: w.setups, Backup: w.backup,
	})
}

// lead runs a controller until the test ends or the returned function is called.
func (w *world) lead() (stop func()) {
	w.Helper()
	_, stop = w.leads()
	return stop
}

func (w *world) leads() (c *reconcile.Controller, stop func()) {
	w.Helper()
	conn := w.Conn()
	c = w.controller()
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx, w.wrap(postgres.NewController(postgres.NewSession(conn)))) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				w.Errorf("the controller ended: %v", err)
			}
			cctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = conn.Close(cctx)
		})
	}
	w.Cleanup(func() {
		for _, g := range w.gates {
			g.letGo()
		}
		stop()
	})
	return c, stop
}

func (w *world) create(name string, desired workspace.DesiredState, change ...func(*postgres.NewWorkspace)) workspace.ID {
	w.Helper()
	to := func(n *postgres.NewWorkspace) { n.ImageRef, n.Desired = runtimetest.DefaultImage, desired }
	return w.AddWorkspace(w.owner, name, append([]func(*postgres.NewWorkspace){to}, change...)...).ID
}

func (w *world) want(id workspace.ID, d workspace.DesiredState, queue bool) {
	w.Helper()
	if _, err := w.DB.PatchWorkspace(w.Context(), w.owner, id, postgres.Patch{Desired: &d, Queue: queue}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) row(id workspace.ID) workspace.Workspace {
	w.Helper()
	ws, err := w.DB.Workspace(w.Context(), w.owner, id)
	if err != nil {
		w.Fatal(err)
	}
	return ws
}

// await polls until ok; the row is polled since no event is to be relied on.
func (w *world) await(id workspace.ID, what string, ok func(workspace.Workspace) bool) workspace.Workspace {
	w.Helper()
	return harness.Await(w, patience, what, func() workspace.Workspace { return w.row(id) }, ok)
}

func (w *world) awaitPhase(id workspace.ID, p workspace.Phase) workspace.Workspace {
	w.Helper()
	return w.await(id, string(p)+" and at rest", func(ws workspace.Workspace) bool {
		return ws.Phase == p && ws.Operation == workspace.OpNone
	})
}

// awaitTrue waits for anything else.
func (w *world) awaitTrue(what string, ok func() bool) {
	w.Helper()
	harness.EventuallyWithin(w, 30*time.Second, what, ok)
}

// awaitCalls waits until the runtime was called n times.
func (w *world) awaitCalls(op string, n int) {
	w.Helper()
	harness.Await(w, patience, fmt.Sprintf("%d calls of %s", n, op), func() int { return w.fake.Calls(op) }, func(calls int) bool { return calls >= n })
}

// awaitGone waits until the workspace is DELETED and has no resources left.
func (w *world) awaitGone(id workspace.ID) {
	w.Helper()
	w.awaitTrue("DELETED", func() bool {
		_, err := w.DB.Workspace(w.Context(), w.owner, id)
		return workspace.CodeOf(err) == workspace.CodeNotFound
	})
	if _, ok := w.fake.Home(id); ok {
		w.Error("the volume is still there")
	}
	cs, err := w.fake.Containers(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	for _, c := range cs {
		if c.Workspace == id {
			w.Error("the container is still there")
		}
	}
}

func (w *world) write(id workspace.ID, content string) {
	w.Helper()
	if err := w.fake.Write(id, "notes.txt", content); err != nil {
		w.Fatal(err)
	}
}

func (w *world) expect(id workspace.ID, content string) {
	w.Helper()
	if got, ok := w.fake.Read(id, "notes.txt"); !ok || got != content {
		w.Errorf("the home holds %q (%v), want %q", got, ok, content)
	}
}
