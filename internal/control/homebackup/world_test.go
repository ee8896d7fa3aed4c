package homebackup_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/control/homebackup"
	"codehub/internal/control/mark"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/storagejob"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) {
	if dirs := os.Getenv(testJob); dirs != "" {
		os.Exit(jobProcess(dirs))
	}
	pgtest.Main(m)
}

const patience = 15 * time.Second

// world is a database, a folder bucket and a runtime whose jobs are real.
type world struct {
	*testing.T
	*fixture.Database
	fake   *runtimetest.Fake
	bucket *bucket.Bucket
	owner  workspace.Caller
	health health.Monitor
	cfg    homebackup.Config

	mu     sync.Mutex
	before func(ctx context.Context, spec runtime.JobSpec) // called by each job when it begins
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, Database: fixture.NewDatabase(t, postgres.Options{Log: slog.New(slog.DiscardHandler)}), fake: runtimetest.NewFake()}
	id, err := w.DB.Installation(t.Context())
	check(t, err)
	w.bucket = fixture.OpenBucket(t, fixture.NewFolder(t), id)
	check(t, w.bucket.Check(t.Context(), false))
	t.Cleanup(func() {
		if err := w.fake.Close(); err != nil {
			t.Error(err)
		}
	})
	w.fake.SetJob(func(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
		w.mu.Lock()
		before := w.before
		w.mu.Unlock()
		if before != nil {
			before(ctx, spec)
		}
		return storagejob.Run(ctx, bytes.NewReader(spec.Input), out, storagejob.Dirs{Home: home, Object: spec.ObjectDir})
	})
	w.owner = w.AddUser("ada")
	w.cfg = homebackup.Config{
		Schedule: homebackup.Schedule{Interval: time.Hour, Keep: "24h,7d,4w,6m"},
		Runtime:  w.fake, Bucket: w.bucket, Conditions: &w.health, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Tick: 30 * time.Millisecond, Tidy: 30 * time.Millisecond, Collect: time.Nanosecond, DeleteGrace: time.Hour,
	}
	return w
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) setBefore(f func(ctx context.Context, spec runtime.JobSpec)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before = f
}

// lead runs the runner until the test ends or the returned function is called.
func (w *world) lead() (r *homebackup.Runner, stop func()) {
	w.Helper()
	r = homebackup.NewRunner(w.cfg)
	ctrl := w.Controller()
	check(w, mark.New(mark.Config{Runtime: w.fake, Bucket: w.bucket, Log: slog.New(slog.DiscardHandler), Watch: time.Millisecond}).Move(w.Context(), ctrl))
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, ctrl) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("the runner ended: %v", err)
		}
	})
	w.Cleanup(stop)
	return r, stop
}

// home creates a running workspace with a home that has a file, and was created two hours ago.
func (w *world) home(name, content string) workspace.Workspace {
	w.Helper()
	ws := w.AddWorkspace(w.owner, name)
	spec := runtime.VolumeSpec{Workspace: ws.ID, Storage: workspace.StorageDockerVolume, Claim: "home", Image: runtimetest.DefaultImage}
	check(w, w.fake.CreateVolume(w.Context(), spec, func(runtime.Progress) {}))
	check(w, w.fake.SettleVolume(w.Context(), ws.ID, "home"))
	w.write(ws.ID, content)
	w.Change(`UPDATE workspaces SET phase = 'RUNNING', operation = 'NONE', op_id = NULL, home_ctx = '{"state": "live", "claim": "home"}',
		desired_state = 'RUNNING', created_at = now() - interval '2 hours', conditions = $2 WHERE id = $1`, ws.ID,
		`{"infra.container_ready": {"status": "True", "reason": "Ready"}, "storage.volume_ready": {"status": "True", "reason": "Ready"}}`)
	return w.row(ws.ID)
}

func (w *world) write(id workspace.ID, content string) {
	w.Helper()
	check(w, w.fake.Edit(id, func(folder string) error {
		return os.WriteFile(filepath.Join(folder, "notes.txt"), []byte(content), 0o600)
	}))
}

func (w *world) row(id workspace.ID) workspace.Workspace {
	w.Helper()
	ws, err := w.DB.Workspace(w.Context(), w.owner, id)
	check(w, err)
	return ws
}

// pass lets time pass: it makes all times of backups older by d.
func (w *world) pass(d time.Duration) {
	w.Exec(`UPDATE home_backups SET created_at = created_at - $1::interval, begun_at = begun_at - $1::interval, ended_at = ended_at - $1::interval,
		unchanged_at = unchanged_at - $1::interval, verified_at = verified_at - $1::interval, expired_at = expired_at - $1::interval`, d)
}

// request adds a request, as the API does.
func (w *world) request(id workspace.ID) {
	w.Exec(`INSERT INTO home_backups (id, workspace_id, cause, note) VALUES (gen_random_uuid(), $1, 'request', 'note')`, id)
}

// backups lists state and cause of the backups of a workspace, the oldest first.
func (w *world) backups(id workspace.ID) string {
	w.Helper()
	return fixture.Query[string](w, `SELECT coalesce(string_agg(state || ' ' || cause, ', ' ORDER BY created_at), '') FROM home_backups WHERE workspace_id = $1`, id)
}

func (w *world) await(id workspace.ID, want string) {
	w.Helper()
	harness.Await(w, patience, want, func() string { return w.backups(id) }, func(got string) bool { return got == want })
}

// keys lists the manifests and packs of a workspace.
func (w *world) keys(id workspace.ID) (manifests, packs []string) {
	w.Helper()
	list, err := w.bucket.HomeBackups(context.WithoutCancel(w.Context()), id)
	check(w, err)
	for _, o := range list {
		if o.Parsed.Kind == bucket.Manifest {
			manifests = append(manifests, o.Key)
		} else {
			packs = append(packs, o.Key)
		}
	}
	return manifests, packs
}

// age makes the objects in the bucket older.
func (w *world) age(d time.Duration) {
	w.Helper()
	at := time.Now().Add(-d)
	check(w, filepath.Walk(w.bucket.Folder, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			err = os.Chtimes(path, at, at)
		}
		return err
	}))
}
