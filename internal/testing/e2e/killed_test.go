package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/control/reconcile"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker"
	buckets "codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// lives is an installation whose controllers run in this process, one after the other, on
// the same database and the same Docker. Each dies as a server that is killed: what it is
// about to do is not done, and nothing that it has connected to hears of it again.
type lives struct {
	*server  // without a process; it reads homes in the runtime
	db       *fixture.Database
	bucket   *bucket
	owner    workspace.Caller
	storages []string // of the workspaces, in turn
	over     chan struct{}
	// open connects to the runtime and the bucket for one life. cut ends all connections,
	// and refuses new ones.
	open func(log *slog.Logger) (rt runtime.Runtime, archives *buckets.Bucket, run []func(context.Context) error, cut func())
}

// life is one of the controllers.
type life struct {
	die func()

	mu   sync.Mutex
	held map[string]bool // ids of the workspaces that have reached the step at which they are held
}

// newLives returns an installation on a bucket, whose runtime is to be set.
func newLives(t *testing.T, b *bucket, in runtimeState, storages ...string) *lives {
	t.Helper()
	quiet := postgres.Options{Log: slog.New(slog.DiscardHandler)}
	l := &lives{
		server: &server{test: test{t}, home: filepath.Join(scratch(t), "data"), docker: env.docker, runtime: in},
		db:     fixture.NewDatabase(t, quiet), bucket: b, storages: storages, over: make(chan struct{}),
	}
	if err := os.Mkdir(l.home, 0o755); err != nil {
		t.Fatal(err)
	}
	l.owner = l.db.AddUser("ada")
	return l
}

