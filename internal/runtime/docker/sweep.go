package docker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/workspace"
)

const (
	sweepEvery = 10 * time.Minute
	helperLife = 10 * time.Minute // no helper works as long as this
)

// sweepNow removes, now and then, what a crash or a person's hand left behind:
// helpers that ended, their old images, jobs that were never started, what is left of removed homes, and
// proofs of homes that are gone. A proof goes only when two sweeps saw it
// without its home, since between two calls of CreateVolume's it looks the
// same. A failure costs nothing but the sweep.
func (r *Runtime) sweepNow(ctx context.Context) {
	r.mu.Lock()
	due := r.now().Sub(r.swept) >= sweepEvery
	if due {
		r.swept = r.now()
	}
	r.mu.Unlock()
	if !due {
		return
	}
	if err := r.sweep(ctx); err != nil {
		r.log.Debug("left-over containers and volumes not removed", "err", err)
	}
}

// sweep removes all that it can: what one home refuses keeps no other waiting.
func (r *Runtime) sweep(ctx context.Context) error {
	errs := []error{r.sweepUnfinished(ctx)}
	r.removeOldHelpers(ctx, r.helperRef())
	errs = append(errs, r.sweepTrash(ctx), r.sweepOrphans(ctx))
	return errors.Join(errs...)
}

// sweepUnfinished removes helpers that ended and jobs that were never started.
func (r *Runtime) sweepUnfinished(ctx context.Context) error {
	helpers, err := r.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.filter(roleHelper)})
	if err != nil {
		return failed(ctx, "list helpers", err)
	}
	jobs, err := r.api.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: r.filter(roleJob).Add("status", string(container.StateCreated)),
	})
	if err != nil {
		return failed(ctx, "list storage jobs", err)
	}
	// One that has ended holds a home; whoever removes that makes another.
	removers, err := r.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.filter(roleRemover)})
	if err != nil {
		return failed(ctx, "list removers", err)
	}
	looks, err := r.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.filter(roleLook)})
	if err != nil {
		return failed(ctx, "list containers that take fingerprints", err)
	}
	var errs []error
	for _, c := range slices.Concat(helpers.Items, jobs.Items, removers.Items, looks.Items) {
		if c.State != container.StateRunning && r.now().Sub(time.Unix(c.Created, 0)) > helperLife {
			errs = append(errs, r.discard(ctx, c.ID))
		}
	}
	return errors.Join(errs...)
}

// sweepTrash removes what is left of local-dir homes whose removal was cut off.
func (r *Runtime) sweepTrash(ctx context.Context) error {
	folders, err := r.folders()
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range folders {
		errs = append(errs, r.emptyTrash(ctx, v.Workspace, nil))
	}
	return errors.Join(errs...)
}

// sweepOrphans removes what holds or proves homes that are gone.
func (r *Runtime) sweepOrphans(ctx context.Context) error {
	found, err := r.lookAtHomes(ctx, "")
	if err != nil {
		return err
	}
	orphans := map[string]bool{} // by id or name
	again := func(what string) bool {
		orphans[what] = true
		return r.orphans[what]
	}
	var errs []error
	for id, seed := range found.seeds {
		if _, ok := found.homes[id]; !ok && again(seed.container) {
			errs = append(errs, r.discard(ctx, seed.container))
		}
	}
	for id, holder := range found.holders {
		// One of another claim holds nothing that it was made for; by the id it
		// is removed, and that alone.
		if found.homes[id] != holder.claim && again(holder.container) {
			errs = append(errs, r.discard(ctx, holder.container))
		}
	}
	for id, records := range found.settled {
		for _, rec := range records {
			if found.homes[id] != rec.claim && again(rec.name) {
				errs = append(errs, r.removeOwned(ctx, rec.name, roleSettled))
			}
		}
	}
	for id, markers := range found.markers {
		for _, m := range markers {
			if found.homes[id] != m.claim && again(m.name) {
				errs = append(errs, r.removeOwned(ctx, m.name, roleRestored))
			}
		}
	}
	for id, records := range found.removing {
		for _, rec := range records {
			// The home is gone, and the call that removed it, or came too late
			// for that, did not get to the end.
			if found.homes[id] != rec.claim && again(rec.name) {
				errs = append(errs, r.sweepRemoval(ctx, id, rec.claim))
			}
		}
	}
	r.orphans = orphans // Prepare alone sweeps, one at a time
	return errors.Join(errs...)
}

// sweepRemoval ends a removal that was cut off after Docker had removed the
// volume. One that a power cut brought back is for RemoveVolume.
func (r *Runtime) sweepRemoval(ctx context.Context, id workspace.ID, claim string) error {
	v, err := r.api.VolumeInspect(ctx, id.VolumeName(), client.VolumeInspectOptions{})
	if err != nil && !errdefs.IsNotFound(err) {
		return failed(ctx, "inspect volume", err)
	}
	if err == nil && !r.owns(v.Volume.Labels, roleHome) {
		return nil
	}
	return r.endRemoval(ctx, id, claim)
}
