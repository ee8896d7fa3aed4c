package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// newLate returns a home for tests with one runtime.
func newLate(t *testing.T, r *Runtime, storage string) *lateHome {
	return &lateHome{T: t, old: r, next: r, storage: storage, id: workspace.ID(uuid.NewString()), objects: t.TempDir()}
}

func TestJobHardening(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	all := []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP"}
	cases := []struct {
		kind   runtime.JobKind
		object bool
		bucket bool
		caps   []string
		mounts map[string]bool // mount point → writable
	}{
		{runtime.JobArchive, true, false, all,
			map[string]bool{runtime.JobHomeDir: false, runtime.JobScratchDir: true, runtime.JobObjectDir: true}},
		{runtime.JobArchive, false, true, all,
			map[string]bool{runtime.JobHomeDir: false, runtime.JobScratchDir: true, runtime.JobBucketDir: false}},
		{runtime.JobRestore, true, true, all,
			map[string]bool{runtime.JobHomeDir: true, runtime.JobObjectDir: false, runtime.JobBucketDir: false}},
		{runtime.JobBackup, true, true, all,
			map[string]bool{runtime.JobHomeDir: false, runtime.JobScratchDir: true, runtime.JobObjectDir: true, runtime.JobBucketDir: false}},
		{runtime.JobDrill, true, true, all,
			map[string]bool{runtime.JobHomeDir: true, runtime.JobObjectDir: false, runtime.JobBucketDir: false}},
	}
	for _, tc := range cases {
		l := newLate(t, r, workspace.StorageDockerVolume)
		l.ok("CreateEmptyVolume", r.CreateEmptyVolume(t.Context(), l.volume("home-1")))
		spec := runtime.JobSpec{
			Workspace: l.id, Claim: "op", Kind: tc.kind, Storage: l.storage, VolumeClaim: "home-1", Key: "key",
			Input: []byte("say the-secret\nexit 0\n"),
		}
		limits := helper.JobLimits()
		switch tc.kind {
		case runtime.JobBackup:
			l.ok("SettleVolume", r.SettleVolume(t.Context(), l.id, "home-1"))
			limits = helper.BackgroundLimits()
		case runtime.JobDrill:
			limits = helper.BackgroundLimits()
			spec.Storage, spec.VolumeClaim = "", ""
		}
		if tc.object {
			spec.ObjectDir = t.TempDir()
		}
		if tc.bucket {
			spec.BucketDir = t.TempDir()
		}
		job := l.runJob(r, spec)
		info, err := r.engine.API.ContainerInspect(t.Context(), job.ID, client.ContainerInspectOptions{})
		check(t, err)
		raw, err := json.Marshal(info.Container)
		if err != nil || bytes.Contains(raw, []byte("the-secret")) {
			t.Errorf("%s: its input can be read from outside: %s, %v", tc.kind, raw, err)
		}
		h := info.Container.HostConfig
		if !info.Container.Config.NetworkDisabled || h.NetworkMode != "none" || !h.ReadonlyRootfs || h.Privileged || h.Memory != limits.Memory || h.MemorySwap != limits.Memory ||
			h.PidsLimit == nil || *h.PidsLimit != limits.Pids || h.CPUShares != helper.JobCPUShares || h.BlkioWeight != limits.BlockWeight && h.BlkioWeight != 0 || !h.RestartPolicy.IsNone() ||
			!slices.Contains(h.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s: host config = %+v", tc.kind, h)
		}
		if diff := cmp.Diff([]string{"ALL"}, normal(h.CapDrop)); diff != "" {
			t.Errorf("%s: dropped (-want +got):\n%s", tc.kind, diff)
		}
		if diff := cmp.Diff(tc.caps, normal(h.CapAdd)); diff != "" {
			t.Errorf("%s: added (-want +got):\n%s", tc.kind, diff)
		}
		mounts := map[string]bool{}
		for _, m := range info.Container.Mounts {
			mounts[m.Destination] = m.RW
		}
		if diff := cmp.Diff(tc.mounts, mounts); diff != "" {
			t.Errorf("%s: mounts (-want +got):\n%s", tc.kind, diff)
		}
	}
}