// onDocker opens Docker, through a socket of its own.
func (l *lives) onDocker(t *testing.T) {
	t.Helper()
	installation, err := l.db.DB.Installation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.subnet = dockertest.NewSubnet(t)
	if err := l.subnet.UsedBy(installation); err != nil {
		t.Fatal(err)
	}
	cleanup(t, func() {
		ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
		defer cancel()
		if err := proc.Sweep(ctx, env.docker, installation); err != nil {
			t.Errorf("clean up in Docker: %v", err)
		}
	})
	l.open = func(log *slog.Logger) (runtime.Runtime, *buckets.Bucket, []func(context.Context) error, func()) {
		socket := filepath.Join(scratch(t), "d.sock")
		way := newLink(t, "unix", socket, func() (net.Conn, error) { return dialDocker(env.docker.DaemonHost()) })
		rt, err := docker.New(t.Context(), docker.Config{
			Installation: installation, Host: "unix://" + socket, DataDir: l.home, HelperBinary: env.binary,
			DefaultImage: env.testImage, UIDs: workspace.UIDRange{First: firstUID, Last: lastUID},
			Settings: docker.Settings{Subnet: l.subnet.Prefix, KeepLimits: true}, Log: log,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { rt.Close() })
		cfg := buckets.Config{Installation: installation, Version: "test", Log: log}
		if l.bucket.s3 == nil {
			cfg.Store, cfg.Folder, cfg.HostFolder = store.NewFolder(l.bucket.dir), l.bucket.dir, l.bucket.dir
		} else {
			cfg.Store = fixture.OpenS3(t, l.bucket.s3, "homes/team")
			cfg.SocketDir = filepath.Join(l.home, "run", "bucket")
			cfg.HostSocketDir = cfg.SocketDir
		}
		archives := l.checked(cfg)
		return rt, archives, []func(context.Context) error{archives.Relay}, way.cut
	}
}

func (l *lives) checked(cfg buckets.Config) *buckets.Bucket {
	l.Helper()
	if err := os.MkdirAll(cfg.SocketDir, 0o700); cfg.SocketDir != "" && err != nil {
		l.Fatal(err)
	}
	archives, err := buckets.New(cfg)
	if err == nil {
		err = archives.Check(l.Context(), false)
	}
	if err != nil {
		l.Fatal(err)
	}
	return archives
}

// begin starts a controller. Its operations stop at the step that hold names for their
// workspace, for ever.
func (l *lives) begin(hold func(id, step string) bool) *life {
	l.Helper()
	at, err := url.Parse(l.db.DSN)
	if err != nil {
		l.Fatal(err)
	}
	socket := filepath.Join(at.Query().Get("host"), ".s.PGSQL."+at.Query().Get("port"))
	way := newLink(l.TB, "tcp", "127.0.0.1:0", func() (net.Conn, error) { return net.Dial("unix", socket) })
	at.Host, at.RawQuery = way.address, "sslmode=disable"
	session := postgres.NewController(postgres.NewSession(fixture.Connect(l.TB, at.String())))
	log := slog.New(slog.NewTextHandler(l.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	rt, archives, run, cut := l.open(log)
	policy := lifecycle.DefaultPolicy()
	policy.DeleteGrace = 0
	one := &life{held: map[string]bool{}}
	controller := reconcile.New(reconcile.Config{
		Runtime: rt, Archives: archives, Intents: l.db.DB, Routes: noRoutes{}, Policy: policy, Log: log,
		Settings: reconcile.Settings{
			IdleInterval: 100 * time.Millisecond, ActiveInterval: 100 * time.Millisecond, ActiveFor: time.Second,
			MaxOperations: 256, MaxStorageJobs: 64, UIDs: workspace.UIDRange{First: firstUID, Last: lastUID},
		},
		StopGrace: time.Second,
		Step: func(id workspace.ID, step string) {
			if hold == nil || !hold(string(id), step) {
				return
			}
			one.mu.Lock()
			one.held[string(id)] = true
			one.mu.Unlock()
			<-l.over
		},
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.Context()))
	var group sync.WaitGroup
	var dead atomic.Bool
	for _, f := range append(run, func(ctx context.Context) error { return controller.Run(ctx, session) }) {
		group.Go(func() {
			if err := f(ctx); err != nil && !dead.Load() {
				l.Errorf("a part of the controller ended: %v", err)
			}
		})
	}
	one.die = sync.OnceFunc(func() {
		dead.Store(true)
		way.cut()
		cut()
		cancel()
	})
	l.Cleanup(func() {
		one.die()
		l.letGo()
		group.Wait()
	})
	return one
}

// letGo ends the operations that are held. Their controllers have died.
func (l *lives) letGo() {
	select {
	case <-l.over:
	default:
		close(l.over)
	}
}

type noRoutes struct{}

func (noRoutes) CloseRoute(workspace.ID) {}

func (one *life) holds(id string) bool {
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.held[id]
}

// victim is a workspace whose operation is disturbed at one step: its controller dies, or its
// storage job is killed or removed.
type victim struct {
	id, step, job string
	to            workspace.DesiredState // that starts the operation; "": the workspace is deleted
	home          homeState              // nil: none was created

	once sync.Once
}

// jobSteps are the steps at which a storage job is killed or removed.
var jobSteps = []string{
	"archive.job-started", "archive.job-done", "archive.verified", "archive.stored", "restore.job-started", "restore.job-done", "restore.marked",
}

// disturb is what happens to a victim at a step. It reports whether the controller stops there.
func (l *lives) disturb(v *victim, step string) (stops bool) {
	switch {
	case v.step != step:
		return false
	case v.job == "":
		return true
	}
	v.once.Do(func() {
		kind, _, _ := strings.Cut(step, ".")
		l.runtime.endJob(l.server, kind, v.id, v.job == "removed")
	})
	return false
}

func (l *lives) row(v *victim) (workspace.Workspace, error) {
	return l.db.DB.Workspace(l.Context(), l.owner, workspace.ID(v.id))
}

// request starts a victim's operation.
func (l *lives) request(v *victim, to workspace.DesiredState) {
	l.Helper()
	var err error
	if to == "" {
		_, err = l.db.DB.DeleteWorkspace(l.Context(), l.owner, workspace.ID(v.id), true)
	} else {
		_, err = l.db.DB.PatchWorkspace(l.Context(), l.owner, workspace.ID(v.id), postgres.Patch{Desired: &to, Queue: true})
	}
	if err != nil {
		l.Fatal(err)
	}
}

// reached reports whether a victim is in a state, "" for deleted, and at rest.
func (l *lives) reached(v *victim, state workspace.DesiredState) bool {
	l.Helper()
	row, err := l.row(v)
	if state == "" {
		return workspace.CodeOf(err) == workspace.CodeNotFound
	}
	if err != nil {
		l.Fatal(err)
	}
	return string(row.Phase) == string(state) && row.Operation == workspace.OpNone
}

// await waits for a condition of every victim.
func (l *lives) await(what string, all []*victim, ok func(v *victim) bool) {
	l.Helper()
	left := slices.Clone(all)
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if left = slices.DeleteFunc(left, ok); len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			var b strings.Builder
			for _, v := range left {
				row, err := l.row(v)
				fmt.Fprintf(&b, "\n%s: %s, operation %s, %d failures, %s %s, %v", v.step, row.Phase, row.Operation, row.ErrorCount, row.ErrorReason, row.ErrorMessage, err)
			}
			l.Fatalf("%d of %d workspaces are not %s:%s", len(left), len(all), what, b.String())
		}
	}
}

// add adds the victims, each in the state from which its operation starts.
func (l *lives) add(rng *rand.Rand) (all []*victim) {
	l.Helper()
	for i, step := range slices.Concat(reconcile.Steps(), reconcile.DeleteSteps()) {
		for j, storage := range l.storages {
			if harness.Verifying() || j == i%len(l.storages) {
				all = append(all, l.newVictim(storage, step, ""))
			}
		}
	}
	if harness.Verifying() {
		for _, step := range jobSteps {
			all = append(all, l.newVictim(l.storages[0], step, "killed"), l.newVictim(l.storages[0], step, "removed"))
		}
	}
	filled := slices.DeleteFunc(slices.Clone(all), func(v *victim) bool { return strings.HasPrefix(v.step, "empty.") })
	archived := slices.DeleteFunc(slices.Clone(all), func(v *victim) bool { return v.to != workspace.DesiredStandby })
	quiet := l.begin(func(_, step string) bool { return strings.HasPrefix(step, "empty.") }) // those begin at once
	l.await("in STANDBY", filled, func(v *victim) bool { return l.reached(v, workspace.DesiredStandby) })
	for _, v := range filled {
		fillHome(l.TB, l.homeFolder(v.id), rng)
		v.home = l.readHome(v.id)
	}
	for _, v := range archived {
		l.request(v, workspace.DesiredArchived)
	}
	l.await("ARCHIVED", archived, func(v *victim) bool { return l.reached(v, workspace.DesiredArchived) })
	quiet.die()
	return all
}

func (l *lives) newVictim(storage, step, job string) *victim {
	l.Helper()
	v := &victim{step: step, job: job, to: workspace.DesiredArchived}
	desired := workspace.DesiredStandby
	switch kind, _, _ := strings.Cut(step, "."); kind {
	case "empty":
		desired = workspace.DesiredArchived
	case "restore":
		v.to = workspace.DesiredStandby
	case "delete":
		v.to = ""
	}
	v.id = string(l.db.AddWorkspace(l.owner, strings.TrimSpace(step+" "+storage+" "+job), func(n *postgres.NewWorkspace) {
		n.ImageRef, n.StorageBackend, n.Desired = env.testImage, storage, desired
	}).ID)
	return v
}

// killAtEveryStep lets controllers die with an operation at each step of archives, restores
// and deletions: all of them at once, and some lives in a row at the same step. Until the
// next one begins each home is complete in at least one place, at the end in exactly one.
func (l *lives) killAtEveryStep(times int, rng *rand.Rand) {
	l.Helper()
	all := l.add(rng)
	victims := map[string]*victim{}
	for _, v := range all {
		victims[v.id] = v
		if v.home != nil {
			l.request(v, v.to)
		}
	}
	for n := range times {
		one := l.begin(func(id, step string) bool { return l.disturb(victims[id], step) })
		deaths := 0
		// A life that does not pass the step again completes the operation.
		l.await("at their steps", all, func(v *victim) bool {
			held := one.holds(v.id)
			if held {
				deaths++
			}
			return held || (n > 0 || v.job != "") && l.reached(v, v.to)
		})
		one.die()
		l.Logf("life %d died at %d steps", n+1, deaths)
		for _, v := range all {
			if v.home != nil && v.to != "" {
				l.expectCompleteCopy(l.bucket, v.id, v.home)
			}
		}
	}
	l.begin(nil)
	l.await("as requested", all, func(v *victim) bool { return l.reached(v, v.to) })
	for _, v := range all {
		l.expectCompleted(v)
	}
	for _, v := range all {
		if v.to != "" {
			l.request(v, "")
		}
	}
	for _, v := range all {
		l.awaitRemoved(v.id, "")
	}
}

// expectCompleted checks that a victim's home is complete in exactly one place, and that no
// death counted as a failure.
func (l *lives) expectCompleted(v *victim) {
	l.Helper()
	row, err := l.row(v)
	switch {
	case v.to == "":
		l.expectNoHome(v.id)
		return
	case err != nil:
		l.Fatal(err)
	case row.ErrorCount != 0 || row.ErrorReason != "":
		l.Errorf("a death at %s counted as a failure: %d, %s: %s", v.step, row.ErrorCount, row.ErrorReason, row.ErrorMessage)
	}
	if v.to == workspace.DesiredStandby {
		compareHomes(l.TB, "the home restored after a death at "+v.step, v.home, l.readHome(v.id))
		return
	}
	l.expectNoHome(v.id)
	got, meta, err := l.bucket.unpack(l.TB, row.ArchiveKey)
	if err != nil {
		l.Fatalf("unpack the archive %s after a death at %s: %v", row.ArchiveKey, v.step, err)
	}
	if v.home != nil {
		compareHomes(l.TB, "the archive after a death at "+v.step, v.home, got)
	} else if meta.Entries != 0 {
		l.Errorf("the archive of no home has %d entries", meta.Entries)
	}
}

// The controller dies at every step of archives, restores and deletions. It takes 25 s, for 28
// homes and about as many storage jobs. TestKilledDuringEachOperation kills real servers, TestKubernetes
// does the same as here on a cluster.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, b *bucket, times int) {
		l := newLives(t, b, dockerState{}, workspace.StorageDockerVolume, workspace.StorageLocalDir)
		l.onDocker(t)
		l.killAtEveryStep(times, newRand(t, 1))
	}
	if !harness.Verifying() {
		test(t, folderBucket(t), 1)
		return
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t), 3)
		})
	}
}
