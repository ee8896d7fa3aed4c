package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// This file loads a workspace, applies an intent of package lifecycle, and saves
// the result with its audit entry in the same transaction. The errors of each
// method are those of its intent, and CodeNotFound and CodeForbidden.

// intend is an intent that also reads or writes other tables. The transaction holds the
// workspace's row.
type intend func(ctx context.Context, tx pgx.Tx, w workspace.Workspace, now time.Time) (lifecycle.Intent, error)

// plain returns an intend for an intent that needs only the workspace.
func plain(f func(workspace.Workspace, time.Time) (lifecycle.Intent, error)) intend {
	return func(_ context.Context, _ pgx.Tx, w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		return f(w, now)
	}
}

// locks are those that an intent needs before the lock of the workspace's row.
type locks int

const (
	needsNoSlot locks = iota
	mayNeedSlot       // of the running limits
	addsToOwner       // mayNeedSlot, and the lock of the caller: the intent adds to what the caller has
)

func (l locks) take(ctx context.Context, tx pgx.Tx, caller workspace.Caller) error {
	if l == needsNoSlot {
		return nil
	}
	if err := lockLimits(ctx, tx); err != nil || l != addsToOwner {
		return err
	}
	if !workspace.ValidID(caller.UserID) {
		return forbidden()
	}
	return lockUser(ctx, tx, caller.UserID)
}

// apply applies an intent to a workspace. It returns the saved workspace and whether it
// changed. verb names the intent in errors. CodeLimitExceeded or CodeQuotaExceeded, and nothing
// is saved, if the intent needs a slot and checkStart refuses it. CodeForbidden if it starts a workspace whose owner is not
// active.
func (db *DB) apply(ctx context.Context, caller workspace.Caller, id workspace.ID, verb string, before locks, f intend) (w workspace.Workspace, changed bool, err error) {
	return db.applyFor(ctx, caller, caller, id, verb, before, f)
}

// applyFor is apply with the rights of caller, recorded in the audit log as done by by.
func (db *DB) applyFor(ctx context.Context, caller, by workspace.Caller, id workspace.ID, verb string, before locks, f intend) (w workspace.Workspace, changed bool, err error) {
	err = db.tx(ctx, verb, func(tx pgx.Tx) error {
		if err := before.take(ctx, tx, caller); err != nil {
			return err
		}
		seen, now, err := lockWorkspace(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		intent, err := f(ctx, tx, seen, now)
		if err != nil {
			return err
		}
		w, changed = seen, intent.Changed
		if !changed {
			return nil
		}
		if intent.NeedsSlot {
			if err := checkOwnerActive(ctx, tx, intent.Workspace); err != nil {
				return err
			}
			if intent, err = db.checkStart(ctx, tx, seen, intent, now); err != nil {
				return forCaller(by, err)
			}
		}
		if w, err = saveWorkspace(ctx, tx, intent.Workspace, !intent.AccessOnly); err != nil {
			return err
		}
		if intent.Audit.Action == "" {
			return nil
		}
		return audit(ctx, tx, by, intent.Audit.Action, string(id), intent.Audit.Details)
	})
	if err != nil {
		return workspace.Workspace{}, false, err
	}
	return w, changed, nil
}

// checkOwnerActive returns CodeForbidden for a workspace that is to run and whose owner is not
// active. One that only keeps its container until its stop passes.
func checkOwnerActive(ctx context.Context, tx pgx.Tx, next workspace.Workspace) error {
	if next.DesiredState != workspace.DesiredRunning {
		return nil
	}
	active, err := isActive(ctx, tx, next.OwnerID)
	if err == nil && !active {
		err = workspace.Errorf(workspace.CodeForbidden, "The account of the workspace's owner is disabled or suspended, so the workspace does not start.")
	}
	return err
}

// ApplyQueued makes a queued state the desired one (lifecycle.ApplyQueued), or drops a start that
// the space of the home does not allow (lifecycle.CheckQueuedSpace). It returns false if there is
// none or it must wait, also for the running limits and that of the owner's bytes, or for the
// owner's account to be enabled. The leader calls it.
func (db *DB) ApplyQueued(ctx context.Context, id workspace.ID) (applied bool, err error) {
	_, applied, err = db.apply(ctx, workspace.System, id, "apply a queued state", mayNeedSlot, plain(func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		return lifecycle.CheckQueuedSpace(w, lifecycle.ApplyQueued(w, now), db.sizes), nil
	}))
	switch workspace.CodeOf(err) {
	case workspace.CodeNotFound, workspace.CodeLimitExceeded, workspace.CodeQuotaExceeded, workspace.CodeForbidden:
		return false, nil
	}
	return applied, err
}

// Restart stops a running workspace and starts it again (lifecycle.Restart).
// CodeImageNotAllowed, and it keeps running.
func (db *DB) Restart(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, _, err := db.apply(ctx, caller, id, "restart a workspace", needsNoSlot, plain(func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		out, err := lifecycle.Restart(w, now)
		return db.startable(w, out, err)
	}))
	return w, err
}

