package docker

import (
	"archive/tar"
	"fmt"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// The memory of the server does not grow with the depth of a home: the helper changes the
// owner of a deep one, and that of all if the server lacks a capability.
func TestOwnHomeFallsBackToHelper(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	weak := newRuntime(t, nil)
	weak.changesOwners = func() bool { return false }
	for name, r := range map[string]*Runtime{"deep": newRuntime(t, nil), "without a capability": weak} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := newHome()
			spec.Image = variant(t, r, nil, tar.Header{Name: "home/coder/", Typeflag: tar.TypeDir, Mode: 0o700})
			volume := runtime.VolumeSpec{Workspace: spec.Workspace, Storage: workspace.StorageDockerVolume, Claim: spec.VolumeClaim, Image: spec.Image}
			check(t, r.CreateVolume(t.Context(), volume, nil))
			home, err := r.findHome(t.Context(), spec.Workspace, spec.VolumeClaim, true)
			check(t, err)
			v, err := r.engine.API.VolumeInspect(t.Context(), home.source, client.VolumeInspectOptions{})
			check(t, err)
			deepest := v.Volume.Mountpoint
			if name == "deep" {
				deepest = deepFolder(t, deepest, maxOwnPath+1)
			}
			own := runtime.OwnSpec{Workspace: spec.Workspace, VolumeClaim: spec.VolumeClaim, UID: ownUID, From: []uint32{0}}
			if done, err := r.ownHere(t.Context(), own, home, func(runtime.Progress) {}); done || err != nil {
				t.Errorf("done by the server: %v, %v", done, err)
			}
			var shown runtime.Progress
			check(t, r.OwnHome(t.Context(), own, func(p runtime.Progress) { shown = p }))
			if shown.Step != runtime.StepOwning || shown.Entries < 1 {
				t.Errorf("progress %+v", shown)
			}
			var st unix.Stat_t
			if err := unix.Stat(deepest, &st); err != nil || st.Uid != ownUID {
				t.Errorf("the deepest folder belongs to %d: %v", st.Uid, err)
			}
		})
	}
}

// deepFolder makes nested folders below dir with a path of at least length bytes, and
// returns a name of the deepest one.
func deepFolder(t *testing.T, dir string, length int) string {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	name := strings.Repeat("d", 250)
	for at := 0; at < length; at += len(name) + 1 {
		check(t, unix.Mkdirat(fd, name, 0o700))
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		check(t, err)
		unix.Close(fd)
		fd = next
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fmt.Sprint("/proc/self/fd/", fd)
}
