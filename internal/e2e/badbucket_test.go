package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/harness"
)

// The bucket fails once at each request of an archive and of a restore, with
// each fault, in one workspace for each pair. The operations retry and count no
// failure.
func TestBucketFailsAtEachCall(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	b, rng := s3Bucket(t), newRand(t, 6)
	p := newBucketProxy(t, b)
	s := startQuick(t, append(b.settingsVia(p.URL), "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0")...)

	type faultCase struct {
		id    string
		home  homeState
		nth   int
		fault fault
	}
	var all []faultCase
	add := func(nth int, f fault) {
		id, home := s.createFilled(fmt.Sprint(nth, " ", f), rng)
		all = append(all, faultCase{id, home, nth, f})
	}
	// run makes the nth request of each workspace fail, and reports whether
	// every workspace made that many requests.
	run := func(desired string, check func(on *server, v faultCase)) (reached bool) {
		cases, since := map[string]faultCase{}, map[string]time.Time{}
		for _, v := range all {
			cases[v.id] = v
		}
		p.setFault(func(of string, n int, _ *http.Request) fault {
			v, ok := cases[of]
			switch {
			case ok && n == v.nth:
				since[of] = time.Now()
				return v.fault
			case ok && n > v.nth && v.fault == busy && time.Since(since[of]) < 3*time.Second:
				return busy
			}
			return pass
		})
		reached = true
		s.inParallel(len(all), func(i int, on *server) {
			v := all[i]
			on.setDesired(v.id, desired)
			on.awaitWithoutFailure(v.id, desired)
			if t.Failed() {
				t.Logf("requests of %s, of which number %d had the fault %q:\n%s", v.id, v.nth, v.fault, p.requestLog(v.id))
			}
			check(on, v)
		})
		for _, v := range all {
			if p.requests(v.id) < v.nth {
				reached = false
			}
		}
		return reached
	}
	for round, reached := 0, true; reached; round++ {
		if round == 10 {
			t.Fatal("the number of requests of an archive and a restore has no bound")
		}
		all = nil
		for i := range 8 {
			nth := round*8 + i + 1
			for k, f := range faults {
				if soaking || k == nth%len(faults) || k == (nth+2)%len(faults) {
					add(nth, f)
				}
			}
		}
		archiveReached := run("ARCHIVED", func(on *server, v faultCase) { on.awaitArchived(b, v.id, v.home) })
		s.stopIfFailed()
		restoreReached := run("STANDBY", func(on *server, v faultCase) { on.awaitRestored(v.id, v.home); on.discard(v.id) })
		s.stopIfFailed()
		reached = archiveReached || restoreReached
		t.Logf("%d faults injected, in the first %d requests", len(all), round*8+8)
	}
}

// awaitWithoutFailure waits until a workspace has the phase, and fails the test
// if a failure is counted.
func (s *server) awaitWithoutFailure(id, phase string) {
	s.Helper()
	s.await(id, phase+" without an operation", func(w api.Workspace) bool {
		if w.Phase == "ERROR" || w.ErrorCount != 0 {
			s.Errorf("the bucket's fault was counted as a failure of %s: %s, %d failures, %s: %s", w.Name, w.Phase, w.ErrorCount, str(w.ErrorReason), str(w.ErrorMessage))
			return true
		}
		return w.Phase == phase && w.Operation == "NONE"
	})
}

// While the bucket is unavailable, archives and restores wait, a workspace that
// waits for its archive can be opened, and no workspace is in ERROR.
func TestBucketOutageLosesNothing(t *testing.T) {
	t.Parallel()
	b, rng := s3Bucket(t), newRand(t, 7)
	p := newBucketProxy(t, b)
	s := startQuick(t, append(b.settingsVia(p.URL), "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0")...)
	resting, restingHome := s.createFilled("archived before", rng)
	s.setDesired(resting, "ARCHIVED")
	s.awaitArchived(b, resting, restingHome)
	waiting, waitingHome := s.createFilled("to be archived", rng)
	opened, openedHome := s.createFilled("opened meanwhile", rng)
	stuck, stuckHome := s.createFilled("in the middle of it", rng)

	// The outage begins in the middle of this upload.
	p.setFault(func(of string, _ int, r *http.Request) fault {
		if of == stuck && r.Method == http.MethodPut {
			return hang
		}
		return pass
	})
	s.setDesired(stuck, "ARCHIVED")
	p.awaitHanging(stuck)
	p.setFault(nil)
	p.takeDown()
	down := time.Now()
	s.setDesired(waiting, "ARCHIVED")
	s.setDesired(opened, "ARCHIVED")
	s.setDesired(resting, "STANDBY")
	s.await(opened, "ARCHIVING", func(w api.Workspace) bool { return w.Operation == "ARCHIVING" })
	s.setDesired(opened, "RUNNING")
	s.await(opened, "RUNNING while the bucket is unavailable", func(w api.Workspace) bool { return w.Phase == "RUNNING" && w.Operation == "NONE" })
	s.write(opened, "work during the outage")
	for time.Since(down) < 20*time.Second {
		for _, id := range []string{resting, waiting, opened, stuck} {
			w, err := s.api.Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if w.Phase == "ERROR" || w.ErrorCount != 0 {
				t.Fatalf("%s is %s (%s: %s, %d)", w.Name, w.Phase, str(w.ErrorReason), str(w.ErrorMessage), w.ErrorCount)
			}
		}
		time.Sleep(500 * time.Millisecond)
	}
	for id, home := range map[string]homeState{resting: restingHome, waiting: waitingHome, stuck: stuckHome} {
		s.expectCompleteCopy(b, id, home)
	}
	p.bringUp()
	s.awaitArchived(b, waiting, waitingHome)
	s.awaitArchived(b, stuck, stuckHome)
	s.awaitRestored(resting, restingHome)
	s.expect(opened, "work during the outage")
	s.setDesired(opened, "STANDBY")
	s.awaitPhase(opened, "STANDBY")
	now := s.readHome(opened)
	for name, was := range openedHome {
		if got := now[name]; got.SHA256 != was.SHA256 {
			t.Errorf("file %q of the opened workspace has changed", name)
		}
	}
	for _, id := range []string{resting, waiting, opened, stuck} {
		s.discard(id)
	}
}
