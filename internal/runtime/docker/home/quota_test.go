package home

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/homequota"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

const small = int64(64) << 20

// limitedKinds are the kinds of homes with a limit, each with homes of that kind.
func limitedKinds(t *testing.T, test func(t *testing.T, h *Homes)) {
	for _, kind := range []homequota.Kind{homequota.Btrfs, homequota.Image} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			data := t.TempDir()
			if kind == homequota.Btrfs {
				data = dockertest.Btrfs(t, true)
			}
			h := newHomes(t, "", Config{DataDir: data, HomeQuota: string(kind)}, nil)
			if h.quota != kind {
				t.Fatalf("homes are of the kind %q", h.quota)
			}
			t.Cleanup(func() { unmountHomes(t, data) })
			test(t, h)
		})
	}
}

// unmountHomes unmounts what a test has left mounted.
func unmountHomes(t *testing.T, data string) {
	folders, err := filepath.Glob(filepath.Join(data, homesDir, "*"))
	if err != nil {
		t.Error(err)
	}
	for _, f := range folders {
		if err := homequota.Remove(f); err != nil {
			t.Error(err)
		}
	}
}

func limitOf(t *testing.T, h *Homes, id workspace.ID) int64 {
	t.Helper()
	list, err := h.folders()
	check(t, err)
	i := slices.IndexFunc(list, func(v runtime.Volume) bool { return v.Workspace == id })
	if i < 0 {
		t.Fatal("the home is gone")
	}
	return list[i].Limit
}

// A server that dies while it makes a home leaves one that the next call makes again.
func TestHalfMadeLimitedHome(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	limitedKinds(t, func(t *testing.T, h *Homes) {
		id := newID()
		volume := runtime.VolumeSpec{Workspace: id, Storage: workspace.StorageLocalDir, Claim: "home", Image: harness.TestImage(), Disk: small}
		check(t, h.makeFolder(id))
		check(t, h.writeSidecar(id, sidecar{Claim: volume.Claim, State: folderFilling}))
		// The home is made, and home.json does not say so; a file of an earlier attempt is left.
		check(t, homequota.Make(h.quota, h.Folder(id), small))
		check(t, os.WriteFile(filepath.Join(h.Folder(id), ".disk.img.new"), []byte("half"), 0o600))
		check(t, h.CreateEmptyVolume(t.Context(), volume))
		if n := limitOf(t, h, id); n != small {
			t.Errorf("the limit is %d, want %d", n, small)
		}
		check(t, h.CreateVolume(t.Context(), volume, nil))
		if n := limitOf(t, h, id); n != small {
			t.Errorf("the limit of the seeded home is %d, want %d", n, small)
		}
		if side, there, err := h.readFolder(id); err != nil || !there || side.State != folderSeeded {
			t.Errorf("%+v, %v", side, err)
		}
		check(t, h.RemoveVolume(t.Context(), id, volume.Claim, nil))
	})
}

// A restore keeps the owner, the name and the limit of the home, and a lost limit is found again.
func TestRestoreKeepsLimit(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	limitedKinds(t, func(t *testing.T, h *Homes) {
		id := newID()
		volume := runtime.VolumeSpec{Workspace: id, Storage: workspace.StorageLocalDir, Claim: "home", Owner: "ann", Name: "one", Disk: small}
		check(t, h.CreateEmptyVolume(t.Context(), volume))
		job := runtime.JobSpec{Workspace: id, Storage: volume.Storage, Kind: runtime.JobRestore, VolumeClaim: volume.Claim, Key: "key"}
		before, err := h.CheckJob(t.Context(), job)
		check(t, err)
		check(t, h.admitToFolder(t.Context(), job, before, "container"))
		image := h.quota == homequota.Image
		want := []runtime.Volume{{
			Workspace: id, Storage: volume.Storage, Claim: volume.Claim, Held: true,
			Owner: volume.Owner, Name: volume.Name, Limit: small, OwnDisk: image,
		}}
		got, err := h.folders()
		if diff := gocmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("the home during its restore (-want +got):\n%s%v", diff, err)
		}
		side, _, err := h.readFolder(id)
		check(t, err)
		side.Limit = 0
		if side, err = h.limited(id, side, small/2); err != nil || image && side.Limit != small {
			t.Errorf("the limit is %d, want the size of the image: %v", side.Limit, err)
		}
	})
}

