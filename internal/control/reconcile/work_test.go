package reconcile

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/runtime"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

var archivingRow = workspace.Workspace{ID: "w", Operation: workspace.OpArchiving, OpID: "claim"}

// Only a new maximum counts as progress, not a repeated report.
func TestProgressCountsOnlyNewMaximum(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWork(archivingRow, func() {}, nil)
		begun := time.Now()
		pack := func(done, entries int64) {
			w.step(runtime.Progress{Step: runtime.StepPacking, Done: done, Entries: entries})
		}
		moved := func(what string, want bool) {
			t.Helper()
			if got := w.movedAt.Equal(time.Now()); got != want {
				t.Errorf("%s: progress %v", what, got)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		pack(0, 0)
		moved("it begins", false)
		if !w.movedAt.Equal(begun) {
			t.Error("the time without progress does not start at the beginning")
		}
		pack(10, 1)
		moved("bytes and entries", true)
		pack(10, 1)
		moved("the same again", false)
		pack(10, 2)
		moved("an empty file", true)
		pack(20, 2)
		moved("bytes of a large file", true)

		// The server follows the same job again and learns nothing new.
		at := w.movedAt
		w.end(errors.New("the connection broke"))
		again := newWork(archivingRow, func() {}, w)
		w = again
		if !w.movedAt.Equal(at) {
			t.Error("a rerun counts as progress")
		}
		pack(0, 0)
		pack(10, 1)
		pack(20, 2)
		moved("what was read before", false)
		pack(20, 3)
		moved("on from there", true)
		w.step(runtime.Progress{Step: runtime.StepVerifying, Done: 5})
		moved("the next step", true)

		w.resetReached() // a new job starts from zero
		pack(5, 1)
		moved("another job", true)
	})
}

// A pull without numbers makes progress as often as it reports some.
func TestUncountedProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWork(workspace.Workspace{ID: "w", Operation: workspace.OpStarting, OpID: "claim"}, func() {}, nil)
		begun := time.Now()
		for range 3 {
			time.Sleep(time.Minute)
			w.step(runtime.Progress{Step: runtime.StepPulling})
			if j, _ := w.snapshot(time.Now()); !j.Preparing || !j.ProgressAt.Equal(begun) {
				t.Fatalf("nothing is reported: %+v", j)
			}
		}
		for range 3 {
			time.Sleep(time.Minute)
			w.step(runtime.Progress{Step: runtime.StepPulling, Uncounted: true})
			if j, _ := w.snapshot(time.Now()); !j.Preparing || !j.ProgressAt.Equal(time.Now()) || j.Moving {
				t.Fatalf("it goes on: %+v", j)
			}
		}
		time.Sleep(time.Minute)
		w.step(runtime.Progress{Step: runtime.StepStarting})
		if j, _ := w.snapshot(time.Now()); j.Preparing || !j.PreparedAt.Equal(time.Now()) {
			t.Fatalf("it has ended: %+v", j)
		}
	})
}

// A wait for a node's pull does not count towards the deadline.
func TestBusyPull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWork(workspace.Workspace{ID: "w", Operation: workspace.OpStopping, OpID: "claim"}, func() {}, nil)
		time.Sleep(time.Hour)
		w.end(&runtime.BusyError{Step: runtime.StepPulling, Reason: "the node pulls an image"})
		j, p := w.snapshot(time.Now())
		if !j.Running || !j.PreparedAt.After(time.Now()) || p.Step != runtime.StepPulling || p.Detail != "the node pulls an image" {
			t.Errorf("%+v, %+v", j, p)
		}
	})
}

// A rerun for the same claim keeps the deadline and the pull time.
func TestRerunKeepsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		row := workspace.Workspace{ID: "w", Operation: workspace.OpStarting, OpID: "claim"}
		w := newWork(row, func() {}, nil)
		w.step(runtime.Progress{Step: runtime.StepPulling, Done: 1, Total: 2})
		time.Sleep(time.Minute)
		w.step(runtime.Progress{Step: runtime.StepCreating})
		pulled := time.Now()
		w.end(fmt.Errorf("create: %w", runtime.ErrUnreachable))
		time.Sleep(time.Minute)
		j, p := newWork(row, func() {}, w).snapshot(time.Now())
		if !j.PreparedAt.Equal(pulled) || !j.Running || j.Failure != nil || p == nil || p.Step != runtime.StepCreating {
			t.Errorf("run again: %+v, %+v", j, p)
		}
	})
}

