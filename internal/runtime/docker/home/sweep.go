package home

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/runtime/docker/engine"
	"codehub/internal/workspace"
)

// Sweep removes the remains of removed homes, and the records of homes that are gone. A
// record is removed only if two sweeps found no home for it, because between two calls of
// CreateVolume the state is the same. It continues after errors, so that one home does not
// delay the others.
func (h *Homes) Sweep(ctx context.Context) error {
	return errors.Join(h.sweepTrash(ctx), h.sweepOrphans(ctx))
}

// sweepTrash removes the remains of local-dir homes whose removal was interrupted, and of backups that were.
func (h *Homes) sweepTrash(ctx context.Context) error {
	folders, err := h.folders()
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range folders {
		errs = append(errs, h.emptyTrash(ctx, v.Workspace, nil), h.sweepSnapshots(ctx, v.Workspace))
	}
	return errors.Join(errs...)
}

// sweepOrphans removes the containers and records of homes that are gone.
func (h *Homes) sweepOrphans(ctx context.Context) error {
	found, err := h.listHomes(ctx, "")
	if err != nil {
		return err
	}
	orphans := map[string]bool{} // by ID or name
	again := func(what string) bool {
		orphans[what] = true
		return h.orphans[what]
	}
	var errs []error
	for id, seed := range found.seeds {
		if _, ok := found.homes[id]; !ok && again(seed.container) {
			errs = append(errs, h.Discard(ctx, seed.container))
		}
	}
	for id, holder := range found.holders {
		// A container of another claim does not hold its home any more. It is
		// removed by ID.
		if found.homes[id] != holder.claim && again(holder.container) {
			errs = append(errs, h.Discard(ctx, holder.container))
		}
	}
	for id, records := range found.settled {
		for _, rec := range records {
			if found.homes[id] != rec.claim && again(rec.name) {
				errs = append(errs, h.RemoveOwned(ctx, rec.name, engine.RoleSettled))
			}
		}
	}
	for id, markers := range found.markers {
		for _, m := range markers {
			if found.homes[id] != m.claim && again(m.name) {
				errs = append(errs, h.RemoveOwned(ctx, m.name, engine.RoleRestored))
			}
		}
	}
	for id, records := range found.removing {
		for _, rec := range records {
			// The home is gone, and the call that removed it was interrupted.
			if found.homes[id] != rec.claim && again(rec.name) {
				errs = append(errs, h.sweepRemoval(ctx, id, rec.claim))
			}
		}
	}
	h.orphans = orphans // only Prepare sweeps, one call at a time
	return errors.Join(errs...)
}

// sweepRemoval completes a removal that was interrupted after Docker had removed
// the volume. RemoveVolume handles a volume that a power cut brought back.
func (h *Homes) sweepRemoval(ctx context.Context, id workspace.ID, claim string) error {
	v, err := h.API.VolumeInspect(ctx, id.VolumeName(), client.VolumeInspectOptions{})
	if err != nil && !errdefs.IsNotFound(err) {
		return engine.WrapError(ctx, "inspect volume", err)
	}
	if err == nil && !h.Owns(v.Volume.Labels, engine.RoleHome) {
		return nil
	}
	return h.endRemoval(ctx, id, claim)
}
