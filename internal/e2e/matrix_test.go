package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/api"
	"codehub/internal/harness"
	"codehub/internal/reconcile"
)

// soaking makes the tests try all combinations (make soak).
var soaking = os.Getenv("SOAK") != ""

// soakRounds returns the number in SOAK, or fallback if it is not set.
func soakRounds(t *testing.T, fallback int) int {
	t.Helper()
	if soaking {
		if _, err := fmt.Sscan(os.Getenv("SOAK"), &fallback); err != nil {
			t.Fatalf("SOAK: %v", err)
		}
	}
	return fallback
}

// newRand returns a generator and logs its seed. The variable SEED repeats the
// choices of an earlier run.
func newRand(t *testing.T, salt uint64) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("SEED"); v != "" {
		if _, err := fmt.Sscan(v, &seed); err != nil {
			t.Fatalf("SEED: %v", err)
		}
	}
	t.Logf("SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, salt))
}

// matrix has the steps of operations at which a server is killed.
type matrix struct{ archiving, empty, restoring []string }

// allSteps returns the steps of archiving, of archiving without a home, and of restoring.
func allSteps() (m matrix) {
	for _, step := range reconcile.Steps() {
		switch kind, _, _ := strings.Cut(step, "."); kind {
		case "archive":
			m.archiving = append(m.archiving, step)
		case "empty":
			m.empty = append(m.empty, step)
		case "restore":
			m.restoring = append(m.restoring, step)
		}
	}
	return m
}

// recordSteps archives and restores a workspace and archives one that was never
// started. It returns the steps that the operations passed, and fails the test
// if a known step is missing.
func (f *failpointServer) recordSteps(b *bucket, rng *rand.Rand) matrix {
	f.Helper()
	id, home := f.createFilled("teacher", rng)
	f.setDesired(id, "ARCHIVED")
	f.awaitArchived(b, id, home)
	f.setDesired(id, "STANDBY")
	f.awaitRestored(id, home)
	f.discard(id)
	emptyID := f.createDesired("nothing", "ARCHIVED")
	f.awaitPhase(emptyID, "ARCHIVED")
	passed := slices.Concat(unique(f.steps(id)), unique(f.steps(emptyID)))
	for _, step := range reconcile.Steps() {
		if !slices.Contains(passed, step) {
			f.Errorf("no operation passed step %s: %v", step, passed)
		}
	}
	f.discard(emptyID)
	m := allSteps()
	if len(m.archiving)+len(m.restoring) < 12 {
		f.Fatalf("only %d steps: %+v", len(m.archiving)+len(m.restoring), m)
	}
	return m
}

func unique(all []string) []string {
	var out []string
	for _, s := range all {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// parallelJobs is the number of homes that a server archives or restores at a
// time.
const parallelJobs = 4

// victim is a workspace whose operation is disturbed at one step.
type victim struct {
	id, step string
	home     homeState
	to       string // desired state that starts the operation
}

func (v victim) failpoint() string { return v.step + "@" + v.id }

// victims creates a workspace for each step: in STANDBY for the steps of
// archiving, ARCHIVED for those of restoring.
func (f *failpointServer) victims(b *bucket, archiving, restoring []string, rng *rand.Rand) (standby, archived []victim) {
	f.Helper()
	all := make([]victim, len(archiving)+len(restoring))
	for i := range all {
		if i < len(archiving) {
			all[i] = victim{step: archiving[i], to: "ARCHIVED"}
		} else {
			all[i] = victim{step: restoring[i-len(archiving)], to: "STANDBY"}
		}
	}
	seeds := make([]uint64, len(all))
	for i := range seeds {
		seeds[i] = rng.Uint64()
	}
	f.inParallel(len(all), func(i int, on *server) {
		v := &all[i]
		v.id, v.home = on.createFilled(fmt.Sprint(i, " ", v.step), rand.New(rand.NewPCG(seeds[i], 0)))
		if v.to == "STANDBY" {
			on.setDesired(v.id, "ARCHIVED")
			on.awaitArchived(b, v.id, v.home)
		}
	})
	f.stopIfFailed()
	return all[:len(archiving)], all[len(archiving):]
}

// awaitVictim waits until a victim is in its desired state and compares its
// home.
func (s *server) awaitVictim(b *bucket, v victim) {
	s.Helper()
	if v.to == "ARCHIVED" {
		s.awaitArchived(b, v.id, v.home)
	} else {
		s.awaitRestored(v.id, v.home)
	}
}

// batch returns the nth part of a list, of size elements.
func batch[T any](all []T, size, n int) []T {
	return all[min(n*size, len(all)):min((n+1)*size, len(all))]
}

// variants runs f for pairs of storage and store. Each storage and each store
// occurs in a pair; the soak runs all pairs.
func variants(t *testing.T, f func(t *testing.T, b *bucket, storage string)) {
	t.Helper()
	for i, v := range []struct{ storage, store string }{
		{"docker-volume", "folder"}, {"local-dir", "s3"}, {"docker-volume", "s3"}, {"local-dir", "folder"},
	} {
		if i >= 2 && !soaking {
			break
		}
		t.Run(v.storage+" "+v.store, func(t *testing.T) {
			t.Parallel()
			f(t, stores[v.store](t), v.storage)
		})
	}
}

// The server is killed with an operation held at each step, and restarted. At
// every time each home is complete in at least one place, at the end in exactly
// one. TestKubernetes does the same on a cluster.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	variants(t, func(t *testing.T, b *bucket, storage string) {
		rng := newRand(t, 1)
		f := startWithFailpoints(t, append(b.settings, "CODEHUB_STORAGE="+storage, "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0")...)
		f.killAtEveryStep(b, f.recordSteps(b, rng), parallelJobs, rng)
		f.expectNothingLeft()
	})
}

