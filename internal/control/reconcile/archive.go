package reconcile

import (
	"context"
	"errors"
	"fmt"

	"codehub/internal/archive"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// archive carries out ARCHIVING: a job packs and stores the home, the server reads
// the stored archive back, the row takes it as the workspace's archive, and only
// then the volume is removed. A crash at any point leaves either the volume or a
// verified archive.
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
	// A job that exists has packed the home as it is.
	if own == nil {
		if err := t.awaitRoom(w); err != nil {
			return err
		}
		cause := workspace.BackupArchive
		if row.RestoreFrom != nil {
			cause = workspace.BackupRestore
		}
		t.cfg.Backup(ctx, row, cause, w.step)
		var ours bool
		if row, ours, err = t.ownHome(ctx, row, w.step); err != nil || !ours {
			return err
		}
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
		return hideDamage(err)
	}
	t.passed(row.ID, "archive.job-done")
	if ended {
		// An earlier attempt may have waited, and the home may have changed since:
		// reading a stale archive back would be wasted work.
		if err := t.checkUnchanged(ctx, row, own, made, w); err != nil {
			return err
		}
	}
	meta, err := t.cfg.Archives.ReadBack(ctx, key, made, func(bytes, entries int64) {
		w.step(runtime.Progress{Step: runtime.StepVerifying, Done: bytes, Total: made.Bytes, Entries: entries, EntriesTotal: made.Entries})
	})
	if err != nil {
		return hideDamage(fmt.Errorf("read the stored archive back: %w", err))
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

// noRoom is an archive that does not fit on the disk of the archives: what it needs, and what is
// available, in bytes. It waits without a deadline.
type noRoom struct{ needs, free int64 }

func (e *noRoom) Error() string {
	return fmt.Sprintf(msgNoRoom, (e.needs+1<<20-1)>>20, e.free>>20)
}

// Is makes the wait a transient one, which occupies no slot.
func (e *noRoom) Is(target error) bool { return target == runtime.ErrBusy }

// awaitRoom returns noRoom while there is less space than the archive of an earlier attempt needed.
func (t *term) awaitRoom(w *work) error {
	lacks := w.lacksRoom()
	if lacks == nil {
		return nil
	}
	free, err := t.cfg.Archives.Room()
	if err != nil {
		return fmt.Errorf("check the disk of the archives: %w", err)
	}
	if free < lacks.needs {
		return &noRoom{needs: lacks.needs, free: free}
	}
	w.hasRoom()
	return nil
}

// errHomeChanged means that an archive does not match the home any more. The home
// is packed again, at most maxChanges times per claim.
var errHomeChanged = errors.New("the home has changed")

// checkUnchanged verifies that no container uses the home and that its fingerprint
// is the one that the job reported. If it is not, or if the job comes from a
// version that reported no fingerprint, the job is removed so that the next attempt
// packs again.
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

// removeArchived removes the volume of an archived or discarded home. It checks the
// archive immediately before that instead of relying on an earlier observation. A
// discarded home may have no archive.
func (t *term) removeArchived(ctx context.Context, row workspace.Workspace, own *runtime.Job, w *work) error {
	w.step(runtime.Progress{Step: runtime.StepRemoving})
	if own != nil {
		if err := t.cfg.Runtime.RemoveJob(ctx, own.ID); err != nil {
			return fmt.Errorf("remove the storage job: %w", err)
		}
	}
	t.passed(row.ID, "archive.job-removed")
	if row.ArchiveKey != "" {
		seen, err := t.cfg.Archives.State(ctx, row)
		if err != nil {
			return fmt.Errorf("check the archive before its home is removed: %w", err)
		}
		if seen != lifecycle.ArchivePresent {
			return nil // the volume stays; the next observation reports the loss
		}
	}
	t.passed(row.ID, "archive.checked")
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

// keepHome returns an archived home to the workspace if a container uses its
// volume, because the stored archive lacks what the container writes. That ends the
// operation; the next one packs under a new key. A home that is already partly
// removed cannot be kept: its removal waits.
func (t *term) keepHome(ctx context.Context, row workspace.Workspace) error {
	if row.ArchiveKey == "" || row.Home.State != workspace.HomeArchived {
		return nil
	}
	home, err := t.volumeOf(ctx, row)
	if err != nil || home == nil || !home.Seeded && home.Marker == "" {
		return err
	}
	kept := false
	err = t.inSession(ctx, func(ctx context.Context) (err error) {
		kept, err = t.rows.KeepHome(ctx, row.ID, row.OpID, row.Home.Claim)
		return err
	})
	if kept {
		t.cfg.Log.Info("archived home kept because a container uses it", "workspace", row.ID)
	}
	return err
}

// archiveNothing carries out CREATE_EMPTY_ARCHIVE. A workspace without a home needs
// no job; the server stores the archive itself.
func (t *term) archiveNothing(ctx context.Context, row workspace.Workspace) error {
	t.passed(row.ID, "empty.begin")
	if _, err := t.endJobs(ctx, row); err != nil {
		return err
	}
	t.passed(row.ID, "empty.jobs-ended")
	key := t.cfg.Archives.Key(row.ID, row.OpID)
	if row.ArchiveKey == key {
		return nil // stored by an earlier attempt
	}
	owner, ours, err := t.claimArchive(ctx, row, key)
	if err != nil || !ours {
		return err
	}
	t.passed(row.ID, "empty.claimed")
	meta, err := t.cfg.Archives.PutEmpty(ctx, row, owner)
	if err != nil {
		return hideDamage(fmt.Errorf("store an empty archive: %w", err))
	}
	t.passed(row.ID, "empty.verified")
	_, err = t.store(ctx, row, key, meta, "empty")
	return err
}

// claimArchive records the archive before it is made, so that garbage collection
// can attribute it to codehub after a crash.
func (t *term) claimArchive(ctx context.Context, row workspace.Workspace, key string) (owner string, ours bool, err error) {
	err = t.inSession(ctx, func(ctx context.Context) error {
		if owner, err = t.rows.Owner(ctx, row.ID); err != nil {
			return err
		}
		ours, err = t.rows.ClaimArchive(ctx, row.ID, row.OpID, key)
		return err
	})
	return owner, ours, err
}

// store makes a verified archive the workspace's current one. If the claim has
// changed in the meantime, it returns row unchanged.
func (t *term) store(ctx context.Context, row workspace.Workspace, key string, meta *archive.Meta, of string) (workspace.Workspace, error) {
	t.passed(row.ID, of+".before-store")
	stored := false
	err := t.inSession(ctx, func(ctx context.Context) (err error) {
		stored, err = t.rows.StoreArchive(ctx, postgres.Stored{
			ID: row.ID, Claim: row.OpID, Key: key, Digest: meta.SHA256, Size: meta.Size, Entries: meta.Entries, Skipped: meta.Skipped,
		})
		return err
	})
	if err != nil || !stored {
		return row, err
	}
	row.ArchiveKey, row.ArchiveDigest, row.ArchiveSize = key, meta.SHA256, meta.Size
	if row.Operation == workspace.OpArchiving {
		row.Home.State = workspace.HomeArchived
	}
	t.passed(row.ID, of+".stored")
	return row, nil
}

// hideDamage removes ErrCorrupted and ErrNotFound from the chain of an error about
// a new archive. Such an archive is packed again; the home it was packed from is
// intact, so the operation must not end as a damaged archive.
func hideDamage(err error) error {
	if errors.Is(err, archive.ErrCorrupted) || errors.Is(err, store.ErrNotFound) {
		return errors.New(err.Error())
	}
	return err
}
