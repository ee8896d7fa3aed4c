package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

func (l *lateHome) mountpoint(name string) string {
	l.Helper()
	v, err := l.next.engine.API.VolumeInspect(l.Context(), name, client.VolumeInspectOptions{})
	l.ok("VolumeInspect", err)
	return v.Volume.Mountpoint
}

// The container that empties a home is killed during the removal.
func TestRemovalContinuesAfterKill(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	l := newLate(t, r, workspace.StorageDockerVolume)
	l.seed("home-1")
	l.settle()
	dir := l.mountpoint(l.id.VolumeName())
	for i := range 20_000 {
		putFile(t, dir, strconv.Itoa(i))
	}
	kill := sync.OnceFunc(func() {
		_, err := r.engine.API.ContainerKill(t.Context(), engine.RemoverName(l.id), client.ContainerKillOptions{Signal: "KILL"})
		t.Logf("killed: %v", err)
	})
	l.ok("RemoveVolume", r.RemoveVolume(t.Context(), l.id, "home-1", func(p runtime.Progress) {
		if p.Entries > 0 {
			kill()
		}
	}))
	if left := (direct{r: r, storage: l.storage}).remains(t, l.id); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// loopDisk creates and mounts a file system in a file. It is not committed automatically during
// the test.
func loopDisk(t *testing.T, image, dir string) {
	t.Helper()
	check(t, os.MkdirAll(dir, 0o755))
	if out, err := exec.Command("mount", "-o", "loop,commit=900", image, dir).CombinedOutput(); err != nil {
		t.Fatalf("mount %s: %v: %s", image, err, out)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// A power cut immediately after RemoveVolume: Docker starts from what was on the
// disk. Its own removal is not durable, and the volume comes back without its
// labels.
func TestRemovalSurvivesPowerCut(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	dir, err := os.MkdirTemp("", "chl")
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	image, cut := filepath.Join(dir, "disk"), filepath.Join(dir, "cut")
	command(t, "truncate", "-s", "512M", image)
	command(t, "mkfs.ext4", "-q", image)
	loopDisk(t, image, filepath.Join(dir, "a"))

	root := filepath.Join(dir, "a", "data")
	d := dockertest.Start(t, dockertest.Options{Image: harness.TestImage(), Root: root})
	r := newRuntime(t, func(c *Config) { c.Host = d.Host })
	made := func() *lateHome {
		l := newLate(t, r, workspace.StorageDockerVolume)
		l.seed("home-1")
		l.settle()
		return l
	}
	here, byHelper, kept := made(), made(), made()
	_, err = r.engine.API.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: "plain", Labels: map[string]string{"a": "b"}})
	here.ok("VolumeCreate", err)
	command(t, "sync", "-f", root)

	here.ok("RemoveVolume", r.RemoveVolume(t.Context(), here.id, "home-1", nil))
	command(t, "cp", "--sparse=always", image, cut+"1")
	// As if Docker's directory were not accessible.
	r.homes.Remote = true
	byHelper.ok("RemoveVolume", r.RemoveVolume(t.Context(), byHelper.id, "home-1", nil))
	r.homes.Remote = false
	_, err = r.engine.API.VolumeRemove(t.Context(), "plain", client.VolumeRemoveOptions{})
	here.ok("VolumeRemove", err)
	command(t, "cp", "--sparse=always", image, cut+"2")

	for n, gone := range map[string][]*lateHome{"1": {here}, "2": {here, byHelper}} {
		loopDisk(t, cut+n, filepath.Join(dir, "b"+n))
		after := dockertest.Start(t, dockertest.Options{Root: filepath.Join(dir, "b"+n, "data")})
		list, err := after.API.VolumeList(t.Context(), client.VolumeListOptions{})
		check(t, err)
		names := map[string]map[string]string{}
		for _, v := range list.Items {
			names[v.Name] = v.Labels
		}
		if names[kept.id.VolumeName()][engine.LabelClaim] != "home-1" {
			t.Errorf("cut %s: the home that is kept has the labels %v", n, names[kept.id.VolumeName()])
		}
		for _, l := range gone {
			if labels, back := names[l.id.VolumeName()]; back {
				t.Errorf("cut %s: a removed home is back, with the labels %v", n, labels)
			}
		}
		if labels, back := names["plain"]; n == "2" && (!back || len(labels) > 0) {
			t.Errorf("cut %s: volumes that Docker removed are back: %v, %v; this test proves nothing", n, back, labels)
		}
	}
}

// A power cut between Docker's removal of a volume and the sync brings it back,
// empty and without labels. It is listed until it is removed again.
func TestVolumeBackAfterPowerCutIsRemoved(t *testing.T) {
	t.Parallel()
	for _, farAway := range []bool{false, true} {
		t.Run("far away "+strconv.FormatBool(farAway), func(t *testing.T) {
			t.Parallel()
			r := newRuntime(t, nil)
			r.homes.Remote = farAway
			back := func() *lateHome {
				l := newLate(t, r, workspace.StorageDockerVolume)
				l.seed("home-1")
				h := direct{r: r, storage: l.storage}
				h.halfRemove(t, l.id, "home-1")
				h.takeVolume(t, l.id)
				_, err := r.engine.API.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: l.id.VolumeName()})
				l.ok("VolumeCreate", err)
				if v := l.listed(); v.Claim != "home-1" || v.Seeded {
					t.Errorf("volume = %+v, want it listed", v)
				}
				return l
			}
			l := back()
			l.ok("RemoveVolume", r.RemoveVolume(t.Context(), l.id, "home-1", nil))
			if left := (direct{r: r, storage: l.storage}).remains(t, l.id); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}

			l = back()
			putFile(t, l.mountpoint(l.id.VolumeName()), "foreign")
			if err := r.RemoveVolume(t.Context(), l.id, "home-1", nil); !errors.Is(err, runtime.ErrVolumeMismatch) {
				t.Errorf("a volume with something in it: %v", err)
			}
			direct{r: r, storage: l.storage}.takeVolume(t, l.id)
			l.ok("RemoveVolume", r.RemoveVolume(t.Context(), l.id, "home-1", nil))
		})
	}
}

