package home

import (
	"context"
	"strings"
	"testing"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// The container that computes a fingerprint may read the home and nothing else.
func TestFingerprintHardening(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newHomes(t, "", Config{}, nil)
	for _, storage := range []string{workspace.StorageDockerVolume, workspace.StorageLocalDir} {
		id := newID()
		check(t, r.CreateEmptyVolume(t.Context(), runtime.VolumeSpec{Workspace: id, Storage: storage, Claim: "home-1"}))
		t.Cleanup(func() { check(t, r.DropVolume(context.Background(), id.VolumeName())) })
		home, err := r.findHome(t.Context(), id, "home-1", true)
		check(t, err)
		opts := r.taskOptions(id, "home-1", "image", home, fingerprintTask())
		host := opts.HostConfig
		if !opts.Config.NetworkDisabled || host.NetworkMode != "none" || !host.ReadonlyRootfs || host.Memory == 0 || len(host.Mounts) != 1 || !host.Mounts[0].ReadOnly ||
			strings.Join(host.CapDrop, ",") != "ALL" || strings.Join(host.CapAdd, ",") != "DAC_OVERRIDE,FOWNER" || len(opts.Config.Env) != 1 {
			t.Errorf("%s: %+v", storage, host)
		}
	}
}
