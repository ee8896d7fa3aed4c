package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/client"

	"codehub/internal/archive"
	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/homequota"
	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/workspace"
)

// limitedKinds are the kinds of homes with a limit, each with a runtime that makes them.
func limitedKinds(t *testing.T, test func(t *testing.T, r *Runtime, next func() *Runtime)) {
	for _, kind := range []homequota.Kind{homequota.Btrfs, homequota.Image} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			data := t.TempDir()
			if kind == homequota.Btrfs {
				data = dockertest.Btrfs(t, true)
			}
			conditions := &health.Monitor{}
			r := newRuntime(t, func(c *Config) { c.DataDir, c.HomeQuota, c.Conditions = data, string(kind), conditions })
			if err := conditions.Err("home-quota"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unmountHomes(t, data) })
			next := func() *Runtime {
				cfg := r.cfg
				other, err := New(t.Context(), cfg)
				check(t, err)
				t.Cleanup(func() { other.Close() })
				return other
			}
			test(t, r, next)
		})
	}
}

// unmountHomes unmounts what a test has left mounted.
func unmountHomes(t *testing.T, data string) {
	folders, err := filepath.Glob(filepath.Join(data, "homes", "*"))
	if err != nil {
		t.Error(err)
	}
	for _, f := range folders {
		if err := homequota.Remove(f); err != nil {
			t.Error(err)
		}
	}
}

const (
	small = int64(64) << 20
	large = int64(160) << 20
)

// fill writes a file through the home of the workspace's container, and returns what dd says.
func fill(t *testing.T, r *Runtime, id workspace.ID, name string, mib int) (string, error) {
	t.Helper()
	c, err := r.engine.API.ContainerInspect(t.Context(), id.DockerName(), client.ContainerInspectOptions{})
	check(t, err)
	path := fmt.Sprintf("/proc/%d/root%s/%s", c.Container.State.Pid, runtime.HomeDir, name)
	out, err := exec.Command("dd", "if=/dev/urandom", "of="+path, "bs=1M", fmt.Sprintf("count=%d", mib), "conv=fsync").CombinedOutput()
	return string(out), err
}

func startLimited(t *testing.T, r *Runtime, disk int64) runtime.ContainerSpec {
	t.Helper()
	spec := newHome()
	spec.Storage, spec.Size.Disk = workspace.StorageLocalDir, disk
	volume := runtime.VolumeSpec{Workspace: spec.Workspace, Storage: spec.Storage, Claim: spec.VolumeClaim, Image: spec.Image, Disk: disk}
	check(t, r.CreateVolume(t.Context(), volume, nil))
	restart(t, r, spec)
	return spec
}

// restart starts the workspace's container again, after its home was given to its uid.
func restart(t *testing.T, r *Runtime, spec runtime.ContainerSpec) {
	t.Helper()
	check(t, r.Prepare(t.Context()))
	own := runtime.OwnSpec{Workspace: spec.Workspace, VolumeClaim: spec.VolumeClaim, UID: spec.UID, From: []uint32{0, workspace.ArchivedUID}}
	check(t, r.OwnHome(t.Context(), own, nil))
	must(t)(r.StartContainer(t.Context(), spec, nil))
}

func stop(t *testing.T, r *Runtime, spec runtime.ContainerSpec) {
	t.Helper()
	list, err := r.Containers(t.Context())
	check(t, err)
	for _, c := range list {
		if c.Workspace == spec.Workspace {
			check(t, r.RemoveContainer(t.Context(), c.ID, 0))
		}
	}
}

func limitOf(t *testing.T, r *Runtime, id workspace.ID) int64 {
	t.Helper()
	list, err := r.Volumes(t.Context())
	check(t, err)
	i := slices.IndexFunc(list, func(v runtime.Volume) bool { return v.Workspace == id })
	if i < 0 {
		t.Fatal("the home is gone")
	}
	return list[i].Limit
}

