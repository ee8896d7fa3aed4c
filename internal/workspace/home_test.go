package workspace_test

import (
	"testing"
	"time"

	"codehub/internal/workspace"
)

func TestArchiveLost(t *testing.T) {
	t.Parallel()
	seen := workspace.Conditions{}.With(workspace.Healthy, false, workspace.ReasonDataLost, "", time.Now())
	for name, tc := range map[string]struct {
		w    workspace.Workspace
		want bool
	}{
		"the archive is missing":     {workspace.Workspace{ArchiveKey: "key", ErrorReason: workspace.ErrDataLost, Home: workspace.Home{State: workspace.HomeAbsent}}, true},
		"it is damaged":              {workspace.Workspace{ArchiveKey: "key", ErrorReason: workspace.ErrArchiveCorrupted, Home: workspace.Home{State: workspace.HomeFilling}}, true},
		"it is still seen to be":     {workspace.Workspace{ArchiveKey: "key", Conditions: seen, Home: workspace.Home{State: workspace.HomeAbsent}}, true},
		"the volume is missing":      {workspace.Workspace{ArchiveKey: "key", ErrorReason: workspace.ErrDataLost, Home: workspace.Home{State: workspace.HomeLive}}, false},
		"there never was an archive": {workspace.Workspace{ErrorReason: workspace.ErrDataLost, Home: workspace.Home{State: workspace.HomeAbsent}}, false},
		"something else is wrong":    {workspace.Workspace{ArchiveKey: "key", ErrorReason: workspace.ErrTimeout, Home: workspace.Home{State: workspace.HomeAbsent}}, false},
		"all is well":                {workspace.Workspace{ArchiveKey: "key", Home: workspace.Home{State: workspace.HomeAbsent}}, false},
	} {
		if got := tc.w.ArchiveLost(); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
