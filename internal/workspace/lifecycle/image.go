package lifecycle

import "codehub/internal/workspace"

// AuditImageUpdate is the action of UpdateImage in the audit log.
const AuditImageUpdate = "workspace.image_update"

// ImageBlocks reports whether the image keeps the workspace from starting: its last attempt
// failed, or its operation waits for the image. SetImage then starts it again, and the pages
// offer to change the image.
func ImageBlocks(w workspace.Workspace) bool {
	switch {
	case Present(w) != nil:
		return false
	case w.Operation == workspace.OpProvisioning, w.Operation == workspace.OpStarting:
		return w.CancelRequestedAt == nil && w.Progress != nil && workspace.AwaitsImage(w.Progress.Step)
	case w.Operation != workspace.OpNone, w.Phase != workspace.PhaseError:
		return false
	}
	switch w.ErrorReason {
	case workspace.ErrImagePullFailed, workspace.ErrImagePullTooSlow, workspace.ErrImageNotAllowed:
		return true
	case workspace.ErrRetryExceeded, workspace.ErrTimeout:
		// Of a start: a program of the image may be missing, or never listen.
		return w.DesiredState == workspace.DesiredRunning && w.Conditions.Is(workspace.VolumeReady)
	}
	return false
}

// PinOf returns the image that the next start uses; nil: the one that ImageRef names
// then.
func PinOf(w workspace.Workspace) *workspace.ImagePin {
	if p := w.ImagePin; p != nil && p.Ref == w.ImageRef && p.Generation == w.ImageGeneration {
		return p
	}
	return nil
}

// UpdateWaits reports whether a requested update of the image waits for the next start.
func UpdateWaits(w workspace.Workspace) bool {
	return w.ImagePull && PinOf(w) == nil && w.ImagePin != nil && w.ImagePin.Ref == w.ImageRef
}

// UpdateAvailable reports whether ImageRef names another image than the pinned one now.
func UpdateAvailable(w workspace.Workspace) bool {
	return w.ImageNewer != "" && PinOf(w) != nil
}

// UpdateImage makes the next start use the image that ImageRef names then, pulled from
// its registry. A container that exists keeps its own.
func UpdateImage(w workspace.Workspace) (Intent, error) {
	if err := Present(w); err != nil {
		return Intent{}, err
	}
	if w.ImagePull && PinOf(w) == nil {
		return unchanged(w), nil // requested already
	}
	out := Intent{Workspace: w, Changed: true, Audit: Entry{AuditImageUpdate, map[string]any{"image": w.ImageRef}}}
	if p := w.ImagePin; p != nil {
		out.Audit.Details["from_id"], out.Audit.Details["from_digest"] = p.ID, p.Digest
	}
	out.Workspace.ImageGeneration++
	out.Workspace.ImagePull = true
	return out, nil
}

// pinned returns the row with the image of its running container as the pinned one, and
// with what is known of a newer one.
func pinned(in Input) workspace.Workspace {
	row, c := in.Row, in.Obs.Container
	if in.Obs.ContainerKnown && c != nil && c.State == Running && c.Pin.ID != "" && c.Pin.Ref == row.ImageRef && c.Pin.Generation == row.ImageGeneration {
		if row.ImagePin == nil || *row.ImagePin != c.Pin {
			pin := c.Pin
			if p := PinOf(row); p == nil || p.ID != pin.ID {
				row.ImageNewer = ""
			}
			row.ImagePin = &pin
		}
	}
	switch pin := PinOf(row); {
	case pin == nil:
		row.ImageNewer = ""
	case in.Newest != (Newest{}):
		row.ImageNewer = newer(*pin, in.Newest)
	}
	return row
}

// newer returns the ID or digest of the newest image, or "" if that is the pinned one. An
// image that is known by its digest alone is compared only with an image of a registry.
func newer(pin workspace.ImagePin, newest Newest) string {
	switch {
	case newest.ID != "" && newest.ID == pin.ID, newest.Digest != "" && newest.Digest == pin.Digest:
		return ""
	case newest.Digest != "" && (newest.ID != "" || pin.Digest != ""):
		return newest.Digest
	}
	return newest.ID
}