// The bucket's failures are retried with backoff, do not count, and are retried at once when
// the bucket is available again.
func TestBucketFailureBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWork(archivingRow, func() {}, nil)
		var waits []time.Duration
		for range 12 {
			time.Sleep(time.Hour)
			w.end(fmt.Errorf("upload: %w", store.ErrUnavailable))
			ended := time.Now()
			j, _ := w.snapshot(ended)
			if !j.Running || j.Failure == nil || !j.Failure.Outage || !j.ProgressAt.Equal(ended) {
				t.Fatalf("refused: %+v", j)
			}
			waits = append(waits, w.retryAt.Sub(ended))
			if j, _ := w.snapshot(w.retryAt); j.Running {
				t.Fatal("not run again")
			}
			w = newWork(archivingRow, func() {}, w)
		}
		if waits[0] != retryMin || waits[1] != 2*retryMin || waits[2] != 4*retryMin || waits[11] != retryMax {
			t.Errorf("waits %v", waits)
		}
		w.end(fmt.Errorf("upload: %w", store.ErrUnavailable))
		w.resume()
		if j, _ := w.snapshot(time.Now()); j.Running {
			t.Error("it waits although the bucket is back")
		}
		// A runtime failure has no backoff.
		w = newWork(archivingRow, func() {}, w)
		w.end(runtime.ErrUnreachable)
		if time.Until(w.retryAt) != retryMin {
			t.Errorf("waits %v", time.Until(w.retryAt))
		}
	})
}

// Reading a large archive back again takes as long as before, so that repeated work
// counts as progress after a bucket outage.
func TestRepeatedWorkCountsAfterBucketFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWork(archivingRow, func() {}, nil)
		verified := func(done int64) { w.step(runtime.Progress{Step: runtime.StepVerifying, Done: done, Total: 100}) }
		verified(90)
		w.end(fmt.Errorf("read back: %w", store.ErrUnavailable))
		w = newWork(archivingRow, func() {}, w)
		time.Sleep(time.Minute)
		verified(10)
		if j, _ := w.snapshot(time.Now()); !j.ProgressAt.Equal(time.Now()) {
			t.Error("no progress until the previous maximum")
		}
	})
}

// Running out of disk space is retried with backoff, and every attempt has its full
// deadline.
func TestNoSpaceRestartsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		row := workspace.Workspace{ID: "w", Operation: workspace.OpStarting, OpID: "claim"}
		w := newWork(row, func() {}, nil)
		for _, wait := range []time.Duration{retryMin, 2 * retryMin, 4 * retryMin} {
			time.Sleep(time.Hour)
			w.end(fmt.Errorf("create: %w", runtime.ErrNoSpace))
			ended := time.Now()
			j, _ := w.snapshot(ended)
			if !j.Running || j.Failure == nil || !j.Failure.Outage || !j.PreparedAt.Equal(ended.Add(wait)) || !j.ProgressAt.Equal(ended) {
				t.Fatalf("no space: %+v", j)
			}
			if j, _ := w.snapshot(ended.Add(wait)); j.Running {
				t.Fatal("not run again in time")
			}
			w = newWork(row, func() {}, w)
			if !w.lacksSpace() {
				t.Error("a retry counts as available space")
			}
		}
		w.end(nil)
		if w.lacksSpace() || w.refusals != 0 {
			t.Error("it waits although there is space")
		}
	})
}

// withoutSteps returns p without the steps that led to it; nil if p is nil.
func withoutSteps(p *workspace.Progress) *workspace.Progress {
	if p == nil {
		return nil
	}
	q := *p
	q.Steps = nil
	return &q
}

// The steps of an operation are kept with their times, over all attempts, so that its owner sees
// what has happened.
func TestStepsAreKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now().UTC()
		w := newWork(archivingRow, func() {}, nil)
		expect := func(want ...workspace.ProgressStep) {
			t.Helper()
			_, p := w.snapshot(time.Now())
			if d := cmp.Diff(want, p.Steps); d != "" {
				t.Errorf("steps (-want +got):\n%s", d)
			}
		}
		after := func(d time.Duration) time.Time { return began.Add(d) }
		w.step(runtime.Progress{Step: runtime.StepPulling, Done: 10, Total: 100})
		w.step(runtime.Progress{Step: runtime.StepPulling, Done: 90, Total: 100})
		expect(workspace.ProgressStep{Step: "pulling", BeganAt: began, Done: 90})
		time.Sleep(2 * time.Second)
		w.step(runtime.Progress{Step: runtime.StepCreating})
		w.end(&runtime.BusyError{Reason: "no free address"})
		time.Sleep(time.Second)
		w = newWork(archivingRow, func() {}, w)
		want := []workspace.ProgressStep{{Step: "pulling", BeganAt: began, Done: 90}, {Step: "creating", BeganAt: after(2 * time.Second)}, {Step: "waiting-backend", BeganAt: after(2 * time.Second)}}
		expect(want...)
		w.step(runtime.Progress{Step: runtime.StepStarting})
		want = append(want, workspace.ProgressStep{Step: "starting", BeganAt: after(3 * time.Second)})
		expect(want...)
		for range 2 * maxHistory {
			w.step(runtime.Progress{Step: runtime.StepWaiting})
			w.step(runtime.Progress{Step: runtime.StepStarting})
		}
		if _, p := w.snapshot(time.Now()); len(p.Steps) != maxHistory {
			t.Errorf("%d steps are kept, want %d", len(p.Steps), maxHistory)
		}
	})
}

