package docker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Homes in volumes and folders are measured, those of other installations are not.
func TestHomeSizes(t *testing.T) {
	t.Parallel()
	r, other := newRuntime(t, nil), newRuntime(t, nil)
	homes := map[string]workspace.ID{}
	for _, storage := range []string{workspace.StorageDockerVolume, workspace.StorageLocalDir} {
		spec := newHome()
		volume := runtime.VolumeSpec{Workspace: spec.Workspace, Storage: storage, Claim: spec.VolumeClaim, Image: spec.Image}
		check(t, r.CreateVolume(t.Context(), volume, nil))
		(direct{r: r, storage: storage}).put(t, spec.Workspace, "large", strings.Repeat("x", 3<<20))
		homes[storage] = spec.Workspace
	}
	sizes, err := r.HomeSizes(t.Context())
	check(t, err)
	for storage, id := range homes {
		if n := sizes[id]; n < 3<<20 || n > 8<<20 {
			t.Errorf("%s: %d bytes", storage, n)
		}
	}
	volume := homes[workspace.StorageDockerVolume]
	if some, err := r.HomeSizes(t.Context(), volume); err != nil || len(some) != 1 || some[volume] != sizes[volume] {
		t.Errorf("only the volume: %v, %v", some, err)
	}
	// A server that is not root has the helper measure folders that it cannot read.
	folder := homes[workspace.StorageLocalDir]
	for path, mode := range map[string]os.FileMode{r.homes.Path(folder): 0o755, filepath.Join(r.homes.Path(folder), "private"): 0o700} {
		check(t, errors.Join(os.MkdirAll(path, mode), os.Chmod(path, mode), os.Chown(path, 4242, 4242)))
	}
	want, _, err := r.HomeSize(t.Context(), folder)
	check(t, err)
	unprivileged(t, func() {
		if _, err := os.ReadDir(filepath.Join(r.homes.Path(folder), "private")); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("the folder can be read: %v", err)
		}
		if n, known, err := r.HomeSize(t.Context(), folder); n != want || !known || err != nil {
			t.Errorf("the helper measures %d bytes, %v, and %d are used: %v", n, known, want, err)
		}
	})
	if sizes, err := other.HomeSizes(t.Context()); err != nil || len(sizes) != 0 {
		t.Errorf("another installation: %v, %v", sizes, err)
	}
}

// unprivileged runs f on a thread that cannot read what others may not.
func unprivileged(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // for good: the thread ends with the goroutine
		var caps [2]unix.CapUserData
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		err := unix.Capget(&header, &caps[0])
		if err == nil {
			caps[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
			err = unix.Capset(&header, &caps[0])
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	check(t, <-done)
}
