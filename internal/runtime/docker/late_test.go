package docker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// A leader that is stopped between any two calls to Docker, and continues after its
// successor has made the home live, must not change it. Each case runs once for
// every request of the stopped call. make test has one case, without the requests that
// change nothing; it removes and restores a home nine times, which takes 20 s or more.

// held stops a call before its nth request.
type held struct {
	mu      sync.Mutex
	n       int
	seen    []string
	reached chan struct{}
	release chan struct{}
}

func (e *faultProxy) hold(n int) *held {
	h := &held{n: n, reached: make(chan struct{}), release: make(chan struct{})}
	f := func(_ http.ResponseWriter, req *http.Request) bool {
		if !harness.Verifying() && (req.Method == http.MethodGet || strings.HasSuffix(req.URL.Path, "/wait")) {
			return false
		}
		h.mu.Lock()
		h.seen = append(h.seen, req.Method+" "+req.URL.Path)
		mine := len(h.seen) == h.n
		h.mu.Unlock()
		if mine {
			close(h.reached)
			<-h.release
		}
		return false
	}
	e.fault.Store(&f)
	return h
}

type lateCase struct {
	name string
	// before prepares the home; late is the call of the stopped leader; meanwhile are the
	// successor's calls.
	before    func(l *lateHome)
	late      func(ctx context.Context, l *lateHome) error
	meanwhile func(l *lateHome)
	after     func(l *lateHome) // checks; nil: the home is live with its content
	folders   bool              // local-dir differs from docker-volume here
}

// lateHome is one home with the stopped leader and its successor.
type lateHome struct {
	*testing.T
	old, next *Runtime
	storage   string
	id        workspace.ID
	claim     string // of the home, according to the successor
	old2      runtime.Job
	started   string // ID of the workspace's container
	objects   string
}

func (l *lateHome) ok(what string, err error) {
	l.Helper()
	if err != nil {
		l.Fatalf("%s: %v", what, err)
	}
}

// soon repeats a call as the controller does: Docker may still remove what an earlier one has
// ended.
func (l *lateHome) soon(what string, call func() error) {
	l.Helper()
	var err error
	harness.Eventually(l, what, func() bool {
		err = call()
		return !errors.Is(err, runtime.ErrBusy)
	})
	l.ok(what, err)
}

func (l *lateHome) volume(claim string) runtime.VolumeSpec {
	return runtime.VolumeSpec{Workspace: l.id, Storage: l.storage, Claim: claim, Image: harness.TestImage()}
}

func (l *lateHome) restoring(op, claim, key, content string) runtime.JobSpec {
	return runtime.JobSpec{
		Workspace: l.id, Claim: op, Kind: runtime.JobRestore, Storage: l.storage, VolumeClaim: claim, Key: key,
		Input: []byte("wipe\nwrite content " + content + "\nexit 0\n"), ObjectDir: l.objects,
	}
}

// restore makes the home live from an archive, as the successor.
func (l *lateHome) restore(op, claim, key string) runtime.Job {
	l.Helper()
	ctx := l.Context()
	l.soon("CreateEmptyVolume", func() error { return l.next.CreateEmptyVolume(ctx, l.volume(claim)) })
	job := l.runJob(l.next, l.restoring(op, claim, key, "kept"))
	l.ok("MarkRestored", l.next.MarkRestored(ctx, l.id, claim, key))
	l.claim = claim
	return job
}

func (l *lateHome) runJob(r *Runtime, spec runtime.JobSpec) runtime.Job {
	l.Helper()
	job, err := r.jobs.StartJob(l.Context(), spec, nil)
	l.ok("StartJob", err)
	code, err := r.jobs.FollowJob(l.Context(), job.ID, func([]byte) {})
	l.ok("FollowJob", err)
	if code != 0 {
		l.Fatalf("the job ended with %d", code)
	}
	return job
}

// removeFirst removes the first home, as the successor. The late call may do the same: while
// a request of one goroutine is held, another goroutine of it goes on.
func (l *lateHome) removeFirst() {
	l.Helper()
	l.soon("RemoveVolume", func() error { return l.next.RemoveVolume(l.Context(), l.id, "home-1", nil) })
}

func (l *lateHome) settle() {
	l.Helper()
	l.ok("SettleVolume", l.next.SettleVolume(l.Context(), l.id, l.claim))
}