// The wait for the bucket is shown until the next attempt makes progress.
func TestBucketWaitIsShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWork(archivingRow, func() {}, nil)
		w.step(runtime.Progress{Step: runtime.StepPacking, Done: 90, Total: 100})
		says := func(want workspace.Progress) {
			t.Helper()
			_, p := w.snapshot(time.Now())
			if d := cmp.Diff(&want, withoutSteps(p)); d != "" {
				t.Errorf("progress (-want +got):\n%s", d)
			}
			time.Sleep(100 * time.Millisecond)
		}
		says(workspace.Progress{Step: "packing", Done: 90, Total: 100})
		w.end(fmt.Errorf("upload: %w", store.ErrUnavailable))
		says(workspace.Progress{Step: "waiting-bucket"})
		w = newWork(archivingRow, func() {}, w)
		says(workspace.Progress{Step: "waiting-bucket"})
		w.step(runtime.Progress{Step: runtime.StepPacking, Done: 10, Total: 100})
		says(workspace.Progress{Step: "packing", Done: 10, Total: 100})
		w.end(errors.New("something else"))
		says(workspace.Progress{Step: "packing", Done: 10, Total: 100})
	})
}

// A transient failure is retried with a backoff of at most 30 s, is shown, and does
// not count towards the deadline of the following steps.
func TestBusyIsShownUntilAttemptProgresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		busy := fmt.Errorf("start a storage job: %w", &runtime.BusyError{Reason: "the home is in use by container reader", Container: "reader"})
		w := newWork(archivingRow, func() {}, nil)
		began := time.Now()
		var waits []time.Duration
		for range 7 {
			w.step(runtime.Progress{Step: runtime.StepCreating})
			w.end(busy)
			ended := time.Now()
			j, p := w.snapshot(ended)
			if f := j.Failure; f == nil || !f.Passing || !f.InUse || !j.Running || !j.ProgressAt.Equal(began) || w.occupies() {
				t.Fatalf("busy: %+v, %+v", j, j.Failure)
			}
			if d := cmp.Diff(&workspace.Progress{Step: "waiting-in-use", Detail: "reader"}, withoutSteps(p)); d != "" {
				t.Fatalf("progress (-want +got):\n%s", d)
			}
			waits = append(waits, w.retryAt.Sub(ended))
			time.Sleep(w.retryAt.Sub(ended))
			if j, _ := w.snapshot(time.Now()); j.Running {
				t.Fatal("not retried in time")
			}
			w = newWork(archivingRow, func() {}, w)
		}
		if diff := cmp.Diff([]time.Duration{retryMin, 2 * retryMin, 4 * retryMin, 8 * retryMin, 16 * retryMin, busyRetryMax, busyRetryMax}, waits); diff != "" {
			t.Error(diff)
		}
		// The next attempt first repeats the same steps, then gets further.
		w.step(runtime.Progress{Step: runtime.StepCreating})
		if j, p := w.snapshot(time.Now()); j.Failure == nil || p.Step != "waiting-in-use" || !w.occupies() {
			t.Errorf("retried: %+v, %+v", j, p)
		}
		w.step(runtime.Progress{Step: runtime.StepPacking})
		if j, p := w.snapshot(time.Now()); j.Failure != nil || p.Step != "packing" || !j.ProgressAt.Equal(time.Now()) {
			t.Errorf("further: %+v, %+v", j, p)
		}
		w.end(errors.New("no such runtime"))
		if j, _ := w.snapshot(time.Now()); j.Failure == nil || j.Failure.Passing {
			t.Errorf("failed: %+v", j.Failure)
		}
	})
}

// If no container is to blame, the truncated message of the runtime is shown.
func TestBusyBackendIsShown(t *testing.T) {
	t.Parallel()
	w := newWork(archivingRow, func() {}, nil)
	w.end(fmt.Errorf("start: %w", &runtime.BusyError{Reason: strings.Repeat("no free address ", 100)}))
	j, p := w.snapshot(time.Now())
	if p == nil || p.Step != runtime.StepWaitingBackend || len(p.Detail) > 210 || !strings.HasPrefix(p.Detail, "no free address") {
		t.Errorf("%+v", p)
	}
	if j.Failure == nil || !j.Failure.Passing || j.Failure.InUse {
		t.Errorf("%+v", j.Failure)
	}
}

