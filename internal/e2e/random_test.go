package e2e

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/archive/archivetest"
	"codehub/internal/harness"
)

// Random lives of workspaces: each is created, changed, archived, restored and
// deleted at random, while servers and storage jobs are killed and the bucket
// is unavailable. After each step the home is compared with the expected
// content. SOAK sets the number of lives; SEED repeats the choices, but not
// their timing.
func TestRandomLives(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	lives := soakRounds(t, 24)
	rng := newRand(t, 14)
	seed := rng.Uint64()
	var next atomic.Int64
	for _, v := range []struct{ storage, store string }{{"docker-volume", "s3"}, {"local-dir", "folder"}} {
		t.Run(v.storage+" "+v.store, func(t *testing.T) {
			t.Parallel()
			b := stores[v.store](t)
			w := newWorld(t, b, dockerState{}, func(endpoint string) []string {
				settings := []string{"CODEHUB_STORAGE=" + v.storage}
				if b.s3 == nil {
					return append(settings, b.settings...)
				}
				return append(settings, b.settingsVia(endpoint)...)
			}, rand.New(rand.NewPCG(seed, uint64(len(v.store)))))
			w.runLives(t, &next, int64(lives), seed)
		})
	}
}

// runLives runs lives, many at the same time, until next exceeds their number, and ends the
// faults.
func (w *world) runLives(t *testing.T, next *atomic.Int64, lives int64, seed uint64) {
	t.Helper()
	w.inParallel(12, func(_ int, on *server) {
		for !t.Failed() {
			n := next.Add(1)
			if n > lives {
				return
			}
			w.runLife(on, n, rand.New(rand.NewPCG(seed, uint64(n))))
		}
	})
	w.stopFaults()
	t.Logf("%d lives, %d kills of the server, %d of jobs, %d outages of the bucket", w.completed.Load(), w.kills.Load(), w.jobKills.Load(), w.outages.Load())
}

// world is a server with workspaces, in which faults are injected.
type world struct {
	*failpointServer
	bucket *bucket
	proxy  *bucketProxy // nil: the bucket is a folder and stays available

	stop, stopped chan struct{}
	steps         []string

	mu    sync.Mutex
	lives map[*life]bool

	completed, kills, jobKills, outages atomic.Int64
}

// life is one workspace and the expected content of its home.
type life struct {
	server  *server
	world   *world
	id      string
	rng     *rand.Rand
	history []string                  // its steps, for the message of a failure
	waits   atomic.Pointer[time.Time] // since when it waits for a state; nil: it does not

	mu       sync.Mutex        // held while the expected content changes
	lastHome homeState         // content at the last time without a container
	added    map[string]string // files that the IDE wrote since then → content
}

// newWorld starts a server in a world, with the settings for its bucket at an endpoint.
func newWorld(t *testing.T, b *bucket, in runtimeState, settings func(endpoint string) []string, rng *rand.Rand) *world {
	w := &world{bucket: b, stop: make(chan struct{}), stopped: make(chan struct{}), lives: map[*life]bool{}}
	endpoint := ""
	if b.s3 != nil {
		w.proxy = newBucketProxy(t, b)
		endpoint = w.proxy.URL
	}
	w.failpointServer = startWithFailpoints(t, append(settings(endpoint), "CODEHUB_DELETE_GRACE=3s", "MAX_RUNNING_PER_USER=0", "CODEHUB_MAX_WORKSPACES_PER_USER=0")...)
	w.runtime = in
	w.test = test{parallelTB{t}} // a Fatal in injectFaults must end its own goroutine only
	m := w.recordSteps(b, rng)
	w.steps = slices.Concat(m.archiving, m.empty, m.restoring)
	go func() {
		defer close(w.stopped)
		w.injectFaults(rng)
	}()
	return w
}

// mostWait is how long a life waits for a state until the faults pause. On a busy machine
// an operation may need longer than the time between two kills.
const mostWait = time.Minute

// injectFaults kills the server and takes the bucket down at random times,
// until stopFaults. It pauses while a life has waited for a state for mostWait.
func (w *world) injectFaults(rng *rand.Rand) {
	for {
		pause := time.Duration(2000+rng.IntN(10000)) * time.Millisecond
		for first := true; first || w.longestWait() > mostWait; first = false {
			select {
			case <-w.stop:
				return
			case <-time.After(pause):
			}
		}
		if w.proxy != nil && rng.IntN(4) == 0 {
			w.outages.Add(1)
			w.proxy.takeDown()
			time.Sleep(time.Duration(rng.IntN(4000)) * time.Millisecond)
			w.proxy.bringUp()
			continue
		}
		if rng.IntN(2) == 0 { // at a step of an operation, if one reaches it in time
			w.arm(fmt.Sprintf("%s:%d", w.steps[rng.IntN(len(w.steps))], 1+rng.IntN(2)), "kill")
			select {
			case <-w.Done():
			case <-time.After(3 * time.Second):
			}
		}
		w.kills.Add(1)
		w.Kill()
		w.disarm()
		w.expectCompleteCopies()
		w.restart()
	}
}

