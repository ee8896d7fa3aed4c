package reconcile

import (
	"context"
	"errors"
	"fmt"

	"codehub/internal/archive"
	"codehub/internal/lifecycle"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// archive carries out ARCHIVING, in the order of design §3.8: the home is
// packed and stored by a job, read back by the server, made the workspace's
// archive while nobody wants it awake, and only then removed.
func (t *term) archive(ctx context.Context, row workspace.Workspace, w *work) error {
	t.passed(row.ID, "archive.begin")
	own, err := t.endJobs(ctx, row)
	if err != nil {
		return err
	}
	t.passed(row.ID, "archive.jobs-ended")
	if row.Home.State.Removable() {
		return t.removeArchived(ctx, row, own, w)
	}
	key := t.cfg.Archives.Key(row.ID, row.OpID)
	owner, ours, err := t.claimArchive(ctx, row, key)
	if err != nil || !ours {
		return err
	}
	t.passed(row.ID, "archive.claimed")
	spec := runtime.JobSpec{
		Workspace: row.ID, Claim: row.OpID, Kind: runtime.JobArchive, Storage: row.StorageBackend,
		VolumeClaim: row.Home.Claim, Key: key,
	}
	ended := own != nil && !own.Running
	made, own, err := t.runJob(ctx, own, spec, func(spec *runtime.JobSpec) error {
		return t.cfg.Archives.ArchiveJob(ctx, row, owner, spec)
	}, w, func() { t.passed(row.ID, "archive.job-started") })
	if errors.Is(err, archive.ErrChanged) {
		return fmt.Errorf("%w while it was packed: %w", errHomeChanged, err)
	}
	if err != nil {
		return notDamaged(err)
	}
	t.passed(row.ID, "archive.job-done")
	if ended {
		// An attempt before this one waited, perhaps: nothing is read back in vain.
		if err := t.checkUnchanged(ctx, row, own, made, w); err != nil {
			return err
		}
	}
	meta, err := t.cfg.Archives.ReadBack(ctx, key, made, func(bytes, entries int64) {
		w.step(runtime.Progress{Step: runtime.StepVerifying, Done: bytes, Total: made.Bytes, Entries: entries, EntriesTotal: made.Entries})
	})
	if err != nil {
		return notDamaged(fmt.Errorf("read the stored archive back: %w", err))
	}
	t.passed(row.ID, "archive.verified")
	if err := t.checkUnchanged(ctx, row, own, made, w); err != nil {
		return err
	}
	t.passed(row.ID, "archive.unchanged")
	if row, err = t.store(ctx, row, key, meta, "archive"); err != nil || row.Home.State != workspace.HomeArchived {
		return err
	}
	return t.removeArchived(ctx, row, own, w)
}

// errHomeChanged is an archive that does not count, as the home has changed
// since. It is packed again, at most maxChanges times for one claim.
var errHomeChanged = errors.New("the home has changed")

// checkUnchanged makes sure that nothing uses the home, and that it is what was
// packed: its fingerprint is the one that the job reported. If it is not, the
// job is removed, so that the next attempt packs again. (A job of an earlier
// version reports none.)
func (t *term) checkUnchanged(ctx context.Context, row workspace.Workspace, own *runtime.Job, made archive.Stats, w *work) error {
	seen, err := t.cfg.Runtime.Fingerprint(ctx, row.ID, row.Home.Claim, func(p runtime.Progress) {
		p.EntriesTotal = made.Entries
		w.step(p)
	})
	if err != nil {
		return fmt.Errorf("check the home before its archive is stored: %w", err)
	}
	if made.Fingerprint != "" && seen == made.Fingerprint {
		return nil
	}
	if err := t.cfg.Runtime.RemoveJob(ctx, own.ID); err != nil {
		return fmt.Errorf("remove the storage job: %w", err)
	}
	return fmt.Errorf("%w since it was packed", errHomeChanged)
}

// removeArchived removes the volume of an archived or discarded home. Nothing is removed
// on the word of an earlier look: the archive is looked at right before that.
// (A home without one was given up.)
func (t *term) removeArchived(ctx context.Context, row workspace.Workspace, own *runtime.Job, w *work) error {
	w.step(runtime.Progress{Step: runtime.StepRemoving})
	if own != nil {
		if err := t.cfg.Runtime.RemoveJob(ctx, own.ID); err != nil {
			return fmt.Errorf("remove the storage job: %w", err)
		}
	}
	t.passed(row.ID, "archive.job-removed")
	if row.ArchiveKey != "" {
		seen, err := t.cfg.Archives.Look(ctx, row)
		if err != nil {
			return fmt.Errorf("look at the archive before its home is removed: %w", err)
		}
		if seen != lifecycle.ArchivePresent {
			return nil // the volume stays, and the next look says what is lost
		}
	}
	t.passed(row.ID, "archive.looked")
	err := t.removeVolume(ctx, row, w.step)
	if f := failure(err); f != nil && f.InUse {
		return errors.Join(err, t.keepHome(ctx, row))
	}
	if err != nil {
		return err
	}
	t.passed(row.ID, "archive.volume-removed")
	return nil
}

// keepHome takes the home back that a container uses whose archive was just
// stored: what the container writes is in no archive yet. The operation ends by
// that, and the next one packs under another key. A home that is not
// whole any more is not taken back; only its removal is waited for.
func (t *term) keepHome(ctx context.Context, row workspace.Workspace) error {
	if row.ArchiveKey == "" || row.Home.State != workspace.HomeArchived {
		return nil
	}
	home, err := t.volumeOf(ctx, row)
	if err != nil || home == nil || !home.Seeded && home.Marker == "" {
		return err
	}
	kept := false
	err = t.through(ctx, func(ctx context.Context) (err error) {
		kept, err = t.rows.KeepHome(ctx, row.ID, row.OpID, row.Home.Claim)
		return err
	})
	if kept {
		t.cfg.Log.Info("archived home kept because a container uses it", "workspace", row.ID)
	}
	return err
}

// archiveNothing carries out CREATE_EMPTY_ARCHIVE: what has no home needs no
// job, and the server stores its archive.
func (t *term) archiveNothing(ctx context.Context, row workspace.Workspace) error {
	t.passed(row.ID, "empty.begin")
	if _, err := t.endJobs(ctx, row); err != nil {
		return err
	}
	t.passed(row.ID, "empty.jobs-ended")
	key := t.cfg.Archives.Key(row.ID, row.OpID)
	if row.ArchiveKey == key {
		return nil // stored already, and about to be seen
	}
	owner, ours, err := t.claimArchive(ctx, row, key)
	if err != nil || !ours {
		return err
	}
	t.passed(row.ID, "empty.claimed")
	meta, err := t.cfg.Archives.PutEmpty(ctx, row, owner)
	if err != nil {
		return notDamaged(fmt.Errorf("store an empty archive: %w", err))
	}
	t.passed(row.ID, "empty.verified")
	_, err = t.store(ctx, row, key, meta, "empty")
	return err
}

// claimArchive records the archive that is about to be made, so that it is
// known to be codehub's own whatever happens (design §3.9).
func (t *term) claimArchive(ctx context.Context, row workspace.Workspace, key string) (owner string, ours bool, err error) {
	err = t.through(ctx, func(ctx context.Context) error {
		if owner, err = t.rows.Owner(ctx, row.ID); err != nil {
			return err
		}
		ours, err = t.rows.ClaimArchive(ctx, row.ID, row.OpID, key)
		return err
	})
	return owner, ours, err
}

// through runs statements of an executor through the leader's session. They are
// not cut off when the operation is cancelled: that would end the session, and
// the term with it. What they compare keeps them from coming too late.
func (t *term) through(ctx context.Context, f func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.ctx, answer)
	defer cancel()
	return f(ctx)
}

