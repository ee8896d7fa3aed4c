package home

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/homequota"
	"codehub/internal/workspace"
)

// Snapshot is the home at one moment.
type Snapshot struct {
	Path string    // empty: the storage has no snapshots
	At   time.Time // or shortly after
}

// NewSnapshot makes the snapshot that a backup reads. Without one, the backup reads the home itself.
func (h *Homes) NewSnapshot(spec runtime.JobSpec) Snapshot {
	if spec.Kind != runtime.JobBackup || spec.Storage != workspace.StorageLocalDir {
		return Snapshot{}
	}
	at := h.Now()
	path, err := homequota.Snapshot(h.Folder(spec.Workspace), engine.RandomHex(8))
	if err != nil {
		h.Log.Warn("no snapshot of a home; its backup reads it while it changes", "workspace", spec.Workspace, "err", err)
	}
	return Snapshot{Path: path, At: at}
}

// RemoveSnapshot removes a snapshot that no backup reads any more. If that fails, a sweep does it.
func (h *Homes) RemoveSnapshot(path string) {
	if path == "" {
		return
	}
	if err := homequota.RemoveSnapshot(path); err != nil {
		h.Log.Warn("snapshot of a home not removed; retrying later", "path", path, "err", err)
	}
}

// sweepSnapshots is removeSnapshots while no backup of the home begins.
func (h *Homes) sweepSnapshots(ctx context.Context, id workspace.ID) error {
	paths, err := homequota.Snapshots(h.Folder(id))
	if err != nil || len(paths) == 0 {
		return err
	}
	unlock, err := h.LockHome(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	return h.removeSnapshots(ctx, id)
}

// removeSnapshots removes the snapshots of a home that no container has mounted, such as those that a killed
// server has left. No backup of the home may begin meanwhile.
func (h *Homes) removeSnapshots(ctx context.Context, id workspace.ID) error {
	paths, err := homequota.Snapshots(h.Folder(id))
	if err != nil || len(paths) == 0 {
		return err
	}
	var errs []error
	for _, path := range paths {
		users, err := h.Users(ctx, filepath.Join(filepath.Dir(h.HostPath(id)), filepath.Base(path)))
		if err == nil && len(users) == 0 {
			err = homequota.RemoveSnapshot(path)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove a snapshot of a home: %w", err))
		}
	}
	return errors.Join(errs...)
}
