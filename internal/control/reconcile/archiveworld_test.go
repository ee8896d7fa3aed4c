package reconcile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/archive"
	"codehub/internal/control/reconcile"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/storagejob"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// archives is a real bucket in a folder, with faults.
type archives struct {
	*bucket.Bucket
	folder string
	socket string // of the bucket, for jobs

	free  atomic.Int64 // on the disk of the archives; 0: what really is
	asked atomic.Int32 // how often

	mu     sync.Mutex
	before func(ctx context.Context, op string, id workspace.ID) error // its error is returned by the call
}

var _ reconcile.Archives = (*archives)(nil)

// addArchives adds a bucket and storage jobs that behave like real ones.
func addArchives(w *world) {
	b := fixture.NewBucket(w)
	w.archives = &archives{Bucket: b, folder: b.Folder}
	w.fake.SetJob(realJob)
}

// realJob runs a storage job on a directory with the home's content.
func realJob(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
	return storagejob.Run(ctx, bytes.NewReader(spec.Input), out, storagejob.Dirs{Home: home, Object: spec.ObjectDir})
}

func (a *archives) setBefore(f func(ctx context.Context, op string, id workspace.ID) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.before = f
}

// setDown makes the bucket unavailable.
func (a *archives) setDown(down bool) {
	if !down {
		a.setBefore(nil)
		return
	}
	a.setBefore(func(_ context.Context, op string, _ workspace.ID) error {
		return fmt.Errorf("%s: connection refused: %w", op, store.ErrUnavailable)
	})
}

func (a *archives) enter(ctx context.Context, op string, id workspace.ID) error {
	a.mu.Lock()
	before := a.before
	a.mu.Unlock()
	if before != nil {
		return before(ctx, op, id)
	}
	return nil
}

func (a *archives) State(ctx context.Context, row workspace.Workspace) (lifecycle.Archive, error) {
	if err := a.enter(ctx, "State", row.ID); err != nil {
		return lifecycle.ArchiveUnknown, err
	}
	return a.Bucket.State(ctx, row)
}

func (a *archives) Meta(ctx context.Context, key string) (*archive.Meta, error) {
	if err := a.enter(ctx, "Meta", workspace.ID(bucket.ParseKey(key).Workspace)); err != nil {
		return nil, err
	}
	return a.Bucket.Meta(ctx, key)
}

func (a *archives) ArchiveJob(ctx context.Context, row workspace.Workspace, owner string, spec *runtime.JobSpec) error {
	if err := a.enter(ctx, "ArchiveJob", row.ID); err != nil {
		return err
	}
	spec.BucketDir = a.socket
	return a.Bucket.ArchiveJob(ctx, row, owner, spec)
}

func (a *archives) RestoreJob(ctx context.Context, row workspace.Workspace, meta *archive.Meta, spec *runtime.JobSpec) error {
	if err := a.enter(ctx, "RestoreJob", row.ID); err != nil {
		return err
	}
	spec.BucketDir = a.socket
	return a.Bucket.RestoreJob(ctx, row, meta, spec)
}

func (a *archives) Room() (int64, error) {
	a.asked.Add(1)
	if free := a.free.Load(); free != 0 {
		return free, nil
	}
	return a.Bucket.Room()
}

func (a *archives) Reaches(j runtime.Job) bool { return j.BucketDir == a.socket }

func (a *archives) ReadBack(ctx context.Context, key string, made archive.Stats, progress archive.Progress) (*archive.Meta, error) {
	if err := a.enter(ctx, "ReadBack", workspace.ID(bucket.ParseKey(key).Workspace)); err != nil {
		return nil, err
	}
	return a.Bucket.ReadBack(ctx, key, made, progress)
}

func (a *archives) PutEmpty(ctx context.Context, row workspace.Workspace, owner string) (*archive.Meta, error) {
	if err := a.enter(ctx, "PutEmpty", row.ID); err != nil {
		return nil, err
	}
	return a.Bucket.PutEmpty(ctx, row, owner)
}

// take moves an archive away and returns a function that moves it back.
func (a *archives) take(t *testing.T, key string) (putBack func()) {
	t.Helper()
	from, to := filepath.Join(a.folder, key), filepath.Join(t.TempDir(), "taken")
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.Rename(to, from); err != nil {
			t.Fatal(err)
		}
	}
}

