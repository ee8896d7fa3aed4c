package lifecycle_test

import (
	"reflect"
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

func TestRecheckArchive(t *testing.T) {
	t.Parallel()
	at := epoch
	resting := workspace.Workspace{
		ID: "019a0000-0000-7000-8000-000000000001", Phase: workspace.PhaseArchived, DesiredState: workspace.DesiredArchived,
		Home: workspace.Home{State: workspace.HomeAbsent}, Operation: workspace.OpNone, ArchiveKey: "key",
		Conditions: workspace.Conditions{}.With(workspace.ArchiveReady, true, workspace.ReasonArchiveReady, "key", epoch),
	}
	lost := resting
	lost.Phase, lost.ErrorReason = workspace.PhaseError, workspace.ErrDataLost
	lost.Conditions = lost.Conditions.With(workspace.ArchiveReady, false, workspace.ReasonArchiveMissing, "key", epoch)
	failedRestore := resting // the object is complete, and its content is damaged
	failedRestore.Phase, failedRestore.ErrorReason = workspace.PhaseError, workspace.ErrArchiveCorrupted

	for name, c := range map[string]struct {
		from     workspace.Workspace
		change   func(*workspace.Workspace)
		complete bool
		verified bool
		want     bool
	}{
		"missing":                    {from: resting, want: true},
		"complete":                   {from: resting, complete: true},
		"lost and missing":           {from: lost},
		"lost and back":              {from: lost, complete: true, want: true},
		"another archive":            {from: resting, change: func(w *workspace.Workspace) { w.ArchiveKey = "newer" }},
		"home is live":               {from: resting, change: func(w *workspace.Workspace) { w.Home.State = workspace.HomeLive }},
		"operation runs":             {from: resting, change: func(w *workspace.Workspace) { w.Operation = workspace.OpRestoring }},
		"deleted":                    {from: resting, change: func(w *workspace.Workspace) { w.DeletedAt = &at }},
		"request is pending":         {from: resting, change: func(w *workspace.Workspace) { w.RecoverRequestedAt = &at }},
		"is to run":                  {from: resting, change: func(w *workspace.Workspace) { w.DesiredState = workspace.DesiredRunning }},
		"other error":                {from: resting, change: func(w *workspace.Workspace) { w.ErrorReason = workspace.ErrTimeout }},
		"damaged but listed as full": {from: failedRestore, complete: true},
		"damaged and good again":     {from: failedRestore, complete: true, verified: true, want: true},
		"damaged and missing":        {from: failedRestore},
		"back, and is to run": {from: lost, complete: true, want: true, change: func(w *workspace.Workspace) {
			w.DesiredState, w.NextDesired = workspace.DesiredRunning, workspace.DesiredStandby
		}},
	} {
		w := c.from
		if c.change != nil {
			c.change(&w)
		}
		out := lifecycle.RecheckArchive(w, epoch.Add(time.Hour), "key", c.complete, c.verified)
		if out.Changed != c.want || !c.want && !reflect.DeepEqual(out.Workspace, w) {
			t.Errorf("%s: changed %v, want %v", name, out.Changed, c.want)
		}
		if c.want && out.Workspace.DesiredState == workspace.DesiredRunning {
			t.Errorf("%s: it starts", name)
		}
		if c.want && (out.Workspace.RecoverRequestedAt == nil || out.Workspace.RecoverAction != workspace.RecoverAfresh || out.Audit.Action == "" || out.NeedsSlot) {
			t.Errorf("%s: %+v", name, out)
		}
	}
}
