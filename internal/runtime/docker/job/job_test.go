package job

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/mount"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/home"
	"codehub/internal/runtime/docker/image"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// A restore into a home whose file system reports only its own limit has a folder of the disk, so
// that it can leave the reserve.
func TestRestoreSeesSharedDisk(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	e, err := engine.New(engine.Config{Installation: uuid.NewString(), Host: "unix:///none", Log: harness.Logger(t, 12)})
	check(t, err)
	t.Cleanup(func() { check(t, e.Close()) })
	h := helper.New(e, "")
	homes := home.New(h, image.New(e, image.Config{}), home.Config{DataDir: data, HostDataDir: data})
	r := New(h, homes)
	for _, shares := range []bool{false, true} {
		spec := runtime.JobSpec{Workspace: workspace.ID(uuid.NewString()), Kind: runtime.JobRestore, Storage: workspace.StorageLocalDir, SharesDisk: shares}
		check(t, os.MkdirAll(homes.Folder(spec.Workspace), 0o700))
		check(t, r.makeScratch(spec))
		at := filepath.Join(homes.Folder(spec.Workspace), scratchName)
		if _, err := os.Lstat(at); (err == nil) != shares {
			t.Errorf("with SharesDisk %v the folder is there: %v", shares, err)
		}
		mounts := r.jobMounts(spec, true, home.Snapshot{})
		i := slices.IndexFunc(mounts, func(m mount.Mount) bool { return m.Target == runtime.JobScratchDir })
		if (i >= 0) != shares || shares && (!mounts[i].ReadOnly || mounts[i].Source != at) {
			t.Errorf("the mounts with SharesDisk %v: %+v", shares, mounts)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
