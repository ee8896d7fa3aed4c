package postgres

import (
	"context"

	"codehub/internal/workspace"
)

// WakeResult is what a visit found, and whether it changed what is wanted.
type WakeResult struct {
	Workspace workspace.Workspace
	Changed   bool
}

// accessOpen is the kind of access that a visit is (design §9).
const accessOpen = "open"

// Wake is a person opening the workspace (design §8): one at rest is started,
// one that is being stopped or archived is to come back afterwards, and
// whatever else it does goes on. The visit counts as activity.
// CodeLimitExceeded changes nothing.
func (db *DB) Wake(ctx context.Context, caller workspace.Caller, id workspace.ID) (WakeResult, error) {
	var wished bool
	w, _, err := db.change(ctx, caller, id, change{
		verb:  "wake a workspace",
		slots: true,
		decide: func(d decision, w *workspace.Workspace) (record, bool, error) {
			if err := present(w); err != nil {
				return record{}, false, err
			}
			wished = true
			switch {
			case wakes(w):
				if err := d.mayRun(); err != nil {
					return record{}, false, err
				}
				w.DesiredState, w.NextDesired = workspace.DesiredRunning, ""
			case comesBack(w):
				w.NextDesired = workspace.DesiredRunning
			default:
				wished = false
			}
			if now := d.now; w.LastAccessAt == nil || w.LastAccessAt.Before(now) {
				w.LastAccessAt = &now
			}
			w.LastAccess = accessOpen
			if !wished {
				return record{visit: true}, true, nil
			}
			return record{action: AuditWake}, true, nil
		},
	})
	return WakeResult{Workspace: w, Changed: wished && err == nil}, err
}

// wakes: at rest with its home there, or running and about to be stopped. A
// deletion that is queued stays.
func wakes(w *workspace.Workspace) bool {
	return w.Operation == workspace.OpNone &&
		(w.Phase == workspace.PhaseStandby || w.Phase == workspace.PhaseRunning) &&
		w.NextDesired != workspace.DesiredDeleted &&
		(w.DesiredState != workspace.DesiredRunning || w.NextDesired != "")
}

// comesBack: busy with something that does not lead to RUNNING, after which
// it can be started.
func comesBack(w *workspace.Workspace) bool {
	switch w.Operation {
	case workspace.OpStopping, workspace.OpArchiving, workspace.OpProvisioning, workspace.OpRestoring, workspace.OpStarting:
		return w.DesiredState != workspace.DesiredRunning &&
			w.NextDesired != workspace.DesiredRunning && w.NextDesired != workspace.DesiredDeleted
	}
	return false
}
