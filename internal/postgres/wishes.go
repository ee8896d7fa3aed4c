package postgres

import (
	"context"
	"time"

	"codehub/api"
	"codehub/internal/workspace"
)

// Patch is what a person changes of a workspace; what is nil or not set stays
// as it is.
type Patch struct {
	Name           *string
	Description    *string
	Memo           *string
	StandbyTTL     api.Nullable[int]
	ArchiveTTL     api.Nullable[int]
	KeepAwakeUntil api.Nullable[time.Time]
	Desired        *workspace.DesiredState
	Queue          bool // keep Desired for later if an operation runs
}

// PatchWorkspace changes a workspace, all of it or, on an error, nothing.
// CodeNotFound once it is deleted; CodeNameTaken; for Desired
// CodeRecoveryRequired in ERROR, CodeOperationInProgress while an operation
// runs unless it is queued or what is desired already, CodeLimitExceeded.
func (db *DB) PatchWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID, p Patch) (workspace.Workspace, error) {
	w, _, err := db.change(ctx, caller, id, change{
		verb:  "change a workspace",
		slots: p.Desired != nil && *p.Desired == workspace.DesiredRunning,
		decide: func(d decision, w *workspace.Workspace) (record, bool, error) {
			if err := present(w); err != nil {
				return record{}, false, err
			}
			edited := p.edit(w)
			if p.Desired == nil {
				return record{}, edited, nil
			}
			entry, wished, err := wish(d, w, *p.Desired, p.Queue, caller)
			return entry, edited || wished, err
		},
	})
	return w, err
}

func (p Patch) edit(w *workspace.Workspace) (changed bool) {
	for _, f := range []struct{ from, to *string }{{p.Name, &w.Name}, {p.Description, &w.Description}, {p.Memo, &w.Memo}} {
		if f.from != nil && *f.from != *f.to {
			*f.to, changed = *f.from, true
		}
	}
	if p.StandbyTTL.Set {
		w.StandbyTTL, changed = p.StandbyTTL.Value, true
	}
	if p.ArchiveTTL.Set {
		w.ArchiveTTL, changed = p.ArchiveTTL.Value, true
	}
	if p.KeepAwakeUntil.Set {
		w.KeepAwakeTil, changed = p.KeepAwakeUntil.Value, true
	}
	return changed
}

// wish sets what is desired. The last wish counts: one that is fulfilled
// already takes back what was queued after it.
func wish(d decision, w *workspace.Workspace, want workspace.DesiredState, queue bool, caller workspace.Caller) (record, bool, error) {
	entry := record{action: AuditDesired, details: map[string]any{"from": w.DesiredState, "to": want}}
	if caller == workspace.System {
		entry = record{}
	}
	keeps := caller != workspace.System && keepsUp(w.Phase, want)
	switch {
	case w.Phase == workspace.PhaseError:
		return record{}, false, workspace.Errorf(workspace.CodeRecoveryRequired, "the workspace is in an error state; recover it first")
	case want == w.DesiredState:
		changed := w.NextDesired != ""
		if w.NextDesired = ""; changed && keeps {
			stays(d, w)
		}
		return entry, changed, nil
	case w.Operation != workspace.OpNone && !queue:
		return record{}, false, inProgress(w)
	case w.Operation != workspace.OpNone:
		changed := w.NextDesired != want
		if w.NextDesired = want; changed && keeps {
			stays(d, w)
		}
		entry.queued()
		return entry, changed, nil
	}
	if want == workspace.DesiredRunning {
		if err := d.mayRun(); err != nil {
			return record{}, false, err
		}
	}
	w.DesiredState, w.NextDesired = want, ""
	if keeps {
		stays(d, w)
	}
	return entry, true, nil
}

// keepsUp reports whether a wish leaves a phase that a TTL ends as it is, or
// leads up from it, so that what the TTL counts from must not be the phase's
// begin.
func keepsUp(phase workspace.Phase, want workspace.DesiredState) bool {
	return phase == workspace.PhaseStandby && want != workspace.DesiredArchived ||
		phase == workspace.PhaseRunning && want == workspace.DesiredRunning
}

func (r record) queued() {
	if r.details != nil {
		r.details["queued"] = true
	}
}

func inProgress(w *workspace.Workspace) error {
	return &workspace.Error{
		Code:    workspace.CodeOperationInProgress,
		Message: "the workspace is busy; try again when that is done, or have the wish queued",
		Details: map[string]any{"operation": string(w.Operation)},
	}
}

// ApplyQueued puts a queued wish into force once no operation runs. It is
// false if there is none, or if it has to wait: for the operation, for the
// limits, for a recovery (only a deletion is applied in ERROR). The leader
// calls it.
func (db *DB) ApplyQueued(ctx context.Context, id workspace.ID) (applied bool, err error) {
	_, applied, err = db.change(ctx, workspace.System, id, change{
		verb:  "apply a queued wish",
		slots: true,
		decide: func(d decision, w *workspace.Workspace) (record, bool, error) {
			want := w.NextDesired
			switch {
			case want == "", present(w) != nil, w.Operation != workspace.OpNone:
				return record{}, false, nil
			case want == workspace.DesiredDeleted:
				deleteNow(d, w)
				return record{}, true, nil
			case w.Phase == workspace.PhaseError:
				return record{}, false, nil
			case want == workspace.DesiredRunning && w.DesiredState != want:
				err := d.mayRun()
				if workspace.CodeOf(err) == workspace.CodeLimitExceeded {
					return record{}, false, nil
				}
				if err != nil {
					return record{}, false, err
				}
			}
			w.DesiredState, w.NextDesired = want, ""
			return record{}, true, nil
		},
	})
	if workspace.CodeOf(err) == workspace.CodeNotFound {
		return false, nil
	}
	return applied, err
}
