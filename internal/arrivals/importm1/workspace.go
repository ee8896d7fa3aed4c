package importm1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"codehub/internal/archive"
	"codehub/internal/arrivals"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// statuses are the statuses of the first version.
var statuses = map[string]bool{
	"CREATED": true, "PROVISIONING": true, "RUNNING": true, "STOPPING": true,
	"STOPPED": true, "DELETING": true, "ERROR": true, "DELETED": true,
}

// What became of a container, in the report.
const (
	stopped = "container stopped"
	removed = "container removed"
)

// home is a workspace of the first version.
type home struct {
	*first
	there SourceWorkspace
	line  *arrivals.Workspace
	here  *postgres.ArrivedWorkspace
	dir   string        // empty: there is no home yet
	old   *oldContainer // before its home is packed; nil: there is none
}

// Again implements arrivals.Candidate. It changes only the first version's container.
func (h *home) Again(ctx context.Context, _ postgres.Arrival, _ workspace.Workspace, line *arrivals.Workspace) (err error) {
	h.line = line
	if h.old, err = h.engine.find(ctx, h.there, h.Homes); err != nil || h.old == nil {
		return err
	}
	if h.old.running {
		return errors.New("already imported, and its old container is running again: " +
			"newer changes are only in the old home. Stop the first version and remove the container")
	}
	if h.run.DryRun {
		return nil
	}
	return h.remove(ctx)
}

func (h *home) remove(ctx context.Context) error {
	if err := h.engine.remove(ctx, h.old); err != nil {
		return err
	}
	h.line.Source = removed
	return nil
}

// Admit implements arrivals.Candidate.
func (h *home) Admit(ctx context.Context, line *arrivals.Workspace) (*postgres.ArrivedWorkspace, error) {
	h.line = line
	m := h.there
	if gone(m) {
		return nil, h.deleted(ctx)
	}
	if err := importable(m); err != nil {
		return nil, err
	}
	var err error
	if h.old, err = h.engine.find(ctx, m, h.Homes); err != nil {
		return nil, err
	}
	h.dir, err = h.homes.find(m)
	if err == nil && h.dir == "" && m.Status != "CREATED" {
		// An empty home in place of a missing one would be an unnoticed loss.
		err = fmt.Errorf("its home is not at %s/%s: put it there, or create an empty folder there if the home is not needed", h.Homes, m.HomeStoreKey)
	}
	if err != nil {
		return nil, err
	}
	h.here = &postgres.ArrivedWorkspace{Force: true, CreatedAt: m.CreatedAt, NewWorkspace: postgres.NewWorkspace{
		Name: workspaceName(m.Name, m.ID), Description: m.Description, Memo: m.Memo, ImageRef: m.ImageRef, Desired: workspace.DesiredStandby,
	}}
	if runs(m) {
		h.here.Desired = workspace.DesiredRunning
	}
	if !addressable(m.ID) {
		line.Notes = append(line.Notes, "the old address is not redirected")
	}
	switch m.Status {
	case "DELETING":
		line.Notes = append(line.Notes, "its deletion was not finished; delete it again")
	case "ERROR":
		line.Notes = append(line.Notes, "was in ERROR")
	}
	return h.here, nil
}

// importable returns why a workspace cannot be imported.
func importable(m SourceWorkspace) error {
	switch {
	case len(m.ID) > maxOldID || m.ID == "":
		return errors.New("the id is empty or too long")
	case !statuses[m.Status]:
		return fmt.Errorf("unknown status %.50q", m.Status)
	case m.InstanceBackend != "local-docker":
		return fmt.Errorf("unknown instance_backend %.50q", m.InstanceBackend)
	case m.StorageBackend != "local-dir":
		return fmt.Errorf("unknown storage_backend %.50q", m.StorageBackend)
	}
	return nil
}

// deleted does not import a deleted workspace, whose home the first version
// keeps. It removes a leftover container, as the deletion should have.
func (h *home) deleted(ctx context.Context) (err error) {
	h.line.Result = arrivals.Deleted
	if dir, err := h.homes.find(h.there); err == nil && dir != "" {
		h.line.Notes = append(h.line.Notes, "the home is still at "+dir)
	}
	if h.old, err = h.engine.find(ctx, h.there, h.Homes); err != nil || h.old == nil || h.run.DryRun {
		return err
	}
	if h.old.running {
		if err := h.engine.stop(ctx, h.old); err != nil {
			return err
		}
	}
	return h.remove(ctx)
}

// Store implements arrivals.Candidate. The old container is stopped first.
func (h *home) Store(ctx context.Context, key string, meta *archive.Meta) (bool, error) {
	if h.old != nil && h.old.running {
		if err := h.engine.stop(ctx, h.old); err != nil {
			return false, err
		}
		h.line.Source = stopped
		if err := h.run.Pass("stopped"); err != nil {
			return false, err
		}
	}
	var err error
	if h.old, err = h.engine.find(ctx, h.there, h.Homes); err != nil {
		return false, err
	}
	if h.old != nil && h.old.running {
		return false, errors.New("its old container is running again: stop the first version, then run the import again")
	}
	if h.dir == "" {
		return false, nil
	}
	stats, err := h.pack(ctx, key)
	if err != nil {
		return false, fmt.Errorf("pack its home: %w", err)
	}
	if err := h.run.Pass("packed"); err != nil {
		return false, err
	}
	meta.Describe(stats)
	return true, h.run.Bucket.Complete(ctx, key, meta)
}

// pack packs the home. It passes one step in the middle, for tests.
func (h *home) pack(ctx context.Context, key string) (archive.Stats, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	seen, reportedAt := false, time.Now()
	stats, err := archive.PackTo(ctx, h.dir, archive.PackOptions{Progress: func(n, entries int64) {
		if !seen {
			seen = true
			if err := h.run.Pass("packing"); err != nil {
				cancel(err)
			}
		}
		if time.Since(reportedAt) > 10*time.Second {
			reportedAt = time.Now()
			h.run.Log.InfoContext(ctx, "copying a home", "home", h.dir, "bytes", n, "entries", entries)
		}
	}}, func(ctx context.Context, from io.Reader) (int64, error) {
		return h.run.Bucket.Store.Put(ctx, key, from)
	})
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return stats, err
}

// Unchanged implements arrivals.Candidate: the container was neither started nor created meanwhile.
func (h *home) Unchanged(ctx context.Context) error {
	after, err := h.engine.find(ctx, h.there, h.Homes)
	if err != nil {
		return err
	}
	if before := h.old; after != nil && (before == nil || before.id != after.id || before.started != after.started || after.running) {
		return errors.New("its old container started while the home was copied: stop the first version, then run the import again")
	}
	return nil
}

// Leave implements arrivals.Candidate.
func (h *home) Leave(ctx context.Context) error {
	if h.old == nil {
		return nil
	}
	if err := h.remove(ctx); err != nil {
		h.line.Notes = append(h.line.Notes, err.Error()+"; the next import tries again")
		return nil
	}
	return h.run.Pass("removed")
}
