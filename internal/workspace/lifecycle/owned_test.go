package lifecycle_test

import (
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// At the owner's limit a workspace at rest starts only to free space, as over the limit of its
// home; a restart, and what runs or recovers, goes on.
func TestStartAtOwnersLimit(t *testing.T) {
	t.Parallel()
	const refused, freed, plain = "refused", "freed", "plain"
	now := time.Now()
	full := lifecycle.OwnedSpace{Used: 20 * gib, Limit: 20 * gib}
	freedAt := func(ago time.Duration, from int64) func(*workspace.Workspace) {
		return func(w *workspace.Workspace) { w.FreeingAt, w.FreeingFrom = new(now.Add(-ago)), from }
	}
	phase := func(p workspace.Phase) func(*workspace.Workspace) {
		return func(w *workspace.Workspace) { w.Phase = p }
	}
	for name, c := range map[string]struct {
		change func(*workspace.Workspace)
		owned  lifecycle.OwnedSpace
		free   bool
		want   string
	}{
		"below the limit":         {nil, lifecycle.OwnedSpace{Used: 20*gib - 1, Limit: 20 * gib}, false, plain},
		"no limit":                {nil, lifecycle.OwnedSpace{Used: 20 * gib}, false, plain},
		"a plain start":           {nil, full, false, refused},
		"to free space":           {nil, full, true, freed},
		"not smaller since":       {freedAt(time.Hour, 12*gib), full, true, refused},
		"smaller since":           {freedAt(time.Hour, 13*gib), full, true, freed},
		"a day later":             {freedAt(24*time.Hour, 12*gib), full, true, freed},
		"archived":                {phase(workspace.PhaseArchived), full, false, refused},
		"archived, to free space": {phase(workspace.PhaseArchived), full, true, freed},
		"never started":           {phase(workspace.PhasePending), full, true, refused},
		"it runs":                 {phase(workspace.PhaseRunning), full, false, plain},
		"a recovery":              {phase(workspace.PhaseError), full, false, plain},
		"a restart": {func(w *workspace.Workspace) {
			w.DesiredCause, w.NextDesired = workspace.CauseRestart, workspace.DesiredRunning
		}, full, false, plain},
		"queued to free space": {func(w *workspace.Workspace) {
			w.FreeingAt, w.NextDesired = new(now), workspace.DesiredRunning
			w.PhaseChangedAt = now.Add(-time.Minute)
		}, full, false, plain},
		"queued before it stopped":  {func(w *workspace.Workspace) { w.NextDesired = workspace.DesiredRunning }, full, false, refused},
		"freed before, not queued":  {freedAt(time.Hour, 12*gib), full, false, refused},
		"restored and not measured": {func(w *workspace.Workspace) { w.HomeBytes = new(int64(0)); w.FreeingAt, w.FreeingFrom = new(now), gib }, full, true, freed},
	} {
		w := using(12 * gib)
		w.PhaseChangedAt = now
		if c.change != nil {
			c.change(&w)
		}
		next := w
		next.DesiredState = workspace.DesiredRunning
		out, err := lifecycle.CheckOwned(w, lifecycle.Intent{Workspace: next, Changed: true, NeedsSlot: true, FreesSpace: c.free, Audit: lifecycle.Entry{Details: map[string]any{}}}, c.owned, now)
		got := plain
		switch {
		case err != nil:
			if got = refused; workspace.CodeOf(err) != workspace.CodeQuotaExceeded {
				t.Errorf("%s: %v", name, err)
			}
		case out.Audit.Details["free_space"] == true:
			got = freed
			if known := w.Phase == workspace.PhaseStandby && *w.HomeBytes > 0; known != (out.Workspace.FreeingAt != nil) || known && out.Workspace.FreeingFrom != *w.HomeBytes {
				t.Errorf("%s: recorded %v, from %d", name, out.Workspace.FreeingAt, out.Workspace.FreeingFrom)
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
