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

// learn archives and restores a workspace undisturbed and returns the steps
// that this takes, each once, in order.
func (f *failing) learn(b *bucket, rng *rand.Rand) (archiving, restoring []string) {
	f.Helper()
	id, home := f.filled("teacher", rng)
	begin := len(f.steps(id))
	f.want(id, "ARCHIVED")
	f.archived(b, id, home)
	archiving = once(f.steps(id)[begin:])
	begin = len(f.steps(id))
	f.want(id, "STANDBY")
	f.restored(id, home)
	restoring = once(f.steps(id)[begin:])
	f.remove(id)
	f.Logf("the steps: %v, %v", archiving, restoring)
	if len(archiving)+len(restoring) < 12 {
		f.Fatalf("%d steps cannot be all: %v, %v", len(archiving)+len(restoring), archiving, restoring)
	}
	return archiving, restoring
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

// victim is a workspace that something happens to at one step.
type victim struct {
	id, ask string
	home    homeState
}

// victims makes a workspace with a home of its own for each step.
func (f *failing) victims(steps []string, rng *rand.Rand) []victim {
	f.Helper()
	out := make([]victim, len(steps))
	seeds := make([]uint64, len(steps))
	for i := range seeds {
		seeds[i] = rng.Uint64()
	}
	f.abreast(len(steps), func(i int, on *server) {
		out[i].id, out[i].home = on.filled(fmt.Sprintf("%02d", i), rand.New(rand.NewPCG(seeds[i], 0)))
	})
	f.sound()
	return out
}

// strike has something happen to each victim at a step of its own, and to none
// of the others.
func (f *failing) strike(victims []victim, steps []string, action string) {
	f.Helper()
	f.set(func() {
		for i := range victims {
			victims[i].ask = ""
			if i < len(steps) {
				victims[i].ask = steps[i] + "@" + victims[i].id
				f.armed[victims[i].ask], f.holds[victims[i].ask] = action, f.heldAt(victims[i].ask)
			}
		}
	})
}

// variants are the pairs of storage and store that a crash is tried on.
func variants(t *testing.T, f func(t *testing.T, b *bucket, storage string)) {
	t.Helper()
	for _, v := range []struct{ storage, store string }{
		{"docker-volume", "folder"}, {"local-dir", "s3"}, {"docker-volume", "s3"}, {"local-dir", "folder"},
	} {
		t.Run(v.storage+" "+v.store, func(t *testing.T) {
			t.Parallel()
			f(t, stores[v.store](t), v.storage)
		})
	}
}

// The server is killed while an operation is at each of its steps, a
// workspace at each, and started again: every home is whole somewhere all the
// while, and in exactly one place in the end.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	variants(t, func(t *testing.T, b *bucket, storage string) {
		rng := seeded(t, 1)
		f := startFailing(t, append(b.settings, "CODEHUB_STORAGE="+storage, "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=0")...)
		archiving, restoring := f.learn(b, rng)
		all := f.victims(make([]string, max(len(archiving), len(restoring))), rng)
		crash := func(steps []string, wish string) {
			f.strike(all, steps, "hold")
			for _, v := range all {
				f.want(v.id, wish)
			}
			for _, v := range all[:len(steps)] {
				f.held(v.ask)
			}
			f.Kill()
			for _, v := range all {
				f.somewhere(b, v.id, v.home)
			}
			f.disarm()
			f.again()
		}
		crash(archiving, "ARCHIVED")
		f.abreast(len(all), func(i int, on *server) {
			w := on.archived(b, all[i].id, all[i].home)
			on.unharmed(w, all[i].ask)
		})
		f.sound()
		crash(restoring, "STANDBY")
		f.abreast(len(all), func(i int, on *server) {
			on.restored(all[i].id, all[i].home)
			w, err := on.api.Get(on.Context(), all[i].id)
			if err != nil {
				on.Fatal(err)
			}
			on.unharmed(w, all[i].ask)
			on.remove(all[i].id)
			on.noHome(all[i].id)
		})
		if cs, vs := f.left(); len(cs)+len(vs) != 0 {
			t.Errorf("left in Docker: containers %v, volumes %v", cs, vs)
		}
	})
}

// unharmed: a crash of the server counts as nobody's failure.
func (s *server) unharmed(w api.Workspace, at string) {
	s.Helper()
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
			f := startFailing(t, append(b.settings, "CODEHUB_DELETE_GRACE=0s")...)
			archiving, restoring := f.learn(b, rng)
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
			f.remove(id)
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
	deadline := time.Now().Add(time.Minute)
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
		archiving, restoring := f.learn(b, rng)
		n := max(len(archiving), len(restoring))
		all := f.victims(make([]string, 2*n), rng)
		both := func(steps []string) {
			f.disarm()
			f.strike(all[:n], steps, "killjob")
			f.strike(all[n:], steps, "removejob")
		}
		both(archiving)
		f.abreast(len(all), func(i int, on *server) {
			on.want(all[i].id, "ARCHIVED")
			on.archived(b, all[i].id, all[i].home)
		})
		f.sound()
		both(restoring)
		f.abreast(len(all), func(i int, on *server) {
			on.want(all[i].id, "STANDBY")
			on.restored(all[i].id, all[i].home)
			on.remove(all[i].id)
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
