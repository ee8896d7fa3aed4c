package docker

import (
	"context"
	"errors"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/runtime/docker/engine"
)

const (
	sweepEvery = 10 * time.Minute
	helperLife = 10 * time.Minute // longer than any helper runs
)

// Prepare implements runtime.Runtime.
func (r *Runtime) Prepare(ctx context.Context) error {
	r.kernel.check(r.cfg.MaxRunning, r.cfg.UIDs.Len(), !r.cfg.KeepLimits)
	_, err := r.network.Checked(ctx, 0)
	if err == nil {
		r.homes.CheckUIDs(ctx)
		r.images.CheckDefault(ctx)
		r.images.CheckLogins()
		r.tools.Prepare(ctx)
		r.sweepNow(ctx)
	}
	return err
}

// sweepNow removes the leftovers of crashes and manual removals at intervals: ended
// helpers and their old images, containers of builds, old volumes of the agent, jobs that were never started, the remains of
// removed homes, records of homes that are gone, and names that no container mounts. Failures
// are only logged.
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
	errs = append(errs, r.homes.Sweep(ctx), r.tools.Sweep(ctx), r.images.SweepNames(ctx))
	return errors.Join(errs...)
}

// sweepUnfinished removes ended helpers and containers of builds, and jobs that were never started.
func (r *Runtime) sweepUnfinished(ctx context.Context) error {
	filter := r.engine.Filter
	var errs []error
	for what, filters := range map[string]client.Filters{
		"helpers":                       filter(engine.RoleHelper),
		"storage jobs":                  filter(engine.RoleJob).Add("status", string(container.StateCreated)), // an ended one holds a home
		"removers":                      filter(engine.RoleRemover),
		"containers of builds":          filter(engine.RoleBuilt),
		"containers that work on homes": filter(engine.RoleFingerprint),
	} {
		list, err := r.engine.API.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
		if err != nil {
			return engine.WrapError(ctx, "list "+what, err)
		}
		for _, c := range list.Items {
			if c.State != container.StateRunning && r.engine.Now().Sub(time.Unix(c.Created, 0)) > helperLife {
				errs = append(errs, r.engine.Discard(ctx, c.ID))
			}
		}
	}
	return errors.Join(errs...)
}
