package lifecycle

import "codehub/internal/workspace"

// InTheWay reports whether a volume with the home's name was seen that is not
// the home that the row has: without a claim, or with another one.
func InTheWay(in Input) bool {
	v := in.Obs.Volume
	return in.Obs.VolumeKnown && v != nil && (v.Claim == "" || v.Claim != in.Row.Home.Claim)
}

// settingAside decides about a request to set aside what is in the way. It
// reports false when nothing is in the way, or not any more: then the request
// is that of a plain recovery. A live home is never set aside, since a volume
// with its claim is not in the way; what replaced it may be, and the home is
// lost before and after.
func settingAside(in Input) (Result, bool) {
	row := in.Row
	if row.RecoverAction != workspace.RecoverSetAside || row.DeletedAt != nil || !InTheWay(in) {
		return Result{}, false
	}
	// A container that holds the volume has to go first.
	if r, ok := removal(in, *row.RecoverRequestedAt); ok {
		return r, true
	}
	r := Result{Row: row, ClearCancel: row.CancelRequestedAt != nil}
	f := in.Aside
	if f == nil {
		r.Action = Action{Kind: SetAside}
		return r, true
	}
	reason := lost(row)
	if reason == "" {
		reason = workspace.ErrRetryExceeded
	}
	r.Row.ErrorReason, r.Row.ErrorMessage, r.Row.RetryAt = reason, msgAsideFailed+" "+f.Message, nil
	r.Row.ErrorCount++
	r.Action, r.ClearRecover = Action{Kind: Fail, Reason: reason, Message: r.Row.ErrorMessage}, true
	return r, true
}

// withWayOut adds to an error's message what the owner can do about a volume
// that is in the way.
func withWayOut(in Input, message string) string {
	if in.Row.DeletedAt != nil || !InTheWay(in) {
		return message
	}
	return sentences(message, msgSetAside)
}
