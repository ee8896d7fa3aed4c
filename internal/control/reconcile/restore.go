package reconcile

import (
	"context"
	"errors"
	"fmt"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// restore carries out RESTORING: a job fills the home's volume, which is then
// marked with the key of the archive.
func (t *term) restore(ctx context.Context, row workspace.Workspace, w *work) error {
	t.passed(row.ID, "restore.begin")
	own, err := t.endJobs(ctx, row)
	if err != nil {
		return err
	}
	t.passed(row.ID, "restore.jobs-ended")
	home, err := t.volumeOf(ctx, row)
	if err != nil || home != nil && home.Marker == row.ArchiveKey {
		return err // restored by an earlier attempt
	}
	meta, err := t.metaOf(ctx, row)
	if err != nil || meta == nil {
		return err // if the archive is missing, the next observation reports the loss
	}
	t.passed(row.ID, "restore.meta-read")
	volume, err := t.volumeSpec(ctx, row)
	if err != nil {
		return err
	}
	// If the archive is empty, the workspace gets a home as a new one does.
	empty := meta.Entries == 0
	if row.Home.FromImage != empty {
		recorded := false
		err := t.inSession(ctx, func(ctx context.Context) (err error) {
			recorded, err = t.rows.RecordFilling(ctx, row.ID, row.OpID, row.Home.Claim, empty)
			return err
		})
		if err != nil || !recorded {
			return err
		}
	}
	if empty {
		if err := t.cfg.Runtime.CreateVolume(ctx, volume, w.step); err != nil {
			return err
		}
		t.passed(row.ID, "restore.volume-created")
		return t.markRestored(ctx, row)
	}
	if own != nil && home == nil {
		// The volume that this job filled is gone, so its result does not apply to
		// the new one.
		if err := t.cfg.Runtime.RemoveJob(ctx, own.ID); err != nil {
			return fmt.Errorf("remove a storage job: %w", err)
		}
		own = nil
	}
	if err := t.cfg.Runtime.CreateEmptyVolume(ctx, volume); err != nil {
		return err
	}
	t.passed(row.ID, "restore.volume-created")
	if home == nil {
		if home, err = t.volumeOf(ctx, row); err != nil {
			return err
		}
	}
	spec := runtime.JobSpec{
		Workspace: row.ID, Claim: row.OpID, Kind: runtime.JobRestore, Storage: row.StorageBackend,
		VolumeClaim: row.Home.Claim, Key: row.ArchiveKey,
		OwnDisk: home != nil && home.OwnDisk, SharesDisk: home != nil && home.SharesDisk,
	}
	var full *diskFullError
	done, _, err := t.runJob(ctx, own, spec, func(spec *runtime.JobSpec) error {
		return t.cfg.Archives.RestoreJob(ctx, row, meta, spec)
	}, w, func() { t.passed(row.ID, "restore.job-started") })
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case errors.Is(err, archive.ErrCorrupted):
		return fmt.Errorf("the archive %s: %w", row.ArchiveKey, err)
	case spec.OwnDisk && errors.As(err, &full):
		return fmt.Errorf("the archive does not fit into a home of this size; choose a larger size for the workspace: %w", full.cause)
	case err != nil:
		return err
	case done.SHA256 != meta.SHA256 || done.Entries != meta.Entries || done.Bytes != meta.Bytes:
		return fmt.Errorf("the storage job has restored %d entries of %d bytes of the archive %s, not what %s holds", done.Entries, done.Bytes, done.SHA256, row.ArchiveKey)
	}
	t.passed(row.ID, "restore.job-done")
	return t.markRestored(ctx, row)
}

// metaOf reads the .meta of row's archive, or returns nil if the archive is
// missing. It is read before a volume is created, so that none is created for an
// archive that cannot be restored.
func (t *term) metaOf(ctx context.Context, row workspace.Workspace) (*archive.Meta, error) {
	seen, err := t.cfg.Archives.State(ctx, row)
	if err != nil {
		return nil, fmt.Errorf("check the archive: %w", err)
	}
	if seen == lifecycle.ArchiveMissing {
		return nil, nil
	}
	meta, err := t.cfg.Archives.Meta(ctx, row.ArchiveKey)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the archive's .meta: %w", err)
	case seen != lifecycle.ArchivePresent || row.ArchiveDigest != "" && meta.SHA256 != row.ArchiveDigest:
		return nil, fmt.Errorf("the archive %s is %d bytes with the digest %s, not what was stored: %w", row.ArchiveKey, meta.Size, meta.SHA256, archive.ErrCorrupted)
	}
	return meta, nil
}

func (t *term) markRestored(ctx context.Context, row workspace.Workspace) error {
	t.passed(row.ID, "restore.before-mark")
	if err := t.cfg.Runtime.MarkRestored(ctx, row.ID, row.Home.Claim, row.ArchiveKey); err != nil {
		return fmt.Errorf("mark the home as restored: %w", err)
	}
	t.passed(row.ID, "restore.marked")
	return nil
}

// volumeOf returns the current volume of row's home, or nil if there is none.
func (t *term) volumeOf(ctx context.Context, row workspace.Workspace) (*runtime.Volume, error) {
	volumes, err := t.cfg.Runtime.Volumes(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the volumes: %w", err)
	}
	for _, v := range volumes {
		if v.Workspace == row.ID && v.Claim == row.Home.Claim {
			return &v, nil
		}
	}
	return nil, nil
}
