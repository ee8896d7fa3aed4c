package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/wall"
)

// helperWallInterval is how often the wall is set again if only the helper can
// check it.
const helperWallInterval = 3 * time.Minute

// Prepare implements runtime.Runtime.
func (r *Runtime) Prepare(ctx context.Context) error {
	r.checkKernelLimits()
	_, err := r.checkedNetwork(ctx, 0)
	if err == nil {
		r.checkUIDs(ctx)
		r.images.CheckDefault(ctx)
		r.images.CheckLogins()
		r.tools.Prepare(ctx)
		r.sweepNow(ctx)
	}
	return err
}

// checkedNetwork returns the network once it and its wall are intact. A check
// within maxAge is trusted.
func (r *Runtime) checkedNetwork(ctx context.Context, maxAge time.Duration) (*network, error) {
	if net := r.networkWithin(maxAge); net != nil {
		return net, nil
	}
	select {
	case r.prepareLock <- struct{}{}:
		defer func() { <-r.prepareLock }()
	case <-ctx.Done():
		return nil, engine.WrapError(ctx, "prepare network and wall", ctx.Err())
	}
	if net := r.networkWithin(maxAge); net != nil {
		return net, nil // another call has checked it meanwhile
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
	r.network, r.checkedAt = net, r.engine.Now()
	return net, nil
}

func (r *Runtime) networkWithin(maxAge time.Duration) *network {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.network == nil || maxAge == 0 || r.engine.Now().Sub(r.checkedAt) > maxAge {
		return nil
	}
	return r.network
}

// forgetNetwork makes the next start check again.
func (r *Runtime) forgetNetwork() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.network = nil
}

func (r *Runtime) ensureWall(ctx context.Context, net *network) error {
	spec := wall.Spec{
		Table:  r.engine.Names.Table,
		Bridge: r.engine.Names.Bridge,
		Deny:   r.cfg.Services,
		Close:  r.cfg.Denied,
		Open:   r.cfg.Allowed,
		Flows:  r.cfg.Connections,
		Rate:   r.cfg.ConnRate,
	}
	err := r.applyWall(ctx, spec)
	if err == nil || !r.cfg.AllowNoWall || ctx.Err() != nil {
		if err != nil {
			return fmt.Errorf("set up network isolation: %w", err)
		}
		r.noWall.Set(nil)
		return nil
	}
	r.noWall.Set(err)
	return nil
}

// ensureWallRules applies the wall: directly if this process may do so, or else
// with the helper, whose last success counts for helperWallInterval.
func (r *Runtime) ensureWallRules(ctx context.Context, spec wall.Spec) error {
	if r.sharesHost() {
		err := wall.Apply(spec)
		if !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	if r.engine.Now().Sub(r.wallCheckTime()) < helperWallInterval {
		return nil
	}
	return r.applyWallByHelper(ctx, spec)
}

func (r *Runtime) applyWallByHelper(ctx context.Context, spec wall.Spec) error {
	text, err := spec.Encode()
	if err != nil {
		return err
	}
	err = r.helper.Run(ctx, helper.Run{Args: []string{helper.CmdWall, text}, HostNetwork: true, Caps: []string{"NET_ADMIN"}})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wallCheckedAt = r.engine.Now()
	return nil
}

func (r *Runtime) wallCheckTime() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wallCheckedAt
}