// longestWait returns how long a life has waited for a state.
func (w *world) longestWait() (longest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.lives {
		if since := l.waits.Load(); since != nil {
			longest = max(longest, time.Since(*since))
		}
	}
	return longest
}

// expectCompleteCopies checks, while the server is not running, that no home is
// lost.
func (w *world) expectCompleteCopies() {
	w.mu.Lock()
	all := slices.Collect(maps.Keys(w.lives))
	w.mu.Unlock()
	for _, l := range all {
		if !l.mu.TryLock() {
			continue
		}
		if l.lastHome != nil && len(l.added) == 0 {
			w.expectCompleteCopy(w.bucket, l.id, l.lastHome)
		}
		l.mu.Unlock()
	}
}

func (w *world) stopFaults() {
	close(w.stop)
	<-w.stopped
}

func (w *world) runLife(on *server, n int64, rng *rand.Rand) {
	l := &life{server: on, world: w, rng: rng, added: map[string]string{}}
	name := fmt.Sprintf("life %d", n)
	defer func() {
		if on.Failed() {
			on.Logf("%s (%s): %s", name, l.id, strings.Join(l.history, "; "))
		}
	}()
	l.retry("create", func() error {
		desired := []string{"STANDBY", "STANDBY", "RUNNING", "ARCHIVED"}[rng.IntN(4)]
		made, err := on.api.Create(on.Context(), api.CreateWorkspace{Name: name, DesiredState: &desired})
		if codehub.CodeOf(err) == "name_taken" { // the response to an earlier attempt was lost
			all, lerr := on.api.List(on.Context(), codehub.Filter{Query: name})
			i := slices.IndexFunc(all, func(w api.Workspace) bool { return w.Name == name })
			if lerr != nil || i < 0 {
				return errors.Join(err, lerr)
			}
			made, err = all[i], nil
		}
		l.id = made.ID
		return err
	})
	l.reach("STANDBY")
	l.fill()
	w.mu.Lock()
	w.lives[l] = true
	w.mu.Unlock()
	for range 2 + rng.IntN(4) {
		l.step()
		if on.Failed() {
			return
		}
	}
	w.mu.Lock()
	delete(w.lives, l)
	w.mu.Unlock()
	l.retry("delete", func() error { _, err := on.api.Delete(on.Context(), l.id, true); return err })
	// A server that is killed right after it removed the home leaves the empty
	// volume that records its completion to garbage collection.
	on.awaitRemoved(l.id, "volume ws-"+l.id+"-settled")
	if n := w.completed.Add(1); n%20 == 0 {
		w.Logf("%d lives completed, %d kills", n, w.kills.Load())
	}
}

