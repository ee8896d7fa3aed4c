package docker

import (
	"context"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

const (
	sweepEvery = 10 * time.Minute
	helperLife = 10 * time.Minute // no helper works as long as this
)

// sweepNow removes, now and then, what a crash or a person's hand left behind:
// helpers that ended, and proofs of homes that are gone. A proof goes only when
// two sweeps saw it without its home, since between two calls of CreateVolume's
// it looks the same. A failure costs nothing but the sweep.
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

func (r *Runtime) sweep(ctx context.Context) error {
	helpers, err := r.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.filter(roleHelper)})
	if err != nil {
		return failed(ctx, "list helpers", err)
	}
	for _, c := range helpers.Items {
		if c.State != container.StateRunning && r.now().Sub(time.Unix(c.Created, 0)) > helperLife {
			if err := r.discard(ctx, c.ID); err != nil {
				return err
			}
		}
	}
	found, err := r.lookAtHomes(ctx)
	if err != nil {
		return err
	}
	orphans := map[string]bool{}
	for id, container := range found.seeds {
		if _, ok := found.homes[id]; ok {
			continue
		}
		orphans[container] = true
		if r.orphans[container] {
			if err := r.discard(ctx, container); err != nil {
				return err
			}
		}
	}
	for id := range found.settled {
		if _, ok := found.homes[id]; ok {
			continue
		}
		name := settledName(id)
		orphans[name] = true
		if r.orphans[name] {
			if err := r.removeOwned(ctx, name, roleSettled); err != nil {
				return err
			}
		}
	}
	r.orphans = orphans // Prepare alone sweeps, one at a time
	return nil
}