// A log that Docker interrupts is resumed without repeated lines.
func TestInterruptedJobLogIsResumed(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	e := newFaultProxy(t)
	r := newRuntime(t, func(c *Config) { c.Host = e.host })
	l := newLate(t, r, workspace.StorageDockerVolume)
	l.ok("CreateEmptyVolume", r.CreateEmptyVolume(t.Context(), l.volume("home-1")))
	spec := l.restoring("op", "home-1", "key", "x")
	spec.Input = []byte("count 200\nwait go\ncount 200\nexit 0\n")
	job, err := r.jobs.StartJob(t.Context(), spec, nil)
	l.ok("StartJob", err)
	cuts := 0
	e.fail("/logs", func(w http.ResponseWriter, req *http.Request) {
		cuts++
		if cuts == 4 {
			putFile(t, l.objects, "go")
		}
		out := req.Clone(req.Context())
		out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", "engine"
		res, err := r.real().Do(out)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer res.Body.Close()
		w.Header().Set("Content-Type", res.Header.Get("Content-Type"))
		// Somewhere in a line or its header; later complete.
		if cuts <= 6 {
			_, _ = io.CopyN(w, res.Body, int64(300*cuts+cuts))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = io.Copy(w, res.Body)
	})
	var got, want []string
	for range 2 {
		for i := range 200 {
			want = append(want, fmt.Sprint(i+1))
		}
	}
	code, err := r.jobs.FollowJob(t.Context(), job.ID, func(line []byte) { got = append(got, string(line)) })
	if err != nil || code != 0 {
		t.Fatalf("FollowJob = %d, %v", code, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestFollowJobDuringDockerRestart(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	e := newFaultProxy(t)
	r := newRuntime(t, func(c *Config) { c.Host = e.host })
	l := newLate(t, r, workspace.StorageDockerVolume)
	l.ok("CreateEmptyVolume", r.CreateEmptyVolume(t.Context(), l.volume("home-1")))
	spec := l.restoring("op", "home-1", "key", "x")
	spec.Input = []byte("say begun\nwait go\nexit 0\n")
	job, err := r.jobs.StartJob(t.Context(), spec, nil)
	l.ok("StartJob", err)
	down := func(_ http.ResponseWriter, _ *http.Request) bool { panic(http.ErrAbortHandler) }
	_, err = r.jobs.FollowJob(t.Context(), job.ID, func([]byte) {
		e.fault.Store(&down)
		e.cut()
	})
	if !errors.Is(err, runtime.ErrUnreachable) {
		t.Fatalf("error = %v", err)
	}
	e.fault.Store(nil)
	putFile(t, l.objects, "go")
	var got []string
	code, err := r.jobs.FollowJob(t.Context(), job.ID, func(line []byte) { got = append(got, string(line)) })
	if err != nil || code != 0 || !slices.Equal(got, []string{"begun"}) {
		t.Fatalf("FollowJob = %d, %v, %q", code, err, got)
	}
}

// The server dies after any request of a call, before it receives the response.
// Repeating the call has the same result.
func TestInterruptedCallsCanBeRepeated(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	restored := func(l *lateHome) { l.restore("op-1", "home-1", "key-1") }
	cases := []struct {
		name   string
		before func(l *lateHome)
		call   func(ctx context.Context, l *lateHome) error
		check  func(l *lateHome)
	}{{
		"a restored home is removed",
		func(l *lateHome) { restored(l); l.settle() },
		func(ctx context.Context, l *lateHome) error {
			return l.old.RemoveVolume(ctx, l.id, "home-1", nil)
		},
		func(l *lateHome) { l.claim = "" },
	}, {
		"a restored home is seeded instead",
		restored,
		func(ctx context.Context, l *lateHome) error {
			return l.old.CreateVolume(ctx, l.volume("home-1"), nil)
		},
		func(l *lateHome) {
			if v := l.listed(); !v.Seeded || v.Marker != "" || l.content() != "" {
				l.Fatalf("volume = %+v, content = %q", v, l.content())
			}
		},
	}, {
		"a seeded home is restored instead",
		func(l *lateHome) { l.seed("home-1") },
		func(ctx context.Context, l *lateHome) error {
			job, err := l.old.jobs.StartJob(ctx, l.restoring("op", "home-1", "key", "kept"), nil)
			if err != nil {
				return err
			}
			code, err := l.old.jobs.FollowJob(ctx, job.ID, func([]byte) {})
			if err == nil && code != 0 {
				// Its report says that it has no instructions, and the caller
				// removes it.
				return errors.Join(runtime.ErrUnreachable, l.old.jobs.RemoveJob(ctx, job.ID))
			}
			return err
		},
		func(l *lateHome) {
			if v := l.listed(); v.Seeded || v.Marker != "" || l.content() != "kept" {
				l.Fatalf("volume = %+v, content = %q", v, l.content())
			}
			l.ok("MarkRestored", l.old.MarkRestored(l.Context(), l.id, "home-1", "key"))
		},
	}, {
		"a restored home is marked",
		func(l *lateHome) {
			l.ok("CreateEmptyVolume", l.next.CreateEmptyVolume(l.Context(), l.volume("home-1")))
			l.runJob(l.next, l.restoring("op", "home-1", "key", "kept"))
		},
		func(ctx context.Context, l *lateHome) error {
			return l.old.MarkRestored(ctx, l.id, "home-1", "key")
		},
		func(l *lateHome) {
			if v := l.listed(); v.Marker != "key" {
				l.Fatalf("volume = %+v", v)
			}
		},
	}, {
		"a restored home is settled",
		restored,
		func(ctx context.Context, l *lateHome) error { return l.old.SettleVolume(ctx, l.id, "home-1") },
		func(l *lateHome) {
			if v := l.listed(); v.Marker != "key-1" || v.Seeded {
				l.Fatalf("volume = %+v", v)
			}
		},
	}, {
		"a workspace is started",
		func(l *lateHome) { l.seed("home-1"); l.settle() },
		func(ctx context.Context, l *lateHome) error {
			spec := newHome()
			spec.Workspace, spec.Storage, spec.VolumeClaim, spec.Secret = l.id, l.storage, "home-1", "secret"
			_, err := l.old.StartContainer(ctx, spec, nil)
			return err
		},
		func(l *lateHome) {
			up, err := l.next.Upstream(l.Context(), l.id)
			if err != nil || up.Secret != "secret" {
				l.Fatalf("upstream = %+v, %v", up, err)
			}
			l.ok("RemoveContainer", l.next.RemoveContainer(l.Context(), up.ContainerID, 0))
		},
	}}
	for _, storage := range []string{workspace.StorageDockerVolume, workspace.StorageLocalDir} {
		for _, tc := range cases {
			t.Run(storage+"/"+tc.name, func(t *testing.T) {
				t.Parallel()
				e := newFaultProxy(t)
				next := newRuntime(t, nil)
				old := newRuntime(t, func(c *Config) {
					c.Host, c.Installation, c.DataDir = e.host, next.cfg.Installation, next.cfg.DataDir
				})
				must(t)(old.jobs.Jobs(t.Context()))
				for n := 1; ; n++ {
					l := newLate(t, next, storage)
					l.old, l.claim = old, "home-1"
					tc.before(l)
					cut := cutAfter(e, old, n)
					err := tc.call(t.Context(), l)
					e.fault.Store(nil)
					if err != nil && !errors.Is(err, runtime.ErrUnreachable) {
						t.Fatalf("cut off after request %d: %v", n, err)
					}
					for try := 0; ; try++ {
						err := tc.call(t.Context(), l)
						if err == nil {
							break
						}
						if try == 3 || !errors.Is(err, runtime.ErrUnreachable) {
							t.Fatalf("after a call that was cut off after request %d: %v", n, err)
						}
					}
					tc.check(l)
					l.ok("RemoveVolume", next.RemoveVolume(t.Context(), l.id, "home-1", nil))
					if left := (direct{r: next, storage: storage}).remains(t, l.id); len(left) > 0 {
						t.Fatalf("left behind after request %d: %q", n, left)
					}
					if !cut.Load() {
						return
					}
				}
			})
		}
	}
}

// cutAfter executes the nth request from now on, loses its response, and fails all
// later ones. It reports whether there were that many.
func cutAfter(e *faultProxy, r *Runtime, n int) *atomic.Bool {
	var seen atomic.Int64
	cut := new(atomic.Bool)
	f := func(_ http.ResponseWriter, req *http.Request) bool {
		now := seen.Add(1)
		if now < int64(n) {
			return false
		}
		if now == int64(n) {
			cut.Store(true)
			if req.Header.Get("Upgrade") == "" {
				out := req.Clone(context.Background())
				out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", "engine"
				if res, err := r.real().Do(out); err == nil {
					res.Body.Close()
				}
			}
		}
		panic(http.ErrAbortHandler)
	}
	e.fault.Store(&f)
	return cut
}

// An administrator removes stopped containers to free space.
func TestPrunedHolderIsRecreated(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	l := newLate(t, r, workspace.StorageDockerVolume)
	l.restore("op", "home-1", "key")
	if v := l.listed(); v.Held {
		t.Fatalf("volume that only its job holds = %+v", v)
	}
	l.settle()
	if v := l.listed(); !v.Held {
		t.Fatalf("volume after settling = %+v", v)
	}
	users, err := r.engine.Users(t.Context(), l.id.VolumeName())
	l.ok("users", err)
	for _, u := range users {
		l.ok("discard", r.engine.Discard(t.Context(), u.ID))
	}
	if v := l.listed(); v.Marker != "key" || v.Held {
		t.Fatalf("volume = %+v", v)
	}
	_, err = r.jobs.StartJob(t.Context(), l.restoring("op-late", "home-1", "key-2", "stale"), nil)
	if !errors.Is(err, runtime.ErrConflict) {
		t.Fatalf("StartJob: %v", err)
	}
	l.ok("CreateVolume", r.CreateVolume(t.Context(), l.volume("home-1"), nil))
	l.settle()
	if v := l.listed(); !v.Held {
		t.Fatalf("volume after it was settled again = %+v", v)
	}
	if users, err = r.engine.Users(t.Context(), l.id.VolumeName()); err != nil || len(users) != 1 || users[0].Role != engine.RoleHolder {
		t.Fatalf("users = %+v, %v", users, err)
	}
	l.alive()
}

// A process that was stopped while it changed a home's directory still holds its
// lock.
func TestLockedFolderBlocksRemoval(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	l := newLate(t, r, workspace.StorageLocalDir)
	l.restore("op", "home-1", "key")
	lock, err := os.Open(r.homes.Folder(l.id))
	check(t, err)
	check(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.RemoveVolume(ctx, l.id, "home-1", nil); !errors.Is(err, runtime.ErrUnreachable) {
		t.Fatalf("RemoveVolume under the lock of another process: %v", err)
	}
	check(t, lock.Close())
	l.alive()
}

// The remains of an interrupted removal of a directory block nothing.
func TestInterruptedFolderRemovalIsResumed(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	l := newLate(t, r, workspace.StorageLocalDir)
	l.restore("op", "home-1", "key")
	direct{r: r, storage: l.storage}.halfRemove(t, l.id, "home-1")
	if v := l.listed(); v.Claim != "home-1" || v.Marker != "" || v.Seeded {
		t.Fatalf("a partly removed home is listed as %+v", v)
	}
	if err := r.CreateEmptyVolume(t.Context(), l.volume("home-2")); !errors.Is(err, runtime.ErrVolumeMismatch) {
		t.Fatalf("CreateEmptyVolume: %v", err)
	}
	l.ok("sweep", r.sweep(t.Context()))
	if v := l.listed(); v != (runtime.Volume{}) {
		t.Fatalf("listed: %+v", v)
	}
	l.ok("RemoveJob", r.jobs.RemoveJob(t.Context(), l.jobID()))
	l.restore("op-2", "home-2", "key")
	l.alive()
}

func (l *lateHome) jobID() string {
	l.Helper()
	jobs, err := l.next.jobs.Jobs(l.Context())
	l.ok("Jobs", err)
	for _, j := range jobs {
		if j.Workspace == l.id {
			return j.ID
		}
	}
	l.Fatal("there is no job")
	return ""
}

// An archive job has an empty directory on the file system of the homes, which is
// removed with the job or with the home.
func TestJobScratchIsRemovedWithJobOrHome(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for _, storage := range []string{workspace.StorageDockerVolume, workspace.StorageLocalDir} {
		t.Run(storage, func(t *testing.T) {
			t.Parallel()
			r := newRuntime(t, nil)
			l := newLate(t, r, storage)
			l.ok("CreateEmptyVolume", r.CreateEmptyVolume(t.Context(), l.volume("home-1")))
			spec := runtime.JobSpec{
				Workspace: l.id, Claim: "op", Kind: runtime.JobArchive, Storage: storage, VolumeClaim: "home-1", Key: "key",
				Input: []byte("exit 0\n"), ObjectDir: t.TempDir(),
			}
			for range 2 { // the second replaces what the first has left
				job := l.runJob(r, spec)
				info, err := r.engine.API.ContainerInspect(t.Context(), job.ID, client.ContainerInspectOptions{})
				l.ok("ContainerInspect", err)
				found := map[string]string{}
				for _, m := range info.Container.Mounts {
					found[m.Destination] = m.Source
					if m.Destination == runtime.JobScratchDir && m.Name != "" {
						v, err := r.engine.API.VolumeInspect(t.Context(), m.Name, client.VolumeInspectOptions{})
						l.ok("VolumeInspect", err)
						if !r.engine.Owns(v.Volume.Labels, engine.RoleScratch) {
							t.Errorf("the volume's labels are %v", v.Volume.Labels)
						}
					}
				}
				home, scratch := found[runtime.JobHomeDir], found[runtime.JobScratchDir]
				if scratch == "" || filepath.Dir(filepath.Dir(home)) != filepath.Dir(filepath.Dir(scratch)) && filepath.Dir(home) != filepath.Dir(scratch) {
					t.Errorf("the home is %s and the scratch folder %s", home, scratch)
				}
				l.ok("RemoveJob", r.jobs.RemoveJob(t.Context(), job.ID))
			}
			left, err := r.engine.API.VolumeList(t.Context(), client.VolumeListOptions{Filters: r.engine.Filter(engine.RoleScratch)})
			l.ok("VolumeList", err)
			if len(left.Items) > 0 {
				t.Errorf("remaining volumes: %v", left.Items)
			}
			l.ok("RemoveVolume", r.RemoveVolume(t.Context(), l.id, "home-1", nil))
			if entries, err := os.ReadDir(filepath.Join(r.cfg.DataDir, "homes")); err == nil && len(entries) > 0 {
				t.Errorf("remains of the home: %v", entries)
			}
		})
	}
}
