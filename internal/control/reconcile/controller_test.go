package reconcile_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

func TestWorkspaceLifecycle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lead()
	id := w.create("one", workspace.DesiredRunning)
	ws := w.awaitPhase(id, workspace.PhaseRunning)
	if ws.Home.State != workspace.HomeLive || ws.Home.Claim == "" || ws.ErrorCount != 0 || ws.OpID != "" {
		t.Errorf("running with %+v", ws)
	}
	w.write(id, "work")
	w.want(id, workspace.DesiredStandby, false)
	ws = w.awaitPhase(id, workspace.PhaseStandby)
	if ws.Conditions.HasContainer() || ws.StopReason != "requested" {
		t.Errorf("stopped with container %v, reason %q", ws.Conditions[workspace.ContainerReady], ws.StopReason)
	}
	w.mu.Lock()
	closed := len(w.closed)
	w.mu.Unlock()
	if closed == 0 {
		t.Error("the container was removed without its route being closed")
	}
	w.want(id, workspace.DesiredRunning, false)
	w.awaitPhase(id, workspace.PhaseRunning)
	w.expect(id, "work")
	w.delete(id)
	w.awaitGone(id)
}

// After a crash at any step, the next controller continues from what it observes.
func TestControllerResumesAtEveryStep(t *testing.T) {
	t.Parallel()
	steps := []string{"CreateVolume/seed", "StartContainer/start", "Probe", "RemoveContainer/remove", "RemoveVolume/half"}
	if harness.Verifying() {
		steps = append(steps, "CreateVolume", "CreateVolume/done", "StartContainer", "StartContainer/done", "RemoveContainer",
			"RemoveVolume", "RemoveVolume/begun", "RemoveVolume/done")
	}
	for _, op := range steps {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			reached := make(chan struct{}, 1)
			var armed atomic.Bool
			armed.Store(true)
			w.fake.SetBefore(func(ctx context.Context, at string, _ workspace.ID) error {
				if at != op || !armed.Load() {
					return nil
				}
				select {
				case reached <- struct{}{}:
				default:
				}
				<-ctx.Done() // blocked until the controller has stopped
				return ctx.Err()
			})
			stop := w.lead()
			crash := func() {
				<-reached
				armed.Store(false)
				stop()
				stop = w.lead()
			}
			id := w.create("one", workspace.DesiredRunning)
			switch op {
			case "RemoveContainer", "RemoveContainer/remove":
				w.awaitPhase(id, workspace.PhaseRunning)
				w.write(id, "work")
				w.want(id, workspace.DesiredStandby, false)
				crash()
				w.awaitPhase(id, workspace.PhaseStandby)
				w.want(id, workspace.DesiredRunning, false)
				w.awaitPhase(id, workspace.PhaseRunning)
				w.expect(id, "work")
				return
			case "RemoveVolume", "RemoveVolume/begun", "RemoveVolume/half", "RemoveVolume/done":
				w.awaitPhase(id, workspace.PhaseRunning)
				w.delete(id)
				crash()
				w.awaitGone(id)
				return
			}
			crash()
			ws := w.awaitPhase(id, workspace.PhaseRunning)
			if ws.ErrorCount != 0 {
				t.Errorf("the crash counted as %d failures", ws.ErrorCount)
			}
			w.write(id, "work")
			w.expect(id, "work")
		})
	}
}

func TestRestartKeepsRunningContainers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.lead()
	id := w.create("one", workspace.DesiredRunning)
	w.awaitPhase(id, workspace.PhaseRunning)
	before, err := w.fake.Upstream(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	var touched atomic.Int32
	w.fake.SetBefore(func(_ context.Context, op string, at workspace.ID) error {
		if at == id && (strings.HasPrefix(op, "StartContainer") || strings.HasPrefix(op, "RemoveContainer")) {
			touched.Add(1)
		}
		return nil
	})
	stop = w.lead()
	other := w.create("two", workspace.DesiredRunning) // a second workspace runs through its whole life meanwhile
	w.awaitPhase(other, workspace.PhaseRunning)
	after, err := w.fake.Upstream(t.Context(), id)
	if err != nil || before != after {
		t.Errorf("the container changed: %+v, %+v, %v", before, after, err)
	}
	if n := touched.Load(); n != 0 {
		t.Errorf("a restart started or removed the container, %d calls", n)
	}
	stop()
}

func TestRuntimeOutageCausesNoErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, _ := w.leads()
	var ids []workspace.ID
	for i := range 6 {
		ids = append(ids, w.create(fmt.Sprint("ws", i), workspace.DesiredRunning))
	}
	for _, id := range ids {
		w.awaitPhase(id, workspace.PhaseRunning)
	}
	w.write(ids[0], "work")
	w.fake.SetDown(true)
	w.fake.EndAll() // as a stopping Docker does
	starting := w.create("started in the outage", workspace.DesiredRunning)
	before := c.Status()
	w.awaitCalls("Containers", w.fake.Calls("Containers")+3) // several observations fail
	if s := c.Status(); !s.TickedAt.After(before.TickedAt) || s.ObservedAt.After(s.TickedAt) || s.ObservedAt.Sub(before.ObservedAt) > s.TickedAt.Sub(before.TickedAt) {
		t.Errorf("ticks and observations in the outage: %+v, before %+v", s, before)
	}
	for _, id := range append(ids, starting) {
		if ws := w.row(id); ws.Phase == workspace.PhaseError || ws.ErrorCount != 0 {
			t.Errorf("the outage moved %s to %s (%s, %d)", ws.Name, ws.Phase, ws.ErrorReason, ws.ErrorCount)
		}
	}
	w.fake.SetDown(false)
	for _, id := range append(ids, starting) {
		w.awaitPhase(id, workspace.PhaseRunning)
	}
	w.expect(ids[0], "work")
}

func TestRemovedContainerIsRecreated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lead()
	id := w.create("one", workspace.DesiredRunning)
	w.awaitPhase(id, workspace.PhaseRunning)
	w.write(id, "work")
	before, err := w.fake.Upstream(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	w.fake.TakeContainer(id)
	w.await(id, "running in another container", func(ws workspace.Workspace) bool {
		up, err := w.fake.Upstream(t.Context(), id)
		return err == nil && up.ContainerID != before.ContainerID && ws.Phase == workspace.PhaseRunning
	})
	w.expect(id, "work")
}

func TestRemovedVolumeIsDataLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lead()
	id := w.create("one", workspace.DesiredStandby)
	w.awaitPhase(id, workspace.PhaseStandby)
	w.fake.TakeVolume(id)
	ws := w.awaitPhase(id, workspace.PhaseError)
	if ws.ErrorReason != workspace.ErrDataLost || ws.Operation != workspace.OpNone {
		t.Errorf("error %q, operation %s", ws.ErrorReason, ws.Operation)
	}
	w.recovered(id, workspace.RecoverAfresh)
	w.await(id, "still lost after a check", func(ws workspace.Workspace) bool {
		return ws.RecoverRequestedAt == nil && ws.Phase == workspace.PhaseError && ws.ErrorReason == workspace.ErrDataLost
	})
	if _, ok := w.fake.Home(id); ok {
		t.Fatal("an empty home was made without a request")
	}
	w.recovered(id, workspace.RecoverEmpty)
	w.awaitPhase(id, workspace.PhaseStandby)
}

