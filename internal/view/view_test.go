package view

import (
	"reflect"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/workspace"

	"github.com/google/go-cmp/cmp"
)

const base = "https://hub.example.com/"

// Every field of what the API shows is filled from a workspace that has
// everything, but for the one that no server computes yet.
func TestViewIsComplete(t *testing.T) {
	t.Parallel()
	at := func(h int) time.Time { return time.Date(2026, 1, 2, h, 0, 0, 0, time.FixedZone("KST", 9*3600)) }
	p := func(h int) *time.Time { t := at(h); return &t }
	n := func(i int) *int { return &i }
	w := workspace.Workspace{
		ID: "id", OwnerID: "ann", Name: "name", Description: "description", Memo: "memo", ImageRef: "image",
		Conditions: workspace.Conditions{workspace.VolumeReady: {Status: "True", Reason: "Ready", Message: "m", LastTransitionTime: at(1)}},
		Phase:      workspace.PhaseDeleting, PhaseChangedAt: at(2), Operation: workspace.OpDeleting,
		ArchiveKey: "key", ErrorReason: workspace.ErrTimeout, ErrorMessage: "message", ErrorCount: 3, StopReason: "idle",
		Progress:     &workspace.Progress{Step: "pulling", Done: 1, Total: 2},
		DesiredState: workspace.DesiredStandby, NextDesired: workspace.DesiredRunning, DeletedAt: p(3), LastAccessAt: p(4), LastAccess: "open",
		KeepAwakeTil: p(5), StandbyTTL: n(0), ArchiveTTL: n(7), CreatedAt: at(6), UpdatedAt: at(7),
	}
	v := View(w, base, time.Hour)
	for i := range reflect.TypeFor[api.Workspace]().NumField() {
		if f := reflect.TypeFor[api.Workspace]().Field(i).Name; f != "StopsAt" && reflect.ValueOf(v).Field(i).IsZero() {
			t.Errorf("%s is empty", f)
		}
	}
	if v.URL != "https://hub.example.com/w/id/" || !v.PurgedAt.Equal(at(4)) || v.CreatedAt.Location() != time.UTC || v.DeletedAt.Location() != time.UTC ||
		v.Conditions["storage.volume_ready"].Reason != "Ready" || *v.StandbyTTLSeconds != 0 || *v.Progress != (api.Progress{Step: "pulling", Done: 1, Total: 2}) {
		t.Errorf("%+v", v)
	}
}

// What a workspace does not have is null, not empty.
func TestViewOfNothing(t *testing.T) {
	t.Parallel()
	v := View(workspace.Workspace{}, base, time.Hour)
	want := api.Workspace{URL: "https://hub.example.com/w//", Conditions: map[string]api.Condition{}}
	if d := cmp.Diff(want, v); d != "" {
		t.Error(d)
	}
}