// A workspace that fills its home gets an error, its neighbour notices nothing, and a larger size
// gives it more from the next start on. After a restart of the machine the home is whole. Its
// archive is that of a home in a plain folder, and it is removed without a trace.
func TestLimitedHomes(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	limitedKinds(t, func(t *testing.T, r *Runtime, next func() *Runtime) {
		full, neighbour := startLimited(t, r, small), startLimited(t, r, small)
		id := full.Workspace
		out, err := fill(t, r, id, "large", 200)
		if err == nil || !strings.Contains(out, "No space left") && !strings.Contains(out, "quota exceeded") {
			t.Errorf("200 MiB in a home of 64 MiB: %v: %s", err, out)
		}
		if out, err := fill(t, r, neighbour.Workspace, "fits", 20); err != nil {
			t.Errorf("the neighbour: %v: %s", err, out)
		}
		if size, known, err := r.HomeSize(t.Context(), id); err != nil || !known || size < 40<<20 || size > small+16<<20 {
			t.Errorf("the full home is measured with %d bytes: %v", size, err)
		}
		stop(t, r, full)
		full.Size.Disk, full.Claim = large, "start-2"
		other := next() // a server that was started in the meantime
		if n := limitOf(t, other, id); n != small {
			t.Errorf("the limit is %d, want %d", n, small)
		}
		restart(t, other, full)
		if n := limitOf(t, other, id); n != large {
			t.Errorf("the limit is %d, want %d", n, large)
		}
		if out, err := fill(t, other, id, "more", 50); err != nil {
			t.Errorf("50 MiB more in a home of 160 MiB: %v: %s", err, out)
		}
		stop(t, other, full)
		stop(t, other, neighbour)

		before := packed(t, r.homes.Path(id))
		unmountHomes(t, r.cfg.DataDir)
		other = next()
		if n := limitOf(t, other, id); n != large {
			t.Errorf("the limit is %d after a restart of the machine, want %d", n, large)
		}
		must(t)(other.Fingerprint(t.Context(), id, full.VolumeClaim, nil))
		if packed(t, other.homes.Path(id)) != before {
			t.Error("the home has changed")
		}
		if slices.Contains(entriesOf(t, other.homes.Path(id)), "lost+found") {
			t.Error("the home has a lost+found")
		}
		restored := newHome()
		volume := runtime.VolumeSpec{Workspace: restored.Workspace, Storage: workspace.StorageLocalDir, Claim: restored.VolumeClaim, Disk: large}
		check(t, other.CreateEmptyVolume(t.Context(), volume))
		want := archivetest.Snapshot(t, other.homes.Path(id))
		for kind, to := range map[string]string{"a limited home": other.homes.Path(restored.Workspace), "a plain folder": t.TempDir()} {
			unpack(t, other.homes.Path(id), to)
			if diff := cmp.Diff(want, archivetest.Snapshot(t, to)); diff != "" {
				t.Errorf("the home has changed by its restore to %s:\n%s", kind, diff)
			}
		}
		for _, spec := range []runtime.ContainerSpec{full, neighbour, restored} {
			check(t, other.RemoveVolume(t.Context(), spec.Workspace, spec.VolumeClaim, nil))
			if _, err := os.Lstat(other.homes.Folder(spec.Workspace)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the folder of a removed home: %v", err)
			}
		}
	})
}

