package docker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/runtime/docker/engine"
	"codehub/internal/workspace"
)

const (
	sweepEvery = 10 * time.Minute
	helperLife = 10 * time.Minute // longer than any helper runs
)

// sweepNow removes the leftovers of crashes and manual removals at intervals: ended
// helpers and their old images, old volumes of the agent, jobs that were never started, the remains of
// removed homes, and records of homes that are gone. A record is removed only if
// two sweeps found no home for it, because between two calls of CreateVolume the
// state is the same. Failures are only logged.
func (r *Runtime) sweepNow(ctx context.Context) {
	r.mu.Lock()
	due := r.engine.Now().Sub(r.swept) >= sweepEvery
	if due {
		r.swept = r.engine.Now()
	}
	r.mu.Unlock()
	if !due {
		return
	}
	if err := r.sweep(ctx); err != nil {
		r.engine.Log.Debug("sweep failed", "err", err)
	}
}

// sweep continues after errors, so that one home does not delay the others.
func (r *Runtime) sweep(ctx context.Context) error {
	errs := []error{r.sweepUnfinished(ctx)}
	r.helper.RemoveOld(ctx, r.helper.Ref())
	errs = append(errs, r.sweepTrash(ctx), r.sweepOrphans(ctx), r.tools.Sweep(ctx))
	return errors.Join(errs...)
}

// sweepUnfinished removes ended helpers and jobs that were never started.
func (r *Runtime) sweepUnfinished(ctx context.Context) error {
	helpers, err := r.engine.API.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.engine.Filter(engine.RoleHelper)})
	if err != nil {
		return engine.WrapError(ctx, "list helpers", err)
	}
	jobs, err := r.engine.API.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: r.engine.Filter(engine.RoleJob).Add("status", string(container.StateCreated)),
	})
	if err != nil {
		return engine.WrapError(ctx, "list storage jobs", err)
	}
	// An ended job holds a home.
	removers, err := r.engine.API.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.engine.Filter(engine.RoleRemover)})
	if err != nil {
		return engine.WrapError(ctx, "list removers", err)
	}
	fingerprinters, err := r.engine.API.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.engine.Filter(engine.RoleFingerprint)})
	if err != nil {
		return engine.WrapError(ctx, "list containers that take fingerprints", err)
	}
	var errs []error
	for _, c := range slices.Concat(helpers.Items, jobs.Items, removers.Items, fingerprinters.Items) {
		if c.State != container.StateRunning && r.engine.Now().Sub(time.Unix(c.Created, 0)) > helperLife {
			errs = append(errs, r.engine.Discard(ctx, c.ID))
		}
	}
	return errors.Join(errs...)
}

// sweepTrash removes the remains of local-dir homes whose removal was interrupted.
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

// sweepOrphans removes the containers and records of homes that are gone.
func (r *Runtime) sweepOrphans(ctx context.Context) error {
	found, err := r.listHomes(ctx, "")
	if err != nil {
		return err
	}
	orphans := map[string]bool{} // by ID or name
	again := func(what string) bool {
		orphans[what] = true
		return r.orphans[what]
	}
	var errs []error
	for id, seed := range found.seeds {
		if _, ok := found.homes[id]; !ok && again(seed.container) {
			errs = append(errs, r.engine.Discard(ctx, seed.container))
		}
	}
	for id, holder := range found.holders {
		// A container of another claim does not hold its home any more. It is
		// removed by ID.
		if found.homes[id] != holder.claim && again(holder.container) {
			errs = append(errs, r.engine.Discard(ctx, holder.container))
		}
	}
	for id, records := range found.settled {
		for _, rec := range records {
			if found.homes[id] != rec.claim && again(rec.name) {
				errs = append(errs, r.engine.RemoveOwned(ctx, rec.name, engine.RoleSettled))
			}
		}
	}
	for id, markers := range found.markers {
		for _, m := range markers {
			if found.homes[id] != m.claim && again(m.name) {
				errs = append(errs, r.engine.RemoveOwned(ctx, m.name, engine.RoleRestored))
			}
		}
	}
	for id, records := range found.removing {
		for _, rec := range records {
			// The home is gone, and the call that removed it was interrupted.
			if found.homes[id] != rec.claim && again(rec.name) {
				errs = append(errs, r.sweepRemoval(ctx, id, rec.claim))
			}
		}
	}
	r.orphans = orphans // only Prepare sweeps, one call at a time
	return errors.Join(errs...)
}

// sweepRemoval completes a removal that was interrupted after Docker had removed
// the volume. RemoveVolume handles a volume that a power cut brought back.
func (r *Runtime) sweepRemoval(ctx context.Context, id workspace.ID, claim string) error {
	v, err := r.engine.API.VolumeInspect(ctx, id.VolumeName(), client.VolumeInspectOptions{})
	if err != nil && !errdefs.IsNotFound(err) {
		return engine.WrapError(ctx, "inspect volume", err)
	}
	if err == nil && !r.engine.Owns(v.Volume.Labels, engine.RoleHome) {
		return nil
	}
	return r.endRemoval(ctx, id, claim)
}
