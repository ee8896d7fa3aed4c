package lifecycle_test

import (
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

func TestLossOf(t *testing.T) {
	t.Parallel()
	seen := workspace.Conditions{}.With(workspace.Healthy, false, string(workspace.ErrDataLost), "", time.Now())
	kept := workspace.Conditions{}.With(workspace.VolumeReady, true, workspace.ReasonVolumeReady, "", time.Now())
	home := func(s workspace.HomeState) workspace.Home { return workspace.Home{State: s} }
	for name, tc := range map[string]struct {
		w       workspace.Workspace
		loss    workspace.ErrorReason
		archive bool // its archive is what is lost
		kept    bool
	}{
		"the archive is missing":              {workspace.Workspace{ArchiveKey: "key", ErrorReason: workspace.ErrDataLost, Home: home(workspace.HomeAbsent)}, workspace.ErrDataLost, true, false},
		"the archive is damaged":              {workspace.Workspace{ArchiveKey: "key", ErrorReason: workspace.ErrArchiveCorrupted, Home: home(workspace.HomeFilling)}, workspace.ErrArchiveCorrupted, true, false},
		"the error is cleared, not the cause": {workspace.Workspace{ArchiveKey: "key", Conditions: seen, Home: home(workspace.HomeAbsent)}, workspace.ErrDataLost, true, false},
		"the volume is missing":               {workspace.Workspace{ArchiveKey: "key", ErrorReason: workspace.ErrDataLost, Home: home(workspace.HomeLive)}, workspace.ErrDataLost, false, false},
		"there never was an archive":          {workspace.Workspace{ErrorReason: workspace.ErrDataLost, Home: home(workspace.HomeAbsent)}, workspace.ErrDataLost, false, false},
		"the volume of the archive is kept":   {workspace.Workspace{ArchiveKey: "key", ErrorReason: workspace.ErrDataLost, Home: home(workspace.HomeArchived), Conditions: kept}, "", true, true},
		"another error":                       {workspace.Workspace{ArchiveKey: "key", ErrorReason: workspace.ErrTimeout, Home: home(workspace.HomeAbsent)}, "", false, false},
		"healthy":                             {workspace.Workspace{ArchiveKey: "key", Home: home(workspace.HomeAbsent)}, "", false, false},
	} {
		if got := lifecycle.LossOf(tc.w); got != tc.loss {
			t.Errorf("%s: LossOf is %q", name, got)
		}
		if got := lifecycle.ArchiveLost(tc.w); got != tc.archive {
			t.Errorf("%s: ArchiveLost is %v", name, got)
		}
		if got := lifecycle.VolumeKept(tc.w); got != tc.kept {
			t.Errorf("%s: VolumeKept is %v", name, got)
		}
		now := time.Now()
		tc.w.DeletedAt = &now
		if got := lifecycle.LossOf(tc.w); got != "" {
			t.Errorf("%s, deleted: LossOf is %q", name, got)
		}
	}
}
