package docker

import (
	"archive/tar"
	"fmt"
	"net/http"
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
	for _, name := range []string{"deep", "without a capability"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newFaultProxy(t)
			r := newRuntime(t, func(c *Config) { c.Host = e.host })
			spec := newHome()
			spec.Image = variant(t, r, nil, tar.Header{Name: "home/coder/", Typeflag: tar.TypeDir, Mode: 0o700})
			volume := runtime.VolumeSpec{Workspace: spec.Workspace, Storage: workspace.StorageDockerVolume, Claim: spec.VolumeClaim, Image: spec.Image}
			check(t, r.CreateVolume(t.Context(), volume, nil))
			v, err := r.engine.API.VolumeInspect(t.Context(), spec.Workspace.VolumeName(), client.VolumeInspectOptions{})
			check(t, err)
			deepest := v.Volume.Mountpoint
			if name == "deep" {
				deepest = deepFolder(t, deepest, 64<<10+1)
			}
			own := runtime.OwnSpec{Workspace: spec.Workspace, VolumeClaim: spec.VolumeClaim, UID: ownUID, From: []uint32{0}}
			helpers := 0
			seen := func(_ http.ResponseWriter, req *http.Request) bool {
				if strings.HasSuffix(req.URL.Path, "/containers/create") {
					helpers++
				}
				return false
			}
			e.fault.Store(&seen)
			var shown runtime.Progress
			change := func() { check(t, r.OwnHome(t.Context(), own, func(p runtime.Progress) { shown = p })) }
			if name == "deep" {
				change()
			} else {
				unprivileged(t, change)
			}
			e.fault.Store(nil)
			if helpers != 1 {
				t.Errorf("%d helpers", helpers)
			}
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