// seed makes the home live from the image, with some content.
func (l *lateHome) seed(claim string) {
	l.Helper()
	l.soon("CreateVolume", func() error { return l.next.CreateVolume(l.Context(), l.volume(claim), nil) })
	direct{r: l.next, storage: l.storage}.put(l.T, l.id, "content", "kept")
	l.claim = claim
}

func (l *lateHome) content() string {
	l.Helper()
	for _, f := range (direct{r: l.next, storage: l.storage}).home(l.T, l.id) {
		if f.Path == "content" {
			return f.Content
		}
	}
	return ""
}

func (l *lateHome) listed() runtime.Volume {
	l.Helper()
	list, err := l.next.Volumes(l.Context())
	l.ok("Volumes", err)
	i := slices.IndexFunc(list, func(v runtime.Volume) bool { return v.Workspace == l.id })
	if i < 0 {
		return runtime.Volume{}
	}
	return list[i]
}

// alive checks that the home is unchanged, and can be settled and removed.
func (l *lateHome) alive() {
	l.Helper()
	ctx := l.Context()
	if v := l.listed(); v.Claim != l.claim {
		l.Fatalf("volume = %+v, want claim %s", v, l.claim)
	}
	if got := l.content(); got != "kept" {
		l.Fatalf("content = %q", got)
	}
	l.settle()
	jobs, err := l.next.jobs.Jobs(ctx)
	l.ok("Jobs", err)
	for _, j := range jobs {
		if j.Workspace != l.id {
			continue
		}
		if j.Running {
			l.Fatalf("a job runs: %+v", j)
		}
		l.ok("RemoveJob", l.next.jobs.RemoveJob(ctx, j.ID))
	}
	l.ok("RemoveVolume", l.next.RemoveVolume(ctx, l.id, l.claim, nil))
	if left := (direct{r: l.next, storage: l.storage}).remains(l.T, l.id); len(left) > 0 {
		for _, name := range left {
			v, err := l.next.engine.API.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
			l.Logf("%s: %v, created %s (%v)", name, v.Volume.Labels, v.Volume.CreatedAt, err)
		}
		l.Fatalf("left behind: %q", left)
	}
}