func (l *life) note(format string, args ...any) {
	l.history = append(l.history, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// retry repeats a request until the server, which may be restarting, answers
// it.
func (l *life) retry(what string, f func() error) {
	l.server.Helper()
	l.note("%s", what)
	deadline := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return
		}
		var e *codehub.Error
		if errors.As(err, &e) && e.Status < 500 || time.Now().After(deadline) {
			l.server.Fatalf("%s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// desiredStates are chosen with equal probability.
var desiredStates = []string{"ARCHIVED", "ARCHIVED", "STANDBY", "RUNNING"}

func (l *life) step() {
	switch l.rng.IntN(8) {
	case 0, 1:
		l.reach("STANDBY")
		l.fill()
		l.reach("ARCHIVED")
	case 2:
		l.reach(desiredStates[l.rng.IntN(len(desiredStates))])
	case 3: // several desired states without waiting
		for range 1 + l.rng.IntN(3) {
			l.setDesired(desiredStates[l.rng.IntN(len(desiredStates))])
			l.pause(1500)
		}
		l.reach(desiredStates[l.rng.IntN(len(desiredStates))])
	case 4:
		l.reach("RUNNING")
		l.write()
		l.reach(desiredStates[l.rng.IntN(len(desiredStates))])
	case 5, 6: // the storage job is killed at a random time
		l.reach([]string{"ARCHIVED", "STANDBY"}[l.rng.IntN(2)])
		w, err := l.server.api.Get(l.server.Context(), l.id)
		target := "ARCHIVED"
		if err == nil && w.Phase == "ARCHIVED" {
			target = "STANDBY"
		}
		l.setDesired(target)
		l.pause(900)
		l.killJob(l.rng.IntN(2) == 0)
		if l.rng.IntN(4) == 0 {
			l.note("cancel")
			_, _ = l.server.api.Cancel(l.server.Context(), l.id)
		}
		l.reach(target)
	case 7:
		l.undelete()
	}
}

// setDesired sets the desired state without waiting for it.
func (l *life) setDesired(desired string) {
	l.server.Helper()
	l.retry("want "+desired, func() error { _, err := l.server.api.Want(l.server.Context(), l.id, desired, true); return err })
}

// reach sets the desired state, waits for it and compares the home.
func (l *life) reach(desired string) {
	l.server.Helper()
	l.setDesired(desired)
	l.awaitReached(desired)
}

func (l *life) awaitReached(desired string) {
	l.server.Helper()
	since := time.Now()
	l.waits.Store(&since)
	defer l.waits.Store(nil)
	w := l.server.withPatience(5*time.Minute).await(l.id, desired, func(w api.Workspace) bool {
		if w.Phase == "ERROR" {
			l.server.Fatalf("in ERROR: %s: %s", str(w.ErrorReason), str(w.ErrorMessage))
		}
		return w.Phase == desired && w.Operation == "NONE" && w.DesiredState == desired && w.NextDesiredState == nil
	})
	l.note("is %s", desired)
	l.check(w)
}

// check compares the home, in the volume or the archive, with the expected
// content.
func (l *life) check(w api.Workspace) {
	l.server.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lastHome == nil {
		return
	}
	var got homeState
	if w.Phase == "ARCHIVED" {
		var err error
		if got, _, err = l.world.bucket.unpack(l.server.TB, *w.ArchiveKey); err != nil {
			l.server.Fatalf("unpack the archive of %s: %v", w.Name, err)
		}
		l.server.expectNoHome(l.id)
	} else {
		got = l.server.readHome(l.id)
	}
	want := withoutRoot(l.lastHome)
	seen := withoutRoot(got)
	for name, content := range l.added {
		if seen[name].SHA256 != digest(content) {
			l.server.Errorf("%s differs from the content that the IDE confirmed: %+v", name, seen[name])
		}
		delete(want, name)
		delete(seen, name)
	}
	if diff := archivetest.Diff(want, seen); diff != "" {
		l.server.Fatalf("the home of %s (%s, %s) differs from the expected content:\n%s", w.Name, l.id, w.Phase, diff)
	}
	if w.Phase != "RUNNING" {
		l.lastHome, l.added = got, map[string]string{}
	}
}

// fill changes the home of a workspace that is in STANDBY and stays there.
func (l *life) fill() {
	l.server.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note("furnish")
	fillHome(l.server.TB, l.server.homeFolder(l.id), l.rng)
	l.lastHome = l.server.readHome(l.id)
}

// write repeats a write through the IDE until the IDE confirms it.
func (l *life) write() {
	l.server.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	name := fmt.Sprintf("ide-%d.txt", l.rng.IntN(4))
	content := strings.Repeat(fmt.Sprint(l.rng.Uint64()), 1+l.rng.IntN(2000))
	l.note("write %s", name)
	deadline := time.Now().Add(patience)
	for {
		status, body := l.server.ide(http.MethodPut, l.id, "/file?path="+name, content)
		if status == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			l.server.Fatalf("the IDE of a running workspace did not confirm a write: %d %s", status, body)
		}
		time.Sleep(50 * time.Millisecond)
	}
	l.added["./"+name] = content
}

func (l *life) pause(most int) {
	time.Sleep(time.Duration(l.rng.IntN(most)) * time.Millisecond)
}

func (l *life) killJob(remove bool) {
	for _, kind := range []string{"archive", "restore"} {
		if l.server.runtime.endJob(l.server, kind, l.id, remove) {
			l.world.jobKills.Add(1)
			l.note("killed its %s job, removed: %v", kind, remove)
		}
	}
}

// undelete deletes the workspace and undeletes it.
func (l *life) undelete() {
	l.server.Helper()
	l.retry("delete", func() error { _, err := l.server.api.Delete(l.server.Context(), l.id, true); return err })
	l.pause(500)
	l.retry("undelete", func() error {
		_, err := l.server.api.Undelete(l.server.Context(), l.id)
		if codehub.CodeOf(err) == "not_deleted" { // the deletion is queued, or the response to an earlier attempt was lost
			return nil
		}
		return err
	})
	l.reach([]string{"STANDBY", "ARCHIVED"}[l.rng.IntN(2)])
}