// A backup opens a home that is not mounted, and keeps neither another limit nor the removal waiting,
// for which a home in an image is unmounted.
func TestBackupOfLimitedHome(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	limitedKinds(t, func(t *testing.T, r *Runtime, _ func() *Runtime) {
		full := startLimited(t, r, small)
		check(t, r.SettleVolume(t.Context(), full.Workspace, full.VolumeClaim))
		if out, err := fill(t, r, full.Workspace, "large", 1); err != nil {
			t.Errorf("1 MiB in the home: %v: %s", err, out)
		}
		stop(t, r, full)
		unmountHomes(t, r.cfg.DataDir)
		backup := func(claim string) {
			t.Helper()
			job, err := r.StartJob(t.Context(), runtime.JobSpec{
				Workspace: full.Workspace, Claim: claim, Kind: runtime.JobBackup, Storage: full.Storage, VolumeClaim: full.VolumeClaim, Key: claim,
				ObjectDir: t.TempDir(), Input: []byte("say begun\nwait for ever\nexit 0\n"),
			}, nil)
			check(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, _ = r.FollowJob(ctx, job.ID, func([]byte) { cancel() })
		}
		backup("backup-1")
		full.Size.Disk, full.Claim = large, "start-2"
		must(t)(r.StartContainer(t.Context(), full, nil))
		if n := limitOf(t, r, full.Workspace); n != large {
			t.Errorf("the limit is %d, want %d", n, large)
		}
		stop(t, r, full)
		jobs, err := r.Jobs(t.Context())
		check(t, err)
		for _, j := range jobs {
			check(t, r.RemoveJob(t.Context(), j.ID))
		}
		backup("backup-2")
		check(t, r.RemoveVolume(t.Context(), full.Workspace, full.VolumeClaim, nil))
		if _, err := os.Lstat(r.homes.Folder(full.Workspace)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the folder of a removed home: %v", err)
		}
	})
}

// A backup of a home that is a subvolume reads a snapshot. It is gone with the job, or with the next sweep.
func TestBackupReadsSnapshot(t *testing.T) {
	t.Parallel()
	data := dockertest.Btrfs(t, true)
	r := newRuntime(t, func(c *Config) { c.DataDir, c.HomeQuota = data, "btrfs" })
	t.Cleanup(func() { unmountHomes(t, data) })
	l := newLate(t, r, workspace.StorageLocalDir)
	l.restore("op", "home-1", "key")
	l.settle()
	home, folder := r.homes.Path(l.id), r.homes.Folder(l.id)
	check(t, os.WriteFile(filepath.Join(home, "file"), []byte("before"), 0o600))
	backup := func(claim string) runtime.Job {
		t.Helper()
		job, err := r.StartJob(t.Context(), runtime.JobSpec{
			Workspace: l.id, Claim: claim, Kind: runtime.JobBackup, Storage: l.storage, VolumeClaim: "home-1", Key: claim,
			ObjectDir: t.TempDir(), Input: []byte("say begun\nwait for ever\nexit 0\n"),
		}, nil)
		check(t, err)
		return job
	}
	snapshots := func() []string {
		t.Helper()
		list, err := filepath.Glob(filepath.Join(folder, ".snapshot-*"))
		check(t, err)
		return list
	}
	job := backup("one")
	check(t, os.WriteFile(filepath.Join(home, "file"), []byte("after"), 0o600))
	list := snapshots()
	if len(list) != 1 {
		t.Fatalf("snapshots: %q", list)
	}
	c, err := r.engine.API.ContainerInspect(t.Context(), job.ID, client.ContainerInspectOptions{})
	check(t, err)
	seen, err := os.ReadFile(fmt.Sprintf("/proc/%d/root%s/file", c.Container.State.Pid, runtime.JobHomeDir))
	check(t, err)
	if string(seen) != "before" {
		t.Errorf("the backup reads %q", seen)
	}
	if !slices.ContainsFunc(c.Container.Config.Env, func(s string) bool { return strings.HasPrefix(s, runtime.JobSnapshotAt+"=20") }) {
		t.Errorf("environment: %q", c.Container.Config.Env)
	}
	if err := os.WriteFile(filepath.Join(list[0], "file"), nil, 0o600); err == nil {
		t.Error("a snapshot can be written to")
	}
	check(t, r.homes.Sweep(t.Context()))
	if list := snapshots(); len(list) != 1 {
		t.Errorf("snapshots of a backup that runs: %q", list)
	}
	check(t, r.RemoveJob(t.Context(), job.ID))
	if list := snapshots(); len(list) != 0 {
		t.Errorf("snapshots after the backup: %q", list)
	}

	// The server was killed, and the container is removed without it.
	job = backup("two")
	check(t, r.engine.Discard(t.Context(), job.ID))
	check(t, r.homes.Sweep(t.Context()))
	if list := snapshots(); len(list) != 0 {
		t.Errorf("snapshots after a sweep: %q", list)
	}

	// A snapshot would have only the empty folder of a subvolume in the home.
	if out, err := exec.Command("btrfs", "subvolume", "create", filepath.Join(home, "inner")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	job = backup("three")
	if list := snapshots(); len(list) != 0 {
		t.Errorf("snapshots of a home with a subvolume: %q", list)
	}
	check(t, r.RemoveVolume(t.Context(), l.id, "home-1", nil))
	if _, err := os.Lstat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of a removed home: %v", err)
	}
	check(t, r.RemoveJob(t.Context(), job.ID))
}

func TestBtrfsHomesConform(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	runtimetest.HomeConformance(t, func(t *testing.T) runtimetest.Harness {
		data := dockertest.Btrfs(t, true)
		h := conformanceHarnessIn(t, workspace.StorageLocalDir, func(c *Config) { c.DataDir, c.HomeQuota = data, "btrfs" })
		h.Homes.Limits, h.Homes.Grows, h.Homes.AtOnce = true, true, true
		return h
	})
}

// packed is the digest of the archive of a home.
func packed(t *testing.T, home string) string {
	t.Helper()
	stats, err := archive.PackTo(t.Context(), home, archive.PackOptions{}, func(_ context.Context, r io.Reader) (int64, error) {
		return io.Copy(io.Discard, r)
	})
	check(t, err)
	return stats.SHA256
}

// unpack restores an archive of a home to an empty folder.
func unpack(t *testing.T, home, to string) {
	t.Helper()
	_, err := archive.PackTo(t.Context(), home, archive.PackOptions{}, func(ctx context.Context, r io.Reader) (int64, error) {
		count := &counting{r: r}
		_, err := archive.Unpack(ctx, count, to, archive.UnpackOptions{})
		return count.n, err
	})
	check(t, err)
}

type counting struct {
	r io.Reader
	n int64
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

func entriesOf(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check(t, err)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

func TestUnknownHomeQuotaIsRefused(t *testing.T) {
	t.Parallel()
	if err := (&Settings{HomeQuota: "zfs"}).homeQuota(); err == nil {
		t.Error("an unknown kind is accepted")
	}
}
