package lifecycle_test

import (
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

func TestSetSize(t *testing.T) {
	t.Parallel()
	offered := workspace.Sizes{Default: workspace.Size{Name: workspace.DefaultSize}, Offered: []workspace.Size{{Name: "small"}, {Name: "large"}}}
	w := workspace.Workspace{Size: "small", RunningSize: "small"}
	w.Conditions = w.Conditions.With(workspace.ContainerReady, true, workspace.ReasonContainerReady, "", time.Now())
	if lifecycle.SizeWaits(w, offered) {
		t.Error("the size of the container waits")
	}
	for _, tc := range []struct {
		size    string
		changed bool
		code    workspace.Code
		waits   bool
	}{
		{"small", false, "", false}, {"large", true, "", true}, {"", true, "", true}, {"huge", false, workspace.CodeInvalid, false}, {"default", false, workspace.CodeInvalid, false},
	} {
		out, err := lifecycle.SetSize(w, tc.size, offered)
		if workspace.CodeOf(err) != tc.code || out.Changed != tc.changed {
			t.Errorf("%q: %+v, %v", tc.size, out, err)
			continue
		}
		if err == nil && (out.Workspace.Size != tc.size || lifecycle.SizeWaits(out.Workspace, offered) != tc.waits) {
			t.Errorf("%q: %+v", tc.size, out.Workspace)
		}
	}
	// The audit log has names, of the default size too.
	if out, err := lifecycle.SetSize(w, "", offered); err != nil || out.Audit.Details["from"] != "small" || out.Audit.Details["to"] != workspace.DefaultSize {
		t.Errorf("audit log: %v, %v", out.Audit.Details, err)
	}
	gone := w
	gone.Size = "gone"
	if _, err := lifecycle.SetSize(gone, "gone", offered); err != nil {
		t.Errorf("a size that is no longer offered cannot stay: %v", err)
	}
	if !lifecycle.SizeWaits(gone, offered) {
		t.Error("the default size, which replaces one that is no longer offered, does not wait")
	}
	gone.RunningSize = ""
	if lifecycle.SizeWaits(gone, offered) {
		t.Error("the size of a container that was not observed waits")
	}
}
