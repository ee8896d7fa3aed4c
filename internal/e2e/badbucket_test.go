package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"codehub/api"
)

// The bucket fails at each request that an archive and a restore make, in each
// way, a workspace for each: it costs time, and never counts as a failure.
func TestBucketFailsAtEachCall(t *testing.T) {
	t.Parallel()
	b, rng := s3Bucket(t), seeded(t, 6)
	p := newBucketProxy(t, b)
	s := startQuick(t, append(b.via(p.URL), "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0")...)

	type patient struct {
		id    string
		home  homeState
		nth   int
		fault fault
	}
	var all []patient
	add := func(nth int, f fault) {
		id, home := s.filled(fmt.Sprint(nth, " ", f), rng)
		all = append(all, patient{id, home, nth, f})
	}
	// run has all go wrong once at their nth request, and says whether all have.
	run := func(wish string, check func(on *server, v patient)) (enough bool) {
		by, since := map[string]patient{}, map[string]time.Time{}
		for _, v := range all {
			by[v.id] = v
		}
		p.set(func(of string, n int, _ *http.Request) fault {
			v, ok := by[of]
			switch {
			case ok && n == v.nth:
				since[of] = time.Now()
				return v.fault
			case ok && n > v.nth && v.fault == busy && time.Since(since[of]) < 3*time.Second:
				return busy
			}
			return pass
		})
		enough = true
		s.abreast(len(all), func(i int, on *server) {
			v := all[i]
			on.want(v.id, wish)
			on.patiently(v.id, wish)
			if t.Failed() {
				t.Logf("requests about %s, in which %d was %s:\n%s", v.id, v.nth, v.fault, p.said(v.id))
			}
			check(on, v)
		})
		for _, v := range all {
			if p.requests(v.id) < v.nth {
				enough = false
			}
		}
		return enough
	}
	for wave, reached := 0, true; reached; wave++ {
		if wave == 10 {
			t.Fatal("an archive and a restore make ever more requests")
		}
		all = nil
		for i := range 8 {
			nth := wave*8 + i + 1
			for k, f := range faults {
				if long || k == nth%len(faults) || k == (nth+2)%len(faults) {
					add(nth, f)
				}
			}
		}
		a := run("ARCHIVED", func(on *server, v patient) { on.archived(b, v.id, v.home) })
		s.sound()
		r := run("STANDBY", func(on *server, v patient) { on.restored(v.id, v.home); on.discard(v.id) })
		s.sound()
		reached = a || r
		t.Logf("%d faults; each of the first %d requests had some", len(all), wave*8+8)
	}
}

// patiently waits until a workspace is where it is wanted, and until then
// nothing is held against it.
func (s *server) patiently(id, phase string) {
	s.Helper()
	s.await(id, phase+" and at rest", func(w api.Workspace) bool {
		if w.Phase == "ERROR" || w.ErrorCount != 0 {
			s.Errorf("the bucket's fault is held against %s: %s, %d, %s: %s", w.Name, w.Phase, w.ErrorCount, str(w.ErrorReason), str(w.ErrorMessage))
			return true
		}
		return w.Phase == phase && w.Operation == "NONE"
	})
}

// The bucket is away for a while: archives and restores wait, who waits for an
// archive is let in again, and nobody is in ERROR.
func TestBucketOutageLosesNothing(t *testing.T) {
	t.Parallel()
	b, rng := s3Bucket(t), seeded(t, 7)
	p := newBucketProxy(t, b)
	s := startQuick(t, append(b.via(p.URL), "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0")...)
	resting, restingHome := s.filled("archived before", rng)
	s.want(resting, "ARCHIVED")
	s.archived(b, resting, restingHome)
	waiting, waitingHome := s.filled("to be archived", rng)
	opened, openedHome := s.filled("opened meanwhile", rng)
	stuck, stuckHome := s.filled("in the middle of it", rng)

	// One is caught in the middle of its upload.
	p.set(func(of string, _ int, r *http.Request) fault {
		if of == stuck && r.Method == http.MethodPut {
			return hang
		}
		return pass
	})
	s.want(stuck, "ARCHIVED")
	p.hangs(stuck)
	p.set(nil)
	p.away()
	down := time.Now()
	s.want(waiting, "ARCHIVED")
	s.want(opened, "ARCHIVED")
	s.want(resting, "STANDBY")
	s.await(opened, "being archived", func(w api.Workspace) bool { return w.Operation == "ARCHIVING" })
	s.want(opened, "RUNNING")
	s.await(opened, "open while the bucket is away", func(w api.Workspace) bool { return w.Phase == "RUNNING" && w.Operation == "NONE" })
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
		s.somewhere(b, id, home)
	}
	p.back()
	s.archived(b, waiting, waitingHome)
	s.archived(b, stuck, stuckHome)
	s.restored(resting, restingHome)
	s.expect(opened, "work during the outage")
	s.want(opened, "STANDBY")
	s.awaitPhase(opened, "STANDBY")
	now := s.look(opened)
	for name, was := range openedHome {
		if got := now[name]; got.SHA256 != was.SHA256 {
			t.Errorf("%q of the one that was opened has changed", name)
		}
	}
	for _, id := range []string{resting, waiting, opened, stuck} {
		s.discard(id)
	}
}
