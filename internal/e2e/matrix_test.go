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
	"codehub/internal/reconcile"
)

// long has the tests run what is too much for every day (make soak).
var long = os.Getenv("SOAK") != ""

// seeded is randomness that a failure can be repeated with.
func seeded(t *testing.T, salt uint64) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("SEED"); v != "" {
		if _, err := fmt.Sscan(v, &seed); err != nil {
			t.Fatalf("SEED: %v", err)
		}
	}
	t.Logf("SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, salt))
}

// learn archives and restores a workspace undisturbed, and makes one that is
// archived before it was ever used; all the steps that there are have to be
// passed in that, or the matrix has holes.
func (f *failing) learn(b *bucket, rng *rand.Rand) (archiving, nothing, restoring []string) {
	f.Helper()
	id, home := f.filled("teacher", rng)
	f.want(id, "ARCHIVED")
	f.archived(b, id, home)
	f.want(id, "STANDBY")
	f.restored(id, home)
	f.discard(id)
	empty := f.createDesired("nothing", "ARCHIVED")
	f.awaitPhase(empty, "ARCHIVED")
	passed := slices.Concat(once(f.steps(id)), once(f.steps(empty)))
	for _, step := range reconcile.Steps() {
		if !slices.Contains(passed, step) {
			f.Errorf("step %s was not passed: %v", step, passed)
		}
		switch kind, _, _ := strings.Cut(step, "."); kind {
		case "archive":
			archiving = append(archiving, step)
		case "empty":
			nothing = append(nothing, step)
		case "restore":
			restoring = append(restoring, step)
		}
	}
	f.discard(empty)
	if len(archiving)+len(restoring) < 12 {
		f.Fatalf("%d steps cannot be all: %v, %v", len(archiving)+len(restoring), archiving, restoring)
	}
	return archiving, nothing, restoring
}

func once(all []string) []string {
	var out []string
	for _, s := range all {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// jobsAtOnce is how many homes a server archives at once, and restores.
const jobsAtOnce = 4

// victim is a workspace that something happens to at one step.
type victim struct {
	id, step string
	home     homeState
	to       string // where it is wanted meanwhile
}

func (v victim) ask() string { return v.step + "@" + v.id }

// victims makes a workspace with a home of its own for each step: in STANDBY
// for the steps of archiving, ARCHIVED for those of restoring.
func (f *failing) victims(b *bucket, archiving, restoring []string, rng *rand.Rand) (up, down []victim) {
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
	f.abreast(len(all), func(i int, on *server) {
		v := &all[i]
		v.id, v.home = on.filled(fmt.Sprint(i, " ", v.step), rand.New(rand.NewPCG(seeds[i], 0)))
		if v.to == "STANDBY" {
			on.want(v.id, "ARCHIVED")
			on.archived(b, v.id, v.home)
		}
	})
	f.sound()
	return all[:len(archiving)], all[len(archiving):]
}

// arrived waits until a victim is where it is wanted, whole.
func (s *server) arrived(b *bucket, v victim) {
	s.Helper()
	if v.to == "ARCHIVED" {
		s.archived(b, v.id, v.home)
	} else {
		s.restored(v.id, v.home)
	}
}

// wave is the nth part of a list, of so many as a server works on at once.
func wave[T any](all []T, n int) []T {
	return all[min(n*jobsAtOnce, len(all)):min((n+1)*jobsAtOnce, len(all))]
}

// variants are the pairs of storage and store that a crash is tried on: each
// of either at least once, and all of them in a long run.
func variants(t *testing.T, f func(t *testing.T, b *bucket, storage string)) {
	t.Helper()
	for i, v := range []struct{ storage, store string }{
		{"docker-volume", "folder"}, {"local-dir", "s3"}, {"docker-volume", "s3"}, {"local-dir", "folder"},
	} {
		if i >= 2 && !long {
			break
		}
		t.Run(v.storage+" "+v.store, func(t *testing.T) {
			t.Parallel()
			f(t, stores[v.store](t), v.storage)
		})
	}
}

// The server is killed while operations are at each of their steps, a
// workspace at each, and started again: every home is whole somewhere all the
// while, and in exactly one place in the end.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	variants(t, func(t *testing.T, b *bucket, storage string) {
		rng := seeded(t, 1)
		f := startFailing(t, append(b.settings, "CODEHUB_STORAGE="+storage, "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0")...)
		archiving, nothing, restoring := f.learn(b, rng)
		up, down := f.victims(b, archiving, restoring, rng)
		for n := 0; len(wave(up, n))+len(wave(down, n))+len(wave(nothing, n)) > 0; n++ {
			at := slices.Concat(wave(up, n), wave(down, n))
			for _, v := range at {
				f.arm(v.ask(), "hold")
			}
			for _, step := range wave(nothing, n) {
				f.arm(step, "hold") // by whoever comes by
			}
			for _, v := range at {
				f.want(v.id, v.to)
			}
			var empties []string
			for _, step := range wave(nothing, n) {
				empties = append(empties, f.createDesired("nothing "+step, "ARCHIVED"))
			}
			for _, v := range at {
				f.held(v.ask())
			}
			for _, step := range wave(nothing, n) {
				f.held(step)
			}
			f.Kill()
			for _, v := range at {
				f.somewhere(b, v.id, v.home)
			}
			f.disarm()
			f.again()
			f.abreast(len(at), func(i int, on *server) {
				on.arrived(b, at[i])
				on.unharmed(at[i].id, at[i].step)
				on.discard(at[i].id)
			})
			f.abreast(len(empties), func(i int, on *server) {
				on.awaitPhase(empties[i], "ARCHIVED")
				on.unharmed(empties[i], "one of empty")
				on.want(empties[i], "STANDBY")
				on.awaitPhase(empties[i], "STANDBY")
				on.discard(empties[i])
			})
			f.sound()
		}
		f.deletedInSpite(reconcile.DeleteSteps(), rng)
		if cs, vs := f.left(); len(cs)+len(vs) != 0 {
			t.Errorf("left in Docker: containers %v, volumes %v", cs, vs)
		}
	})
}