// Docker reports nothing while it copies an image's content to a volume, so the volume's size
// is measured.
func TestSeedingReportsProgress(t *testing.T) {
	t.Parallel()
	for _, farAway := range []bool{false, true} {
		t.Run("far away "+strconv.FormatBool(farAway), func(t *testing.T) {
			t.Parallel()
			e := newFaultProxy(t)
			r := newRuntime(t, func(c *Config) { c.Host = e.host })
			r.homes.Remote, r.homes.CountAfter, r.homes.CountEvery = farAway, time.Millisecond, time.Millisecond
			l := newLate(t, r, workspace.StorageDockerVolume)
			reported := make(chan runtime.Progress, 1)
			steps := []string{"one", "two"}
			f := func(_ http.ResponseWriter, req *http.Request) bool {
				if !strings.HasPrefix(req.URL.Query().Get("name"), "codehub-seed-") {
					return false
				}
				dir := l.mountpoint(l.id.VolumeName())
				for _, name := range steps {
					if err := os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte("x"), 1000), 0o600); err != nil {
						t.Error(err)
					}
					<-reported
				}
				steps = nil
				return false
			}
			e.fault.Store(&f)
			var last runtime.Progress
			l.ok("CreateVolume", r.CreateVolume(t.Context(), l.volume("home-1"), func(p runtime.Progress) {
				if p.Step == runtime.StepSeeding && p.Done >= last.Done+1000 {
					last = p
					reported <- p
				}
			}))
			if last.Entries != 3 || last.Done != 2000 {
				t.Errorf("progress ends with %+v", last)
			}
		})
	}
}

// On a full disk, or one without inodes, a local home can be removed, and is not
// complete any more from before its first entry is removed.
func TestFolderIsRemovedOnFullDisk(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for name, inodes := range map[string]bool{"no space": false, "no inodes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			image, data := filepath.Join(dir, "image"), filepath.Join(dir, "data")
			command(t, "truncate", "-s", "32M", image)
			command(t, "mkfs.ext4", "-q", "-N", "512", image)
			loopDisk(t, image, data)
			r := newRuntime(t, func(c *Config) { c.DataDir = data })
			ctx, id := t.Context(), newHome().Workspace
			spec := runtime.VolumeSpec{Workspace: id, Storage: workspace.StorageLocalDir, Claim: "home-1", Owner: "ann", Name: "one"}
			check(t, r.CreateEmptyVolume(ctx, spec))
			check(t, r.SettleVolume(ctx, id, "home-1"))
			check(t, os.WriteFile(filepath.Join(r.homes.Path(id), "file"), make([]byte, 1<<20), 0o644))
			part := make([]byte, 1<<16)
			if inodes {
				part = nil
			}
			var err error
			for n := 0; err == nil; n++ {
				err = os.WriteFile(filepath.Join(data, fmt.Sprint("fill", n)), part, 0o600)
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			direct{r: r, storage: spec.Storage}.interrupt(t, runtime.StepRemoving, func(ctx context.Context, progress func(runtime.Progress)) error {
				return r.RemoveVolume(ctx, id, "home-1", progress)
			})
			side, err := os.ReadFile(filepath.Join(r.homes.Folder(id), "home.json"))
			if want := fmt.Sprintf(`{"installation":%q,"claim":"home-1","state":"removing"}`, r.cfg.Installation); err != nil || strings.TrimSpace(string(side)) != want {
				t.Errorf("home.json = %s, %v", side, err)
			}
			check(t, r.RemoveVolume(ctx, id, "home-1", nil))
			if _, err := os.Lstat(r.homes.Folder(id)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the folder after its removal: %v", err)
			}
		})
	}
}