// store makes a verified archive the workspace's own. The row that it returns
// is as it was before if somebody has come in between.
func (t *term) store(ctx context.Context, row workspace.Workspace, key string, meta *archive.Meta, of string) (workspace.Workspace, error) {
	t.passed(row.ID, of+".before-store")
	stored := false
	err := t.through(ctx, func(ctx context.Context) (err error) {
		stored, err = t.rows.StoreArchive(ctx, postgres.Stored{
			ID: row.ID, Claim: row.OpID, Key: key, Digest: meta.SHA256, Size: meta.Size, Entries: meta.Entries,
		})
		return err
	})
	if err != nil || !stored {
		return row, err
	}
	row.ArchiveKey, row.ArchiveDigest, row.ArchiveSize, row.ArchiveEntries = key, meta.SHA256, meta.Size, meta.Entries
	if row.Operation == workspace.OpArchiving {
		row.Home.State = workspace.HomeArchived
	}
	t.passed(row.ID, of+".stored")
	return row, nil
}

// notDamaged: an archive that is not what was packed is one that is made
// again. The home it was made of is where it was.
func notDamaged(err error) error {
	if errors.Is(err, archive.ErrCorrupted) || errors.Is(err, archive.ErrNotFound) {
		return errors.New(err.Error())
	}
	return err
}