// Wake starts the workspace because a user opens it (lifecycle.Wake): its owner, or a guest who
// may use it. It counts against the owner's limits. CodeImageNotAllowed if that starts it;
// CodeQuotaExceeded of lifecycle.CheckSpace and CheckOwned; for a guest CodeNotRunning while it is archived.
func (db *DB) Wake(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, _, err := db.applyFor(ctx, workspace.System, caller, id, "wake a workspace", mayNeedSlot, func(ctx context.Context, tx pgx.Tx, w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		if err := db.enters(ctx, tx, caller, w); err != nil {
			return lifecycle.Intent{}, err
		}
		if err := checkActive(ctx, tx, caller); err != nil {
			return lifecycle.Intent{}, err
		}
		if !caller.Uses(w.OwnerID, w.ID) && archives(w) {
			return lifecycle.Intent{}, workspace.Errorf(workspace.CodeNotRunning, "The workspace is being archived. Only its owner can start it again.")
		}
		out, err := lifecycle.Wake(w, now)
		if out, err = db.startable(w, out, err); err != nil {
			return out, err
		}
		return lifecycle.CheckSpace(w, out, db.sizes, false, now)
	})
	var full *workspace.Error
	if errors.As(err, &full) && (full.Code == workspace.CodeLimitExceeded || full.Code == workspace.CodeQuotaExceeded) {
		if _, theirs := db.Workspace(ctx, caller, id); theirs != nil {
			err = guestLimit() // a guest must not see the owner's other workspaces
		}
	}
	return w, err
}

// archives reports whether the workspace is on its way to its archive, which guests must not undo.
func archives(w workspace.Workspace) bool {
	return w.Phase != workspace.PhaseArchived &&
		(w.Operation == workspace.OpArchiving || w.DesiredState == workspace.DesiredArchived || w.NextDesired == workspace.DesiredArchived)
}

// Stay restarts the idle timeout of a running workspace (lifecycle.Stay).
func (db *DB) Stay(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, _, err := db.apply(ctx, caller, id, "keep a workspace running", mayNeedSlot, plain(lifecycle.Stay))
	return w, err
}

// RequestCancel requests that the running operation is cancelled.
func (db *DB) RequestCancel(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, _, err := db.apply(ctx, caller, id, "request a cancellation", needsNoSlot, plain(lifecycle.RequestCancel))
	return w, err
}

// Stop stops a workspace (lifecycle.Stop).
func (db *DB) Stop(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, _, err := db.apply(ctx, caller, id, "stop a workspace", needsNoSlot, plain(lifecycle.Stop))
	return w, err
}

// RequestForceStop requests the removal of the container.
func (db *DB) RequestForceStop(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, _, err := db.apply(ctx, caller, id, "request a forced stop", needsNoSlot, plain(lifecycle.RequestForceStop))
	return w, err
}

// RequestRecover requests a recovery from ERROR. CodeLimitExceeded if the workspace would then
// run. If its image is not allowed, it does not: see lifecycle.WithoutStart.
func (db *DB) RequestRecover(ctx context.Context, caller workspace.Caller, id workspace.ID, action string) (workspace.Workspace, error) {
	w, _, err := db.apply(ctx, caller, id, "request a recovery", mayNeedSlot, plain(func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		return db.recoverAllowed(w, now, action)
	}))
	return w, err
}

// recoverAllowed is lifecycle.RequestRecover. A workspace whose image is not allowed is not
// started.
func (db *DB) recoverAllowed(w workspace.Workspace, now time.Time, action string) (lifecycle.Intent, error) {
	out, err := lifecycle.RequestRecover(w, now, action)
	if err == nil && w.ErrorReason == workspace.ErrImageNotAllowed && db.images.CheckStart(w.ImageRef) != nil {
		out = lifecycle.WithoutStart(out)
	}
	return out, err
}

// RequestRecoverArchive requests that one of the workspace's archives, the one that the
// operation archiveOpID made, or the backup with that id replaces the lost home. Garbage collection
// keeps it until the controller has used it.
func (db *DB) RequestRecoverArchive(ctx context.Context, caller workspace.Caller, id workspace.ID, archiveOpID string) (workspace.Workspace, error) {
	w, _, err := db.apply(ctx, caller, id, "request a recovery", mayNeedSlot, func(ctx context.Context, tx pgx.Tx, w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		from, err := chooseArchive(ctx, tx, id, archiveOpID)
		if err != nil {
			return lifecycle.Intent{}, err
		}
		return lifecycle.RequestRecoverFrom(w, now, from)
	})
	return w, err
}

// DeleteWorkspace deletes a workspace.
func (db *DB) DeleteWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID, queue bool) (workspace.Workspace, error) {
	w, _, err := db.apply(ctx, caller, id, "delete a workspace", needsNoSlot, plain(func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		return lifecycle.Delete(w, now, queue)
	}))
	return w, err
}

// UndeleteWorkspace undoes a deletion. CodeNameTaken; CodeQuotaExceeded if the owner has as many
// workspaces as allowed; CodeLimitExceeded if the container still exists and another workspace has
// taken its slot.
func (db *DB) UndeleteWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, _, err := db.apply(ctx, caller, id, "undelete a workspace", addsToOwner, func(ctx context.Context, tx pgx.Tx, w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		out, err := undeletion(ctx, tx, w, now)
		if err == nil {
			err = db.checkPresent(ctx, tx, w.OwnerID)
		}
		return out, err
	})
	return w, err
}

func undeletion(ctx context.Context, tx pgx.Tx, w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
	going, err := archiveBeingRemoved(ctx, tx, w.ArchiveKey)
	if err != nil {
		return lifecycle.Intent{}, err
	}
	out, err := lifecycle.Undelete(w, now, going)
	if err != nil {
		return lifecycle.Intent{}, err
	}
	// An earlier backup of the database must be recognized as one.
	return out, requestMark(ctx, tx)
}
