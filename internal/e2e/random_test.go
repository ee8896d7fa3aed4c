package e2e

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/archive/archivetest"
)

// Random lives: workspaces are created, written to, archived, restored, wished
// back and forth and deleted, while servers and jobs are killed and the bucket
// goes away; after each step the home is held against what was put into it.
// SOAK says how many, SEED repeats the choices (if not the moments).
func TestRandomLives(t *testing.T) {
	t.Parallel()
	lives := 24
	if long {
		if _, err := fmt.Sscan(os.Getenv("SOAK"), &lives); err != nil {
			t.Fatalf("SOAK: %v", err)
		}
	}
	rng := seeded(t, 14)
	seed := rng.Uint64()
	var next atomic.Int64
	for _, v := range []struct{ storage, store string }{{"docker-volume", "s3"}, {"local-dir", "folder"}} {
		t.Run(v.storage+" "+v.store, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, v.storage, v.store, rand.New(rand.NewPCG(seed, uint64(len(v.store)))))
			w.abreast(12, func(_ int, on *server) {
				for !t.Failed() {
					n := next.Add(1)
					if n > int64(lives) {
						return
					}
					w.live(on, n, rand.New(rand.NewPCG(seed, uint64(n))))
				}
			})
			w.end()
			t.Logf("%d lives, %d kills of the server, %d of jobs, %d outages of the bucket", w.lived.Load(), w.kills.Load(), w.jobKills.Load(), w.outages.Load())
		})
	}
}

// world is a server to which things happen.
type world struct {
	*failing
	bucket *bucket
	proxy  *bucketProxy // nil: a folder, which does not go away

	stop, stopped chan struct{}
	steps         []string

	mu    sync.Mutex
	lives map[*life]bool

	lived, kills, jobKills, outages atomic.Int64
}

// life is one workspace and what must be in its home.
type life struct {
	on   *server
	w    *world
	id   string
	rng  *rand.Rand
	said []string // what it went through

	mu    sync.Mutex        // held while what must be there is being changed
	home  homeState         // as last seen at rest
	added map[string]string // files that were written since by the IDE → content
}

func newWorld(t *testing.T, storage, store string, rng *rand.Rand) *world {
	b := stores[store](t)
	w := &world{bucket: b, stop: make(chan struct{}), stopped: make(chan struct{}), lives: map[*life]bool{}}
	settings := b.settings
	if b.s3 != nil {
		w.proxy = newBucketProxy(t, b)
		settings = b.via(w.proxy.URL)
	}
	w.failing = startFailing(t, append(settings, "CODEHUB_STORAGE="+storage, "CODEHUB_DELETE_GRACE=3s", "MAX_RUNNING_PER_USER=0")...)
	w.test = test{lane{t}} // what is fatal to the trouble is not to end the test's own goroutine
	archiving, nothing, restoring := w.learn(b, rng)
	w.steps = slices.Concat(archiving, nothing, restoring)
	go func() {
		defer close(w.stopped)
		w.trouble(rng)
	}()
	return w
}

// trouble is what happens to all of them at once.
func (w *world) trouble(rng *rand.Rand) {
	for {
		select {
		case <-w.stop:
			return
		case <-time.After(time.Duration(2000+rng.IntN(10000)) * time.Millisecond):
		}
		if w.proxy != nil && rng.IntN(4) == 0 {
			w.outages.Add(1)
			w.proxy.away()
			time.Sleep(time.Duration(rng.IntN(4000)) * time.Millisecond)
			w.proxy.back()
			continue
		}
		if rng.IntN(2) == 0 { // at a step of somebody's, if one comes by
			w.arm(fmt.Sprintf("%s:%d", w.steps[rng.IntN(len(w.steps))], 1+rng.IntN(2)), "kill")
			select {
			case <-w.Done():
			case <-time.After(3 * time.Second):
			}
		}
		w.kills.Add(1)
		w.Kill()
		w.disarm()
		w.wholeSomewhere()
		w.again()
	}
}

// wholeSomewhere: with nobody there to put anything right.
func (w *world) wholeSomewhere() {
	w.mu.Lock()
	all := slices.Collect(maps.Keys(w.lives))
	w.mu.Unlock()
	for _, l := range all {
		if !l.mu.TryLock() {
			continue
		}
		if l.home != nil && len(l.added) == 0 {
			w.somewhere(w.bucket, l.id, l.home)
		}
		l.mu.Unlock()
	}
}

func (w *world) end() {
	close(w.stop)
	<-w.stopped
}

