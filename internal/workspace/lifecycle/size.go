package lifecycle

import (
	"cmp"

	"codehub/internal/workspace"
)

// AuditSize is the action of SetSize in the audit log.
const AuditSize = "workspace.size"

// SetSize changes the size of the workspace; empty is the default one. The next start uses
// it; a container that exists keeps its own. CodeInvalid if the size is not offered;
// CodeQuotaExceeded if its disk space is less than before and less than what the home uses.
func SetSize(w workspace.Workspace, size string, offered workspace.Sizes) (Intent, error) {
	if err := Present(w); err != nil {
		return Intent{}, err
	}
	if size == w.Size {
		return unchanged(w), nil
	}
	if err := CheckSize(size, offered); err != nil {
		return Intent{}, err
	}
	// From a size that has no more space, the way to a somewhat larger one stays open.
	if to := offered.Of(size); offered.Of(w.Size).Disk == 0 || to.Disk < offered.Of(w.Size).Disk {
		if err := checkShrink(w, to, offered); err != nil {
			return Intent{}, err
		}
	}
	out := Intent{Workspace: w, Changed: true, Audit: Entry{AuditSize, map[string]any{"from": cmp.Or(w.Size, workspace.DefaultSize), "to": cmp.Or(size, workspace.DefaultSize)}}}
	out.Workspace.Size = size
	return out, nil
}

// CheckSize returns CodeInvalid if a workspace may not be given the size.
func CheckSize(size string, offered workspace.Sizes) error {
	if offered.Has(size) {
		return nil
	}
	return &workspace.Error{
		Code: workspace.CodeInvalid, Message: "The administrators do not offer this size.",
		Details: map[string]any{"field": "size", "sizes": offered.Names()},
	}
}

// SizeWaits reports whether the size of the workspace waits for its next start: its
// container has another one. Of a container that was not observed yet that is not known.
func SizeWaits(w workspace.Workspace, offered workspace.Sizes) bool {
	return w.Conditions.HasContainer() && w.RunningSize != "" && w.RunningSize != offered.Of(w.Size).Name
}