func lateCases() []lateCase {
	removes := func(ctx context.Context, l *lateHome) error {
		return l.old.RemoveVolume(ctx, l.id, "home-1", nil)
	}
	restores := func(ctx context.Context, l *lateHome) error {
		_, err := l.old.jobs.StartJob(ctx, l.restoring("op", "home-1", "key", "stale"), nil)
		return err
	}
	// A task of the stopped leader does not run beside the workspace that its successor starts.
	starts := func(l *lateHome) {
		spec := newHome()
		spec.Workspace, spec.Storage, spec.VolumeClaim = l.id, l.storage, "home-1"
		c, err := l.next.StartContainer(l.Context(), spec, nil)
		l.ok("StartContainer", err)
		l.started = c.ID
	}
	noTask := func(l *lateHome) {
		harness.Eventually(l, "no container of the task is left", func() bool { // a call may be removing it
			tasks, err := l.next.engine.API.ContainerList(l.Context(), client.ContainerListOptions{
				All: true, Filters: client.Filters{}.Add("name", "^/?codehub-(archive|restore|look)-"+string(l.id)),
			})
			l.ok("ContainerList", err)
			for _, task := range tasks.Items {
				if task.State == container.StateRunning {
					l.Fatalf("container %v of the task runs", task.Names)
				}
			}
			return len(tasks.Items) == 0
		})
		l.ok("RemoveContainer", l.next.RemoveContainer(l.Context(), l.started, 0))
		l.alive()
	}
	empty := func(l *lateHome) {
		l.ok("CreateEmptyVolume", l.next.CreateEmptyVolume(l.Context(), l.volume("home-1")))
	}
	return []lateCase{{
		name:   "removes a seeded home that is archived and restored",
		before: func(l *lateHome) { l.seed("home-1"); l.settle() },
		late:   removes,
		meanwhile: func(l *lateHome) {
			l.removeFirst()
			l.restore("op", "home-2", "key")
		},
	}, {
		name: "removes a restored home that is archived, restored and settled", folders: true,
		before: func(l *lateHome) { l.restore("op-1", "home-1", "key-1"); l.settle() },
		late:   removes,
		meanwhile: func(l *lateHome) {
			l.removeFirst()
			job := l.restore("op-2", "home-2", "key-2")
			l.settle()
			l.ok("RemoveJob", l.next.jobs.RemoveJob(l.Context(), job.ID))
		},
	}, {
		name: "restores what is restored", folders: true,
		before: empty, late: restores,
		meanwhile: func(l *lateHome) { l.restore("op", "home-1", "key") },
	}, {
		name:   "restores what is restored and settled, and its job removed",
		before: empty, late: restores,
		meanwhile: func(l *lateHome) {
			job := l.restore("op", "home-1", "key")
			l.settle()
			l.ok("RemoveJob", l.next.jobs.RemoveJob(l.Context(), job.ID))
		},
	}, {
		name:   "restores what is given up and seeded",
		before: empty, late: restores,
		meanwhile: func(l *lateHome) {
			jobs, err := l.next.jobs.Jobs(l.Context())
			l.ok("Jobs", err)
			for _, j := range jobs {
				if j.Workspace == l.id {
					l.ok("RemoveJob", l.next.jobs.RemoveJob(l.Context(), j.ID))
				}
			}
			l.seed("home-1")
			l.settle()
		},
	}, {
		name:   "seeds what is seeded",
		before: func(l *lateHome) {},
		late: func(ctx context.Context, l *lateHome) error {
			return l.old.CreateVolume(ctx, l.volume("home-1"), nil)
		},
		meanwhile: func(l *lateHome) { l.seed("home-1"); l.settle() },
	}, {
		name: "seeds again what is seeded by now", folders: true,
		before: func(l *lateHome) {
			direct{r: l.next, storage: l.storage}.halfSeed(l.T, l.volume("home-1"))
		},
		late: func(ctx context.Context, l *lateHome) error {
			return l.old.CreateVolume(ctx, l.volume("home-1"), nil)
		},
		meanwhile: func(l *lateHome) { l.seed("home-1"); l.settle() },
	}, {
		name:   "removes the job that has restored the home",
		before: func(l *lateHome) { empty(l); l.old2 = l.runJob(l.next, l.restoring("op", "home-1", "key", "kept")) },
		late:   func(ctx context.Context, l *lateHome) error { return l.old.jobs.RemoveJob(ctx, l.old2.ID) },
		meanwhile: func(l *lateHome) {
			l.ok("MarkRestored", l.next.MarkRestored(l.Context(), l.id, "home-1", "key"))
			l.claim = "home-1"
			l.settle()
		},
	}, {
		name:   "settles a home that is archived and restored",
		before: func(l *lateHome) { l.seed("home-1") },
		late:   func(ctx context.Context, l *lateHome) error { return l.old.SettleVolume(ctx, l.id, "home-1") },
		meanwhile: func(l *lateHome) {
			l.removeFirst()
			l.restore("op", "home-2", "key")
		},
	}, {
		name:   "takes the fingerprint of a home that is archived and restored",
		before: func(l *lateHome) { l.seed("home-1"); l.settle() },
		late: func(ctx context.Context, l *lateHome) error {
			_, err := l.old.Fingerprint(ctx, l.id, "home-1", nil)
			return err
		},
		meanwhile: func(l *lateHome) {
			l.removeFirst() // the stopped call's container ends soon
			l.restore("op", "home-2", "key")
		},
	}, {
		name:   "takes the fingerprint of a home whose workspace is started",
		before: func(l *lateHome) { l.seed("home-1"); l.settle() },
		late: func(ctx context.Context, l *lateHome) error {
			_, err := l.old.Fingerprint(ctx, l.id, "home-1", nil)
			return err
		},
		meanwhile: starts, after: noTask,
	}, {
		name:   "archives a home whose workspace is started",
		before: func(l *lateHome) { l.seed("home-1"); l.settle() },
		late: func(ctx context.Context, l *lateHome) error {
			_, err := l.old.jobs.StartJob(ctx, runtime.JobSpec{
				Workspace: l.id, Claim: "op", Kind: runtime.JobArchive, Storage: l.storage, VolumeClaim: "home-1", Key: "key",
				Input: []byte("exit 0\n"), ObjectDir: l.objects,
			}, nil)
			return err
		},
		meanwhile: starts, after: noTask,
	}, {
		name: "marks what another job restores just now", folders: true,
		before: func(l *lateHome) { empty(l); l.old2 = l.runJob(l.next, l.restoring("op-1", "home-1", "key", "first")) },
		late: func(ctx context.Context, l *lateHome) error {
			return l.old.MarkRestored(ctx, l.id, "home-1", "key")
		},
		meanwhile: func(l *lateHome) {
			l.ok("RemoveJob", l.next.jobs.RemoveJob(l.Context(), l.old2.ID))
			jobs, err := l.next.jobs.Jobs(l.Context())
			l.ok("Jobs", err)
			if slices.ContainsFunc(jobs, func(j runtime.Job) bool { return j.Workspace == l.id }) {
				return // it was marked before
			}
			spec := l.restoring("op-2", "home-1", "key", "kept")
			spec.Input = []byte("wipe\nwait go\nwrite content kept\nexit 0\n")
			_, err = l.next.jobs.StartJob(l.Context(), spec, nil)
			l.ok("StartJob", err)
		},
		after: func(l *lateHome) {
			jobs, err := l.next.jobs.Jobs(l.Context())
			l.ok("Jobs", err)
			i := slices.IndexFunc(jobs, func(j runtime.Job) bool { return j.Workspace == l.id })
			l.claim = "home-1"
			if i < 0 || jobs[i].Claim == "op-1" {
				if v := l.listed(); v.Marker != "key" {
					l.Fatalf("volume = %+v", v)
				}
				return
			}
			if v := l.listed(); v.Marker != "" || v.Seeded {
				l.Fatalf("a home that is being filled is listed as %+v", v)
			}
			putFile(l.T, l.objects, "go")
			code, err := l.next.jobs.FollowJob(l.Context(), jobs[i].ID, func([]byte) {})
			if err != nil || code != 0 {
				l.Fatalf("FollowJob = %d, %v", code, err)
			}
			l.ok("MarkRestored", l.next.MarkRestored(l.Context(), l.id, "home-1", "key"))
			l.alive()
		},
	}}
}

