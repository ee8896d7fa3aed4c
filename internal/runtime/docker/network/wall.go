package network

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

// Checked returns the network once it and its wall are intact. A check
// within maxAge is trusted.
func (n *Network) Checked(ctx context.Context, maxAge time.Duration) (*Bridge, error) {
	if net := n.within(maxAge); net != nil {
		return net, nil
	}
	select {
	case n.checking <- struct{}{}:
		defer func() { <-n.checking }()
	case <-ctx.Done():
		return nil, engine.WrapError(ctx, "prepare network and wall", ctx.Err())
	}
	if net := n.within(maxAge); net != nil {
		return net, nil // another call has checked it meanwhile
	}
	net, err := n.ensure(ctx)
	if err == nil {
		err = n.ensureWall(ctx)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		n.current = nil
		return nil, err
	}
	n.current, n.checkedAt = net, n.Now()
	return net, nil
}

func (n *Network) within(maxAge time.Duration) *Bridge {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.current == nil || maxAge == 0 || n.Now().Sub(n.checkedAt) > maxAge {
		return nil
	}
	return n.current
}

// Forget makes the next start check again.
func (n *Network) Forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.current = nil
}

func (n *Network) ensureWall(ctx context.Context) error {
	spec := wall.Spec{
		Table:  n.table,
		Bridge: n.bridge,
		Deny:   n.cfg.Services,
		Close:  n.cfg.Denied,
		Open:   n.cfg.Allowed,
		Flows:  n.cfg.Connections,
		Rate:   n.cfg.ConnRate,
	}
	err := n.ensureWallRules(ctx, spec)
	if err == nil || !n.cfg.AllowNoWall || ctx.Err() != nil {
		if err != nil {
			return fmt.Errorf("set up network isolation: %w", err)
		}
		n.noWall.Set(nil)
		return nil
	}
	n.noWall.Set(err)
	return nil
}

// ensureWallRules applies the wall: directly if this process may do so, or else
// with the helper, whose last success counts for helperWallInterval.
func (n *Network) ensureWallRules(ctx context.Context, spec wall.Spec) error {
	if n.sharesHost() {
		err := n.Apply(spec)
		if !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	if n.Now().Sub(n.wallCheckTime()) < helperWallInterval {
		return nil
	}
	return n.applyWallByHelper(ctx, spec)
}

func (n *Network) applyWallByHelper(ctx context.Context, spec wall.Spec) error {
	text, err := spec.Encode()
	if err != nil {
		return err
	}
	err = n.helper.Run(ctx, helper.Run{Args: []string{helper.CmdWall, text}, HostNetwork: true, Caps: []string{"NET_ADMIN"}})
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wallCheckedAt = n.Now()
	return nil
}

func (n *Network) wallCheckTime() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.wallCheckedAt
}

// RemoveWall removes the nftables table: directly if this process may do so, or
// else with the helper.
func (n *Network) RemoveWall(ctx context.Context) error {
	if n.sharesHost() {
		if err := wall.Remove(n.table); !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return n.helper.Run(ctx, helper.Run{Args: []string{helper.CmdRemoveWall, n.table}, HostNetwork: true, Caps: []string{"NET_ADMIN"}})
}