// The wait for a node that does not respond, for a node with room, for room in a quota and for a
// volume does not count towards the deadline. Other waits do.
func TestWaitForClusterRestartsDeadline(t *testing.T) {
	t.Parallel()
	for step, restarts := range map[string]bool{
		runtime.StepWaitingNode: true, runtime.StepWaitingRoom: true, runtime.StepWaitingQuota: true, runtime.StepWaitingVolume: true,
		runtime.StepWaitingBackend: false,
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWork(archivingRow, func() {}, nil)
				var waited time.Time
				for range 7 {
					w.end(&runtime.BusyError{Step: step, Reason: "the reason"})
					ended := time.Now()
					j, p := w.snapshot(ended)
					if f := j.Failure; f == nil || !f.Passing || p == nil || p.Step != step || j.PreparedAt.After(ended) != restarts {
						t.Fatalf("%+v, %+v", j, p)
					}
					waited = j.PreparedAt
					time.Sleep(time.Minute)
					w = newWork(archivingRow, func() {}, w)
				}
				back := time.Now()
				w.step(runtime.Progress{Step: runtime.StepCreating})
				if j, _ := w.snapshot(back); j.Failure != nil || !j.PreparedAt.Equal(waited) || waited.IsZero() == restarts {
					t.Errorf("after the wait: %+v", j)
				}
			})
		})
	}
}

// A storage job may wait for a node with room for any time. An archiving occupies a slot while it
// waits. Otherwise there would be a job for each idle home at once. A restore occupies none.
func TestJobWaitsForRoom(t *testing.T) {
	t.Parallel()
	for op, occupies := range map[workspace.Operation]bool{workspace.OpArchiving: true, workspace.OpRestoring: false} {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWork(workspace.Workspace{Operation: op}, func() {}, nil)
				for range 100 {
					w.step(runtime.Progress{Step: runtime.StepWaitingRoom, Detail: "0/3 nodes are available", Uncounted: true})
					time.Sleep(time.Minute)
				}
				j, p := w.snapshot(time.Now())
				if !j.Preparing || time.Since(j.ProgressAt) > time.Minute || p.Detail != "0/3 nodes are available" || w.occupies() != occupies {
					t.Errorf("it waits: %+v, %+v, occupies a slot: %v", j, p, w.occupies())
				}
				w.step(runtime.Progress{Step: runtime.StepPacking})
				if j, _ := w.snapshot(time.Now()); j.Preparing || !j.PreparedAt.Equal(time.Now()) || !w.occupies() {
					t.Errorf("it runs: %+v, occupies a slot: %v", j, w.occupies())
				}
			})
		})
	}
}

func TestChangedHomeIsRepacked(t *testing.T) {
	t.Parallel()
	w := newWork(archivingRow, func() {}, nil)
	for n := 1; n <= maxChanges; n++ {
		w.end(fmt.Errorf("check: %w", errHomeChanged))
		if j, _ := w.snapshot(time.Now()); j.Failure == nil || j.Failure.Passing != (n < maxChanges) {
			t.Errorf("%d: %+v", n, j.Failure)
		}
		w = newWork(archivingRow, func() {}, w)
		if j, _ := w.snapshot(time.Now()); j.Failure != nil {
			t.Errorf("%d: packed again, and %+v", n, j.Failure)
		}
	}
}

// While a pull waits for another one, no deadline runs, and the pull that follows may
// begin from zero.
func TestWaitingPullHasNoDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWork(workspace.Workspace{Operation: workspace.OpStarting}, nil, nil)
		w.step(runtime.Progress{Step: runtime.StepPulling, Done: 90, Total: 100})
		var waited lifecycle.Work
		for range 200 {
			time.Sleep(5 * time.Second)
			w.step(runtime.Progress{Step: runtime.StepWaitingPull})
			waited, _ = w.snapshot(time.Now())
			if !waited.Preparing || waited.Moving || time.Since(waited.ProgressAt) > time.Second {
				t.Fatalf("%+v", waited)
			}
		}
		time.Sleep(time.Minute)
		w.step(runtime.Progress{Step: runtime.StepPulling, Done: 1, Total: 100})
		if j, _ := w.snapshot(time.Now()); !j.Preparing || !j.ProgressAt.After(waited.ProgressAt) {
			t.Errorf("the pull after the wait does not count as progress: %+v", j)
		}
	})
}

// The steps in which an operation has no image yet have the runtime's names.
func TestStepsThatAwaitImage(t *testing.T) {
	t.Parallel()
	for _, step := range []string{runtime.StepPulling, runtime.StepWaitingPull, runtime.StepWaitingBuild, runtime.StepBuildFailed} {
		if !workspace.AwaitsImage(step) {
			t.Errorf("%s does not wait for an image", step)
		}
	}
}