// killAtEveryStep kills the server with operations held at up to size steps of each kind at a
// time, until one was held at every step, and at the steps of deletions. It returns how often the server
// was killed.
func (f *failpointServer) killAtEveryStep(b *bucket, m matrix, size int, rng *rand.Rand) (kills int) {
	f.Helper()
	standby, archived := f.victims(b, m.archiving, m.restoring, rng)
	for n := 0; len(batch(standby, size, n))+len(batch(archived, size, n))+len(batch(m.empty, size, n)) > 0; n++ {
		at, empty := slices.Concat(batch(standby, size, n), batch(archived, size, n)), batch(m.empty, size, n)
		for _, v := range at {
			f.arm(v.failpoint(), "hold")
		}
		for _, step := range empty {
			f.arm(step, "hold") // for any workspace
		}
		for _, v := range at {
			f.setDesired(v.id, v.to)
		}
		var empties []string
		for _, step := range empty {
			empties = append(empties, f.createDesired("nothing "+step, "ARCHIVED"))
		}
		for _, v := range at {
			f.awaitHeld(v.failpoint())
		}
		for _, step := range empty {
			f.awaitHeld(step)
		}
		f.Kill()
		kills++
		for _, v := range at {
			f.expectCompleteCopy(b, v.id, v.home)
		}
		f.disarm()
		f.restart()
		f.inParallel(len(at), func(i int, on *server) {
			on.awaitVictim(b, at[i])
			on.expectNoError(at[i].id, at[i].step)
			on.discard(at[i].id)
		})
		f.inParallel(len(empties), func(i int, on *server) {
			on.awaitPhase(empties[i], "ARCHIVED")
			on.expectNoError(empties[i], "a step of archiving without a home")
			on.setDesired(empties[i], "STANDBY")
			on.awaitPhase(empties[i], "STANDBY")
			on.discard(empties[i])
		})
		f.stopIfFailed()
	}
	f.killDuringDeletion(reconcile.DeleteSteps(), rng)
	return kills + 1
}

// killDuringDeletion kills the server while the deletion of a home is held at
// each of these steps.
func (f *failpointServer) killDuringDeletion(steps []string, rng *rand.Rand) {
	f.Helper()
	var ids []string
	for _, step := range steps {
		id, _ := f.createFilled(step, rng)
		ids = append(ids, id)
		f.arm(step+"@"+id, "hold")
		if _, err := f.api.Delete(f.Context(), id, true); err != nil {
			f.Fatal(err)
		}
	}
	for i, step := range steps {
		f.awaitHeld(step + "@" + ids[i])
	}
	f.Kill()
	f.disarm()
	f.restart()
	for _, id := range ids {
		f.awaitGone(id)
		f.expectNoHome(id)
	}
}

// expectNoError checks that a crash of the server is not counted as a failure
// of the workspace.
func (s *server) expectNoError(id, at string) {
	s.Helper()
	w, err := s.api.Get(s.Context(), id)
	if err != nil {
		s.Fatal(err)
	}
	if w.ErrorCount != 0 || w.ErrorReason != nil {
		s.Errorf("a crash or outage at %s counted as a failure: %d, %s: %s", at, w.ErrorCount, str(w.ErrorReason), str(w.ErrorMessage))
	}
}

// As TestKilledAtEveryStep, one step after the other. The server is killed at
// the step again in the next two starts.
func TestKilledAtEveryStepAgain(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for store, open := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			b, rng := open(t), newRand(t, 2)
			// The embedded database keeps running when the server is killed.
			f := startWithFailpoints(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_DATABASE_URL=")...)
			m := f.recordSteps(b, rng)
			if !soaking { // the soak tries all steps
				m.archiving, m.restoring = m.archiving[rng.IntN(len(m.archiving)):][:1], m.restoring[rng.IntN(len(m.restoring)):][:1]
			}
			f.killAgainAtEveryStep(b, m, rng)
		})
	}
}

