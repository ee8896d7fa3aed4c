package reconcile

import (
	"testing"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Volumes that are all lost at once count as missing, so that the tick does not act on them.
func TestLostVolumesCountAsMissing(t *testing.T) {
	t.Parallel()
	var inv inventory
	for i := range 6 {
		row := &workspace.Workspace{Home: workspace.Home{State: workspace.HomeLive, Claim: "home-1"}}
		inv.entries = append(inv.entries, entry{row: row, live: true, volume: &runtime.Volume{Claim: "home-1", Removing: i > 0, Lost: i > 0}})
	}
	if lost, of := inv.missingVolumes(); lost != 5 || of != 6 {
		t.Errorf("%d of %d volumes are missing", lost, of)
	}
}