func TestFormerLeaderChangesNothing(t *testing.T) {
	t.Parallel()
	storages, cases := []string{workspace.StorageDockerVolume, workspace.StorageLocalDir}, lateCases()
	if !harness.Verifying() {
		storages, cases = storages[:1], cases[1:2]
	}
	for _, storage := range storages {
		for _, tc := range cases {
			if storage == workspace.StorageLocalDir && !tc.folders {
				continue
			}
			t.Run(storage+"/"+tc.name, func(t *testing.T) {
				t.Parallel()
				e, old, next := twoServers(t)
				if _, err := old.jobs.Jobs(t.Context()); err != nil { // the first request negotiates the API version
					t.Fatal(err)
				}
				for n := 1; runLate(t, tc, e, old, next, storage, n); n++ {
					if n > 60 {
						t.Fatal("the call does not end")
					}
				}
			})
		}
	}
}

// runLate stops the call before its nth request. It returns false if the call has
// fewer requests.
func runLate(t *testing.T, tc lateCase, e *faultProxy, old, next *Runtime, storage string, n int) bool {
	t.Helper()
	l := &lateHome{T: t, old: old, next: next, storage: storage, id: workspace.ID(uuid.NewString()), objects: t.TempDir()}
	tc.before(l)
	h := e.hold(n)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- tc.late(ctx, l) }()
	select {
	case <-done:
		e.fault.Store(nil)
		t.Logf("%d requests", n-1)
		return false
	case <-h.reached:
	}
	h.mu.Lock()
	at := fmt.Sprintf("stopped before request %d, %s", n, h.seen[n-1])
	h.mu.Unlock()
	t.Log(at)
	released := sync.OnceFunc(func() { close(h.release) })
	defer released()
	tc.meanwhile(l)
	released()
	err := <-done
	e.fault.Store(nil)
	t.Logf("%s: ended with %v", at, err)
	defer func() {
		if t.Failed() {
			h.mu.Lock()
			defer h.mu.Unlock()
			t.Logf("the late call's requests: %s", strings.Join(h.seen, "\n"))
		}
	}()
	if err != nil && strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
		t.Fatalf("%s: %v", at, err)
	}
	if tc.after != nil {
		tc.after(l)
		return true
	}
	l.alive()
	return true
}

// halfMade leaves a volume whose seeding has not begun.
func (l *lateHome) halfMade(claim string) {
	l.Helper()
	_, err := l.next.engine.API.VolumeCreate(l.Context(), client.VolumeCreateOptions{
		Name: l.id.VolumeName(), Labels: l.next.engine.Labels(engine.RoleHome, l.id, claim),
	})
	l.ok("VolumeCreate", err)
}
