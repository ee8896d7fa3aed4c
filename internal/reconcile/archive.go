package reconcile

import (
	"context"
	"errors"
	"fmt"

	"codehub/internal/archive"
	"codehub/internal/judge"
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
	if row.Home.State == workspace.HomeRemoving {
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
	made, own, err := t.runJob(ctx, own, spec, func(spec *runtime.JobSpec) error {
		return t.cfg.Archives.ArchiveJob(ctx, row, owner, spec)
	}, w, func() { t.passed(row.ID, "archive.job-started") })
	if err != nil {
		return notDamaged(err)
	}
	t.passed(row.ID, "archive.job-done")
	meta, err := t.cfg.Archives.ReadBack(ctx, key, made, func(bytes, entries int64) {
		w.step(runtime.Progress{Step: runtime.StepVerifying, Done: bytes, Total: made.Bytes, Entries: entries, EntriesTotal: made.Entries})
	})
	if err != nil {
		return notDamaged(fmt.Errorf("read the stored archive back: %w", err))
	}
	t.passed(row.ID, "archive.verified")
	if row, err = t.store(ctx, row, key, meta, "archive"); err != nil || row.Home.State != workspace.HomeRemoving {
		return err
	}
	return t.removeArchived(ctx, row, own, w)
}

// removeArchived removes the volume of a home in removing. Nothing is removed
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
		if seen != judge.ArchivePresent {
			return nil // the volume stays, and the next look says what is lost
		}
	}
	t.passed(row.ID, "archive.looked")
	if err := t.cfg.Runtime.RemoveVolume(ctx, row.ID, row.Home.Claim); err != nil {
		return err
	}
	t.passed(row.ID, "archive.volume-removed")
	return nil
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
		row.Home.State = workspace.HomeRemoving
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
