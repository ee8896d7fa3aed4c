package docker

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// Docker lists a container while it still copies the image's files to its volume.
// The home is not seeded before that has finished.
func TestSeededOnlyWhenComplete(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	const files = 20_000
	var rootfs bytes.Buffer
	tw := tar.NewWriter(&rootfs)
	for i := range files {
		check(t, tw.WriteHeader(&tar.Header{Name: fmt.Sprintf("home/coder/%05d", i), Typeflag: tar.TypeReg, Mode: 0o644, Uid: 1000, Gid: 1000}))
	}
	check(t, tw.Close())
	spec := runtime.VolumeSpec{
		Workspace: newHome().Workspace, Storage: workspace.StorageDockerVolume, Claim: "home",
		Image: importImage(t, r, []string{"USER 1000"}, rootfs.Bytes()),
	}
	done := make(chan error, 1)
	go func() { done <- r.CreateVolume(t.Context(), spec, nil) }()
	checks := 0
	for {
		if list := ownHomes(t, r); len(list) == 1 && list[0].Seeded {
			break
		}
		select {
		case err := <-done:
			check(t, err)
			done <- nil
		default:
		}
		checks++
	}
	v, err := r.engine.API.VolumeInspect(t.Context(), spec.Workspace.VolumeName(), client.VolumeInspectOptions{})
	check(t, err)
	names, err := os.ReadDir(filepath.Clean(v.Volume.Mountpoint))
	check(t, err)
	if len(names) != files {
		t.Errorf("seeded after %d checks with %d of %d files", checks, len(names), files)
	}
	check(t, <-done)
}
