package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"codehub/internal/runtime/docker/wall"
)

// helperWallEvery is how often the wall is set afresh where only the helper
// can look at it.
const helperWallEvery = 3 * time.Minute

// Prepare implements runtime.Runtime.
func (r *Runtime) Prepare(ctx context.Context) error {
	_, err := r.surroundings(ctx, 0)
	if err == nil {
		r.sweepNow(ctx)
	}
	return err
}

// surroundings returns the network once it and its wall are known to stand;
// what was seen within maxAge is believed.
func (r *Runtime) surroundings(ctx context.Context, maxAge time.Duration) (*network, error) {
	if net := r.seenWithin(maxAge); net != nil {
		return net, nil
	}
	select {
	case r.prepareLock <- struct{}{}:
		defer func() { <-r.prepareLock }()
	case <-ctx.Done():
		return nil, failed(ctx, "prepare network and wall", ctx.Err())
	}
	if net := r.seenWithin(maxAge); net != nil {
		return net, nil // somebody else looked meanwhile
	}
	net, err := r.ensureNetwork(ctx)
	if err == nil {
		err = r.ensureWall(ctx, net)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.network = nil
		return nil, err
	}
	r.network, r.stoodAt = net, r.now()
	return net, nil
}

func (r *Runtime) seenWithin(maxAge time.Duration) *network {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.network == nil || maxAge == 0 || r.now().Sub(r.stoodAt) > maxAge {
		return nil
	}
	return r.network
}

// forgetSurroundings makes the next start look again.
func (r *Runtime) forgetSurroundings() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.network = nil
}

func (r *Runtime) ensureWall(ctx context.Context, net *network) error {
	spec := wall.Spec{
		Table:  r.names.table,
		Bridge: r.names.bridge,
		Deny:   r.cfg.EgressDeny,
	}
	err := r.applyWall(ctx, spec)
	if err == nil || !r.cfg.AllowNoWall || ctx.Err() != nil {
		if err != nil {
			return fmt.Errorf("the wall around workspaces cannot be set: %w", err)
		}
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.noWall {
		r.noWall = true
		r.log.Warn("workspaces run without a wall: they reach this host and its network", "err", err)
	}
	return nil
}

// standWall makes the wall stand: at once where this process may look at it,
// else by the helper, whose last success is believed for helperWallEvery.
func (r *Runtime) standWall(ctx context.Context, spec wall.Spec) error {
	if r.sharesHost() {
		err := wall.Stand(spec)
		if !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	if r.now().Sub(r.wallStoodAt()) < helperWallEvery {
		return nil
	}
	return r.standWallByHelper(ctx, spec)
}

func (r *Runtime) standWallByHelper(ctx context.Context, spec wall.Spec) error {
	text, err := spec.Encode()
	if err != nil {
		return err
	}
	err = r.runHelper(ctx, helperRun{args: []string{cmdWall, text}, network: "host", caps: []string{"NET_ADMIN"}})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wallAt = r.now()
	return nil
}

func (r *Runtime) wallStoodAt() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wallAt
}