func (w *world) live(on *server, n int64, rng *rand.Rand) {
	l := &life{on: on, w: w, rng: rng, added: map[string]string{}}
	name := fmt.Sprintf("life %d", n)
	defer func() {
		if on.Failed() {
			on.Logf("%s (%s): %s", name, l.id, strings.Join(l.said, "; "))
		}
	}()
	l.persist("create", func() error {
		desired := []string{"STANDBY", "STANDBY", "RUNNING", "ARCHIVED"}[rng.IntN(4)]
		made, err := on.api.Create(on.Context(), api.CreateWorkspace{Name: name, DesiredState: &desired})
		if codehub.CodeOf(err) == "name_taken" { // the answer to an earlier try was lost
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
	l.wish("STANDBY")
	l.furnish()
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
	l.persist("delete", func() error { _, err := on.api.Delete(on.Context(), l.id, true); return err })
	// A server that is killed right after the home is gone leaves the empty
	// volume that spoke of it to the sweep.
	on.discarded(l.id, "volume ws-"+l.id+"-settled")
	if n := w.lived.Add(1); n%20 == 0 {
		w.Logf("%d lives here so far, %d kills", n, w.kills.Load())
	}
}

func (l *life) note(format string, args ...any) {
	l.said = append(l.said, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// persist repeats what a server that has gone away did not answer.
func (l *life) persist(what string, f func() error) {
	l.on.Helper()
	l.note("%s", what)
	deadline := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return
		}
		var e *codehub.Error
		if errors.As(err, &e) && e.Status < 500 || time.Now().After(deadline) {
			l.on.Fatalf("%s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// wishes are drawn from with equal chances.
var wishes = []string{"ARCHIVED", "ARCHIVED", "STANDBY", "RUNNING"}

func (l *life) step() {
	switch l.rng.IntN(8) {
	case 0, 1:
		l.wish("STANDBY")
		l.furnish()
		l.wish("ARCHIVED")
	case 2:
		l.wish(wishes[l.rng.IntN(len(wishes))])
	case 3: // one wish after the other, without waiting
		for range 1 + l.rng.IntN(3) {
			l.ask(wishes[l.rng.IntN(len(wishes))])
			l.pause(1500)
		}
		l.wish(wishes[l.rng.IntN(len(wishes))])
	case 4:
		l.wish("RUNNING")
		l.write()
		l.wish(wishes[l.rng.IntN(len(wishes))])
	case 5, 6: // the job is killed at some moment
		l.wish([]string{"ARCHIVED", "STANDBY"}[l.rng.IntN(2)])
		w, err := l.on.api.Get(l.on.Context(), l.id)
		target := "ARCHIVED"
		if err == nil && w.Phase == "ARCHIVED" {
			target = "STANDBY"
		}
		l.ask(target)
		l.pause(900)
		l.killJob(l.rng.IntN(2) == 0)
		if l.rng.IntN(4) == 0 {
			l.note("cancel")
			_, _ = l.on.api.Cancel(l.on.Context(), l.id)
		}
		l.wish(target)
	case 7:
		l.undelete()
	}
}

// ask wishes without waiting.
func (l *life) ask(desired string) {
	l.on.Helper()
	l.persist("want "+desired, func() error { _, err := l.on.api.Want(l.on.Context(), l.id, desired, true); return err })
}

// wish wishes, waits and compares.
func (l *life) wish(desired string) {
	l.on.Helper()
	l.ask(desired)
	l.arrive(desired)
}

func (l *life) arrive(desired string) {
	l.on.Helper()
	w := l.on.within(5*time.Minute).await(l.id, "where it is wanted: "+desired, func(w api.Workspace) bool {
		if w.Phase == "ERROR" {
			l.on.Fatalf("in ERROR: %s: %s", str(w.ErrorReason), str(w.ErrorMessage))
		}
		return w.Phase == desired && w.Operation == "NONE" && w.DesiredState == desired && w.NextDesiredState == nil
	})
	l.note("is %s", desired)
	l.check(w)
}

// check holds the home against what must be in it, wherever it is.
func (l *life) check(w api.Workspace) {
	l.on.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.home == nil {
		return
	}
	var got homeState
	if w.Phase == "ARCHIVED" {
		var err error
		if got, _, err = l.w.bucket.unpack(l.on.TB, *w.ArchiveKey); err != nil {
			l.on.Fatalf("the archive of %s: %v", w.Name, err)
		}
		l.on.noHome(l.id)
	} else {
		got = l.on.look(l.id)
	}
	want := withoutRoot(l.home)
	seen := withoutRoot(got)
	for name, content := range l.added {
		if seen[name].SHA256 != digest(content) {
			l.on.Errorf("%s is not as the IDE was told that it was written: %+v", name, seen[name])
		}
		delete(want, name)
		delete(seen, name)
	}
	if diff := archivetest.Diff(want, seen); diff != "" {
		l.on.Fatalf("the home of %s (%s, %s) is not as it was:\n%s", w.Name, l.id, w.Phase, diff)
	}
	if w.Phase != "RUNNING" {
		l.home, l.added = got, map[string]string{}
	}
}

// furnish changes the home of a workspace in STANDBY that nobody wants
// otherwise.
func (l *life) furnish() {
	l.on.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note("furnish")
	furnish(l.on.TB, l.on.folder(l.id), l.rng)
	l.home = l.on.look(l.id)
}

// write has the IDE write, until it has said that it did.
func (l *life) write() {
	l.on.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	name := fmt.Sprintf("ide-%d.txt", l.rng.IntN(4))
	content := strings.Repeat(fmt.Sprint(l.rng.Uint64()), 1+l.rng.IntN(2000))
	l.note("write %s", name)
	deadline := time.Now().Add(patience)
	for {
		status, body := l.on.ide(http.MethodPut, l.id, "/file?path="+name, content)
		if status == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			l.on.Fatalf("the IDE of a running workspace does not write: %d %s", status, body)
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
		name := "codehub-" + kind + "-" + l.id
		var err error
		if remove {
			_, err = l.on.docker.ContainerRemove(l.on.Context(), name, client.ContainerRemoveOptions{Force: true})
		} else {
			_, err = l.on.docker.ContainerKill(l.on.Context(), name, client.ContainerKillOptions{Signal: "KILL"})
		}
		if err == nil {
			l.w.jobKills.Add(1)
			l.note("killed its %s job, removed: %v", kind, remove)
		}
	}
}

// undelete deletes and takes it back.
func (l *life) undelete() {
	l.on.Helper()
	l.persist("delete", func() error { _, err := l.on.api.Delete(l.on.Context(), l.id, true); return err })
	l.pause(500)
	l.persist("undelete", func() error {
		_, err := l.on.api.Undelete(l.on.Context(), l.id)
		if codehub.CodeOf(err) == "not_deleted" { // queued, or the answer to an earlier try was lost
			return nil
		}
		return err
	})
	l.wish([]string{"STANDBY", "ARCHIVED"}[l.rng.IntN(2)])
}