// A home whose folder cannot be limited any more, since it was copied or quotas were turned off, is
// measured from its next start on.
func TestLostLimitIsNotEnforced(t *testing.T) {
	t.Parallel()
	h := newHomes(t, offline, Config{HomeQuota: QuotaNone}, nil)
	spec := runtime.ContainerSpec{Workspace: newID(), Storage: workspace.StorageLocalDir, VolumeClaim: "home", Size: workspace.Size{Disk: small}}
	volume := runtime.VolumeSpec{Workspace: spec.Workspace, Storage: spec.Storage, Claim: spec.VolumeClaim, Disk: small}
	check(t, h.CreateEmptyVolume(t.Context(), volume))
	side, _, err := h.readFolder(spec.Workspace)
	check(t, err)
	side.Limit = small
	check(t, h.writeSidecar(spec.Workspace, side))
	check(t, h.limitFolder(t.Context(), spec))
	if n := limitOf(t, h, spec.Workspace); n != 0 {
		t.Errorf("the limit is %d, and nothing enforces it", n)
	}
}

// If quotas are turned off while the server runs, new homes are plain folders, and a condition says
// so until a home has a limit again.
func TestQuotasTurnedOff(t *testing.T) {
	t.Parallel()
	conditions := &health.Monitor{}
	h := newHomes(t, offline, Config{HomeQuota: string(homequota.Image)}, conditions)
	t.Cleanup(func() { unmountHomes(t, h.cfg.DataDir) })
	create := func(kind homequota.Kind, want int64) {
		t.Helper()
		h.quota = kind
		id := newID()
		volume := runtime.VolumeSpec{Workspace: id, Storage: workspace.StorageLocalDir, Claim: "home", Disk: small}
		check(t, h.CreateEmptyVolume(t.Context(), volume))
		if n := limitOf(t, h, id); n != want {
			t.Errorf("a home of the kind %q has the limit %d, want %d", kind, n, want)
		}
		if _, err := os.Lstat(filepath.Join(h.Folder(id), ".home.new")); err == nil {
			t.Error("the folder has .home.new")
		}
	}
	create(homequota.Project, 0) // this file system has no project quotas
	if err := conditions.Err("home-quota"); err == nil || !strings.Contains(err.Error(), "turned off") {
		t.Errorf("the condition is %v", err)
	}
	create(homequota.Image, small)
	if err := conditions.Err("home-quota"); err != nil {
		t.Errorf("the condition is %v with a home that is limited", err)
	}
}

// No setting changes homes that are plain folders, and a setting that cannot be
// carried out is a condition.
func TestHomeQuotaSettings(t *testing.T) {
	t.Parallel()
	plain, quiet := t.TempDir(), dockertest.Btrfs(t, false)
	for name, c := range map[string]struct {
		data, setting, host string
		want                homequota.Kind
		failed              string
	}{
		"plain, automatic":             {plain, "auto", "", homequota.None, ""},
		"none":                         {plain, "none", "", homequota.None, ""},
		"btrfs elsewhere":              {plain, "btrfs", "", homequota.None, "not on btrfs"},
		"projects elsewhere":           {quiet, "project", "", homequota.None, "neither XFS nor ext4"},
		"btrfs without quotas":         {quiet, "auto", "", homequota.None, ""},
		"btrfs without quotas, wanted": {quiet, "btrfs", "", homequota.None, "btrfs quota enable"},
		"images in a container":        {plain, "image", "/elsewhere", homequota.None, "runs in a container"},
	} {
		conditions := &health.Monitor{}
		cfg := Config{DataDir: c.data, HostDataDir: cmp.Or(c.host, c.data), HomeQuota: c.setting}
		if got := newHomes(t, offline, cfg, conditions).quota; got != c.want {
			t.Errorf("%s: %q", name, got)
		}
		failed := ""
		for _, s := range conditions.States() {
			failed += s.Error
		}
		if (c.failed == "") != (failed == "") || !strings.Contains(failed, c.failed) {
			t.Errorf("%s: the condition is %q", name, failed)
		}
		if left, err := filepath.Glob(filepath.Join(c.data, ".quota-probe*")); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
	if got := newHomes(t, offline, Config{DataDir: dockertest.Btrfs(t, true), HomeQuota: "auto"}, nil).quota; got != homequota.Btrfs {
		t.Errorf("btrfs with quotas: %q", got)
	}
}
