package docker

import (
	"strings"
	"testing"

	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// A Docker that maps users has few uids: a range above them is a condition that names the
// setting, and an error of each start that does as well.
func TestUIDsThatDockerCannotMap(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	d := dockertest.Start(t, dockertest.Options{Image: harness.TestImage(), Map: 65536})
	above := workspace.UIDRange{First: 1_500_000, Last: 1_999_999}
	for uids, works := range map[workspace.UIDRange]bool{above: false, {First: 20_000, Last: 60_000}: true} {
		conditions := &health.Monitor{}
		r := newRuntime(t, func(c *Config) { c.Host, c.UIDs, c.Conditions, c.AllowNoWall = d.Host, uids, conditions, true })
		r.homes.CheckUIDs(t.Context())
		err := conditions.Err("workspace-uids")
		if works != (err == nil) || err != nil && !strings.Contains(err.Error(), "only the uids 1000-65535, ") {
			t.Errorf("%s: the condition is %v", uids, err)
		}
		spec := newHome()
		volume := runtime.VolumeSpec{Workspace: spec.Workspace, Storage: workspace.StorageDockerVolume, Claim: spec.VolumeClaim, Image: harness.TestImage()}
		check(t, r.CreateVolume(t.Context(), volume, nil))
		own := runtime.OwnSpec{Workspace: spec.Workspace, VolumeClaim: spec.VolumeClaim, UID: uids.First, From: []uint32{workspace.ArchivedUID, 0}}
		err = r.OwnHome(t.Context(), own, nil)
		if works != (err == nil) || err != nil && !strings.Contains(err.Error(), "CODEHUB_WORKSPACE_UIDS") {
			t.Errorf("%s: OwnHome: %v", uids, err)
		}
		if works {
			spec.UID, spec.Image = uids.First, harness.TestImage()
			if _, err := r.StartContainer(t.Context(), spec, nil); err != nil {
				t.Errorf("start: %v", err)
			}
		}
	}
}