// deletedInSpite kills the server while deleted homes are at these steps of
// their removal.
func (f *failing) deletedInSpite(steps []string, rng *rand.Rand) {
	f.Helper()
	var ids []string
	for _, step := range steps {
		id, _ := f.filled(step, rng)
		ids = append(ids, id)
		f.arm(step+"@"+id, "hold")
		if _, err := f.api.Delete(f.Context(), id, true); err != nil {
			f.Fatal(err)
		}
	}
	for i, step := range steps {
		f.held(step + "@" + ids[i])
	}
	f.Kill()
	f.disarm()
	f.again()
	for _, id := range ids {
		f.awaitGone(id)
		f.noHome(id)
	}
}

// unharmed: a crash of the server counts as nobody's failure.
func (s *server) unharmed(id, at string) {
	s.Helper()
	w, err := s.api.Get(s.Context(), id)
	if err != nil {
		s.Fatal(err)
	}
	if w.ErrorCount != 0 || w.ErrorReason != nil {
		s.Errorf("a kill at %s counted as a failure: %d, %s: %s", at, w.ErrorCount, str(w.ErrorReason), str(w.ErrorMessage))
	}
}

// The same one step after the other, and the server dies there again as often
// as it comes by in three starts.
func TestKilledAtEveryStepAgain(t *testing.T) {
	t.Parallel()
	for store, open := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			b, rng := open(t), seeded(t, 2)
			// With the server's own database, which is left behind every time.
			f := startFailing(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_DATABASE_URL=")...)
			archiving, _, restoring := f.learn(b, rng)
			if !long { // make soak does all
				archiving, restoring = archiving[rng.IntN(len(archiving)):][:1], restoring[rng.IntN(len(restoring)):][:1]
			}
			id, home := f.filled("victim", rng)
			for _, step := range archiving {
				f.dieAt(b, step, id, home, "ARCHIVED")
				f.archived(b, id, home)
				f.want(id, "STANDBY")
				f.restored(id, home)
			}
			for _, step := range restoring {
				f.want(id, "ARCHIVED")
				f.archived(b, id, home)
				f.dieAt(b, step, id, home, "STANDBY")
				f.restored(id, home)
			}
			f.discard(id)
		})
	}
}

// dieAt wishes something, and has the server die whenever it comes by a step,
// over three starts; the fourth lives.
func (f *failing) dieAt(b *bucket, step, id string, home homeState, wish string) {
	f.Helper()
	f.arm(step, "kill")
	_, _ = f.api.Want(f.Context(), id, wish, true) // it may die before it has answered
	f.died()
	f.somewhere(b, id, home)
	for range 2 {
		if err := f.Launch(); err != nil {
			f.Fatal(err)
		}
		if !f.diesOr(func(w api.Workspace) bool { return w.Phase == wish && w.Operation == "NONE" }, id) {
			break
		}
		f.somewhere(b, id, home)
	}
	f.disarm()
	f.Kill()
	f.again()
}

// diesOr waits until the server has died, or the workspace is as it should be.
func (f *failing) diesOr(ok func(api.Workspace) bool, id string) (died bool) {
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
	f.Fatal("the server neither died nor went on")
	return false
}

// The job's container is killed, or removed by hand, while its operation is at
// each step: it is done over, and nothing is lost.
func TestJobEndedAtEveryStep(t *testing.T) {
	t.Parallel()
	variants(t, func(t *testing.T, b *bucket, storage string) {
		rng := seeded(t, 3)
		f := startFailing(t, append(b.settings, "CODEHUB_STORAGE="+storage, "CODEHUB_DELETE_GRACE=0s")...)
		archiving, _, restoring := f.learn(b, rng)
		up, down := f.victims(b, slices.Concat(archiving, archiving), slices.Concat(restoring, restoring), rng)
		for half, action := range []string{"killjob", "removejob"} {
			for _, v := range slices.Concat(up[half*len(archiving):][:len(archiving)], down[half*len(restoring):][:len(restoring)]) {
				f.arm(v.ask(), action)
			}
		}
		all := slices.Concat(up, down)
		f.abreast(len(all), func(i int, on *server) {
			on.want(all[i].id, all[i].to)
			on.arrived(b, all[i])
			on.discard(all[i].id)
		})
		if cs, vs := f.left(); len(cs)+len(vs) != 0 {
			t.Errorf("left in Docker: containers %v, volumes %v", cs, vs)
		}
	})
}

// job is the container of a workspace's storage job, with the time at which it
// was started; empty if there is none.
func (s *server) job(kind, id string) (container, started string) {
	s.Helper()
	c, err := s.docker.ContainerInspect(s.Context(), "codehub-"+kind+"-"+id, client.ContainerInspectOptions{})
	if err != nil {
		return "", ""
	}
	return c.Container.ID, c.Container.State.StartedAt
}

// starts counts the storage jobs that the engine starts for workspaces, from
// now on.
type starts struct {
	mu   sync.Mutex
	jobs map[string][]string // name → ids, in order
}

func (s *server) countJobs() *starts {
	s.Helper()
	c := &starts{jobs: map[string][]string{}}
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

func (c *starts) of(kind, id string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.jobs["codehub-"+kind+"-"+id])
}
