package cli

import (
	"strings"
	"testing"
	"time"

	"codehub/api"
)

func TestRestoreTextShowsPlan(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	plan := takeover{RestorePlan: api.RestorePlan{OnHold: true, Reason: "another database managed these workspaces last", Unchanged: 1, Workspaces: []api.RestoreStep{
		{ID: "2", Name: "newer", Owner: "ann", Action: api.RestoreArchive, ArchivedAt: &at},
		{ID: "3", Name: "made", Action: api.RestoreVolume, New: true, Running: true},
		{ID: "4", Name: "gone", Owner: "ann", Action: api.RestoreKeep, Lost: true},
	}}}
	text := restoreText(plan)
	for _, want := range []string{
		"codehub is on hold: another database managed these workspaces last.", "use the archive of ", "(you)", "use the volume, add to the database, running",
		"keep, LOST", "unchanged workspaces: 1", "reconcile-restore --apply",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q:\n%s", want, text)
		}
	}
	plan.OnHold, plan.Applied = false, &api.RestoreResult{Changed: 2, Unchanged: 2}
	if text := restoreText(plan); strings.Contains(text, "--apply") || !strings.Contains(text, "This database leads now.") || !strings.Contains(text, "Changed workspaces: 2, unchanged: 2.") {
		t.Error(text)
	}
}