// damage flips one byte in the middle of an archive.
func (a *archives) damage(t *testing.T, key string) {
	t.Helper()
	path := filepath.Join(a.folder, key)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// gate blocks the first executor that reaches a step.
type gate struct {
	at      string
	reached chan struct{} // closed when the step is reached
	open    chan struct{} // closed to let the executor continue
	once    sync.Once
	opened  sync.Once
}

// gate returns a gate that opens at the end of the test at the latest.
func (w *world) gate(at string) *gate {
	g := &gate{at: at, reached: make(chan struct{}), open: make(chan struct{})}
	w.gates = append(w.gates, g)
	return g
}

// hold is a Config.Step.
func (g *gate) hold(_ workspace.ID, step string) {
	if step == g.at {
		g.pass()
	}
}

func (g *gate) pass() {
	g.once.Do(func() {
		close(g.reached)
		<-g.open
	})
}

func (g *gate) letGo() { g.opened.Do(func() { close(g.open) }) }

func (w *world) reached(g *gate) {
	w.Helper()
	select {
	case <-g.reached:
	case <-time.After(patience):
		w.Fatalf("the step %s was never reached", g.at)
	}
}

// filled creates a running workspace with a file in its home.
func (w *world) filled(name, content string) workspace.ID {
	w.Helper()
	id := w.create(name, workspace.DesiredRunning)
	w.awaitPhase(id, workspace.PhaseRunning)
	w.write(id, content)
	return id
}

// archived archives a workspace, and checks that it has an archive and no volume.
func (w *world) archived(id workspace.ID) workspace.Workspace {
	w.Helper()
	w.want(id, workspace.DesiredArchived, false)
	ws := w.awaitPhase(id, workspace.PhaseArchived)
	w.isArchived(ws)
	return ws
}

func (w *world) isArchived(ws workspace.Workspace) {
	w.Helper()
	if _, ok := w.fake.Home(ws.ID); ok {
		w.Error("ARCHIVED, and the volume is still there")
	}
	if ws.Home.State != workspace.HomeAbsent || ws.ArchiveKey == "" || ws.ErrorCount != 0 {
		w.Errorf("archived: home %+v, key %q, errors %d", ws.Home, ws.ArchiveKey, ws.ErrorCount)
	}
	if seen, err := w.archives.State(w.Context(), ws); err != nil || seen != lifecycle.ArchivePresent {
		w.Errorf("the archive: %v, %v", seen, err)
	}
}

// opened starts a workspace and checks the content of its home.
func (w *world) opened(id workspace.ID, content string) workspace.Workspace {
	w.Helper()
	w.want(id, workspace.DesiredRunning, false)
	ws := w.awaitPhase(id, workspace.PhaseRunning)
	w.expect(id, content)
	return ws
}

// keys lists the archives of a workspace in the bucket, including incomplete ones.
func (w *world) keys(id workspace.ID) []string {
	w.Helper()
	list, err := w.archives.List(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	var out []string
	for _, o := range list {
		if o.Parsed.Workspace == string(id) && o.Parsed.Kind == bucket.Home {
			out = append(out, o.Key)
		}
	}
	return out
}

// awaitNoJobs waits until the workspace has no storage job.
func (w *world) awaitNoJobs(id workspace.ID) {
	w.Helper()
	harness.Await(w, patience, "without a storage job", func() []runtime.Job {
		jobs, err := w.fake.Jobs(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		return jobs
	}, func(jobs []runtime.Job) bool {
		return !slices.ContainsFunc(jobs, func(j runtime.Job) bool { return j.Workspace == id })
	})
}

var errNotNow = errors.New("not now")

// awaitStatus waits until a field of the controller's status begins with begins, or
// is empty if begins is.
func (w *world) awaitStatus(c *reconcile.Controller, begins string, of func(reconcile.Status) string) {
	w.Helper()
	harness.Await(w, patience, fmt.Sprintf("the status %q", begins), func() string { return of(c.Status()) }, func(got string) bool {
		return strings.HasPrefix(got, begins) && (begins != "" || got == "")
	})
}

// entries is the number of files and folders in the workspace's archive.
func (w *world) entries(ws workspace.Workspace) int64 {
	w.Helper()
	list, _, err := w.DB.Archives(w.Context(), w.owner, ws.ID, postgres.Page{})
	if err != nil {
		w.Fatal(err)
	}
	for _, a := range list {
		if a.Key == ws.ArchiveKey {
			return a.Entries
		}
	}
	w.Fatalf("the archive %q is not recorded", ws.ArchiveKey)
	return 0
}