func TestManyMissingVolumesFailObservation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.lead()
	var ids []workspace.ID
	for i := range 6 {
		id := w.create(fmt.Sprint("ws", i), workspace.DesiredStandby)
		ids = append(ids, id)
	}
	for _, id := range ids {
		w.awaitPhase(id, workspace.PhaseStandby)
	}
	stop()
	for _, id := range ids[:2] {
		w.fake.TakeVolume(id)
	}
	stop = w.lead()
	w.awaitCalls("Volumes", w.fake.Calls("Volumes")+3)
	for _, id := range ids {
		if ws := w.row(id); ws.Phase != workspace.PhaseStandby {
			t.Errorf("%s became %s", ws.Name, ws.Phase)
		}
	}
	stop()
	w.accept = true
	w.lead()
	w.await(ids[0], "lost, once that is accepted", func(ws workspace.Workspace) bool { return ws.ErrorReason == workspace.ErrDataLost })
	w.awaitPhase(ids[5], workspace.PhaseStandby)
}

func TestQueuedStateAppliesAfterOperation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lead()
	id := w.create("one", workspace.DesiredRunning)
	w.awaitPhase(id, workspace.PhaseRunning)
	hold := make(chan struct{})
	w.fake.SetBefore(func(ctx context.Context, op string, _ workspace.ID) error {
		if op == "RemoveContainer" {
			select {
			case <-hold:
			case <-ctx.Done():
			}
		}
		return nil
	})
	w.want(id, workspace.DesiredStandby, false)
	w.await(id, "stopping", func(ws workspace.Workspace) bool { return ws.Operation == workspace.OpStopping })
	d := workspace.DesiredRunning
	if _, err := w.DB.PatchWorkspace(t.Context(), w.owner, id, postgres.Patch{Desired: &d}); workspace.CodeOf(err) != workspace.CodeOperationInProgress {
		t.Errorf("without queue: %v", err)
	}
	w.want(id, workspace.DesiredRunning, true)
	close(hold)
	w.await(id, "running again", func(ws workspace.Workspace) bool {
		return ws.Phase == workspace.PhaseRunning && ws.DesiredState == workspace.DesiredRunning && ws.NextDesired == ""
	})
}

func TestConcurrentOperationsAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.maxOps = 3 })
	var now, most atomic.Int32
	w.fake.SetBefore(func(ctx context.Context, op string, id workspace.ID) error {
		switch op {
		case "StartContainer":
			if _, err := w.fake.Upstream(ctx, id); err == nil {
				return nil // a second run: nothing left to do
			}
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
		case "StartContainer/done":
			now.Add(-1)
		}
		return nil
	})
	var ids []workspace.ID
	for i := range 12 {
		ids = append(ids, w.create(fmt.Sprint("ws", i), workspace.DesiredRunning))
	}
	w.lead()
	for _, id := range ids {
		w.awaitPhase(id, workspace.PhaseRunning)
	}
	if most.Load() > 3 {
		t.Errorf("%d operations at once, want at most 3", most.Load())
	}
}

func TestSlowOperationDelaysNoOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slow := w.create("slow", workspace.DesiredRunning)
	w.fake.NeverHealthy(slow, true)
	w.lead()
	w.await(slow, "starting", func(ws workspace.Workspace) bool { return ws.Operation == workspace.OpStarting })
	id := w.create("quick", workspace.DesiredRunning)
	w.awaitPhase(id, workspace.PhaseRunning)
	if ws := w.row(slow); ws.Operation != workspace.OpStarting {
		t.Errorf("the slow one is %s, %s", ws.Phase, ws.Operation)
	}
}

// Before a start the earlier container has the time to end that a stop gives it: on Kubernetes its
// processes may run on for a while after it was evicted.
func TestStartGivesEarlierContainerTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lead()
	id := w.create("one", workspace.DesiredRunning)
	w.awaitPhase(id, workspace.PhaseRunning)
	w.fake.EndContainer(id)
	w.awaitCalls("RemoveContainer", 1)
	for _, grace := range w.fake.Graces() {
		if grace != time.Second { // of the world's configuration
			t.Errorf("it was removed with %s to end", grace)
		}
	}
	w.awaitPhase(id, workspace.PhaseRunning)
}