// killAgainAtEveryStep archives and restores one home for each step. The server is killed
// whenever an operation reaches the step, see killAt. It returns how often the server was killed.
func (f *failpointServer) killAgainAtEveryStep(b *bucket, m matrix, rng *rand.Rand) (kills int) {
	f.Helper()
	id, home := f.createFilled("victim", rng)
	for _, step := range m.archiving {
		kills += f.killAt(b, step, id, home, "ARCHIVED")
		f.awaitArchived(b, id, home)
		f.setDesired(id, "STANDBY")
		f.awaitRestored(id, home)
	}
	for _, step := range m.restoring {
		f.setDesired(id, "ARCHIVED")
		f.awaitArchived(b, id, home)
		kills += f.killAt(b, step, id, home, "STANDBY")
		f.awaitRestored(id, home)
	}
	f.discard(id)
	return kills
}

// killAt sets a desired state. The server is killed whenever an operation
// reaches the step, in three starts; the fourth start is not killed. It returns how often the
// server was killed at the step.
func (f *failpointServer) killAt(b *bucket, step, id string, home homeState, desired string) (kills int) {
	f.Helper()
	f.arm(step, "kill")
	_, _ = f.api.Want(f.Context(), id, desired, true) // the server may be killed before it answers
	f.awaitExit()
	kills++
	f.expectCompleteCopy(b, id, home)
	for range 2 {
		if err := f.Launch(); err != nil {
			f.Fatal(err)
		}
		if !f.exitsBefore(func(w api.Workspace) bool { return w.Phase == desired && w.Operation == "NONE" }, id) {
			f.Kill()
			break
		}
		kills++
		f.expectCompleteCopy(b, id, home)
	}
	f.disarm()
	f.restart()
	f.Logf("%d kills at %s", kills, step)
	return kills
}

// exitsBefore waits until the server has exited or ok returns true. It reports
// whether the server exited.
func (f *failpointServer) exitsBefore(ok func(api.Workspace) bool, id string) (died bool) {
	f.Helper()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		select {
		case <-f.Done():
			return true
		case <-time.After(50 * time.Millisecond):
		}
		if w, err := f.api.Get(f.Context(), id); err == nil && ok(w) {
			return false
		}
	}
	f.Fatal("the server did not exit, and the operation did not complete")
	return false
}

// The container of a storage job is killed or removed while its operation is at
// each step. The job is repeated, and no data is lost.
func TestJobEndedAtEveryStep(t *testing.T) {
	t.Parallel()
	variants(t, func(t *testing.T, b *bucket, storage string) {
		rng := newRand(t, 3)
		f := startWithFailpoints(t, append(b.settings, "CODEHUB_STORAGE="+storage, "CODEHUB_DELETE_GRACE=0s")...)
		m := f.recordSteps(b, rng)
		standby, archived := f.victims(b, slices.Concat(m.archiving, m.archiving), slices.Concat(m.restoring, m.restoring), rng)
		for half, action := range []string{"killjob", "removejob"} {
			for _, v := range slices.Concat(standby[half*len(m.archiving):][:len(m.archiving)], archived[half*len(m.restoring):][:len(m.restoring)]) {
				f.arm(v.failpoint(), action)
			}
		}
		all := slices.Concat(standby, archived)
		f.inParallel(len(all), func(i int, on *server) {
			on.setDesired(all[i].id, all[i].to)
			on.awaitVictim(b, all[i])
			on.discard(all[i].id)
		})
		f.expectNothingLeft()
	})
}

// job returns the container of a workspace's storage job and its start time,
// empty if there is none.
func (s *server) job(kind, id string) (container, started string) {
	s.Helper()
	c, err := s.docker.ContainerInspect(s.Context(), "codehub-"+kind+"-"+id, client.ContainerInspectOptions{})
	if err != nil {
		return "", ""
	}
	return c.Container.ID, c.Container.State.StartedAt
}

// jobStarts records the storage jobs that Docker starts.
type jobStarts struct {
	mu   sync.Mutex
	jobs map[string][]string // container name → ids, in order of their starts
}

func (s *server) countJobs() *jobStarts {
	s.Helper()
	c := &jobStarts{jobs: map[string][]string{}}
	f := client.Filters{}.Add("type", "container").Add("event", "start").Add("label", "codehub.role=job")
	stream := s.docker.Events(s.Context(), client.EventsListOptions{Filters: f})
	go func() {
		for {
			select {
			case <-s.Context().Done():
				return
			case e := <-stream.Messages:
				c.mu.Lock()
				name := strings.TrimPrefix(e.Actor.Attributes["name"], "/")
				c.jobs[name] = append(c.jobs[name], e.Actor.ID)
				c.mu.Unlock()
			case <-stream.Err:
				return
			}
		}
	}()
	return c
}

func (c *jobStarts) of(kind, id string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.jobs["codehub-"+kind+"-"+id])
}
