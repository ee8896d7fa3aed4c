package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/containerd/errdefs"
	networktypes "github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"codehub/internal/runtime/docker/engine"
)

// Bridge is the installation's bridge network.
type Bridge struct {
	Subnet netip.Prefix
	Direct bool // this process runs on Docker's host and can reach the containers' addresses
}

// ensure returns the network and creates it if it is missing.
func (n *Network) ensure(ctx context.Context) (*Bridge, error) {
	for range 3 {
		list, err := n.API.NetworkList(ctx, client.NetworkListOptions{
			Filters: client.Filters{}.Add("name", n.name), // matches substrings as well
		})
		if err != nil {
			return nil, engine.WrapError(ctx, "list networks", err)
		}
		for _, other := range list.Items {
			if other.Name != n.name {
				continue
			}
			if n.Owns(other.Labels, engine.RoleDraft) { // left by a crash
				if _, err := n.API.NetworkRemove(ctx, other.ID, client.NetworkRemoveOptions{}); err != nil && !errdefs.IsNotFound(err) {
					return nil, engine.WrapError(ctx, "remove network", err)
				}
				continue
			}
			if !n.Owns(other.Labels, engine.RoleNetwork) {
				return nil, fmt.Errorf("network %s does not belong to this installation; remove it", other.Name)
			}
			subnet, ok := subnetOf(other.IPAM)
			if !ok {
				return nil, fmt.Errorf("network %s has no IPv4 subnet", other.Name)
			}
			n.reportSubnet(other.Name, subnet)
			net := &Bridge{Subnet: subnet, Direct: !n.cfg.Publish && n.sharesHost()}
			n.addrs.reset(subnet)
			return net, nil
		}
		if err := n.create(ctx); err != nil {
			return nil, err
		}
	}
	return nil, engine.ErrConcurrent("network %s cannot be created: another call keeps taking and freeing its name or interface", n.name)
}

// reportSubnet logs once that the network has another subnet than the setting.
// Containers may have addresses on it, so it stays until an administrator removes it.
func (n *Network) reportSubnet(name string, subnet netip.Prefix) {
	if !n.cfg.Subnet.IsValid() || n.cfg.Subnet == subnet {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.subnetLogged {
		n.subnetLogged = true
		n.Log.Warn("network exists with another subnet than CODEHUB_NETWORK_SUBNET; stop all workspaces and remove it to have it created again",
			"network", name, "subnet", subnet.String(), "setting", n.cfg.Subnet.String())
	}
}

// create creates the network on the configured subnet, or else on one that
// Docker chose. Containers can have chosen addresses only if the subnet was given,
// and only Docker knows which subnets are free, so a first network is created to
// get one.
func (n *Network) create(ctx context.Context) error {
	if n.cfg.Subnet.IsValid() {
		_, err := n.API.NetworkCreate(ctx, n.name, n.Options(engine.RoleNetwork, n.cfg.Subnet))
		if err == nil || createdConcurrently(err) {
			return nil
		}
		return n.overlaps(ctx, err)
	}
	first, err := n.API.NetworkCreate(ctx, n.name, n.Options(engine.RoleDraft, netip.Prefix{}))
	if err != nil {
		if createdConcurrently(err) {
			return nil
		}
		switch {
		case noPoolLeft(err) && n.name != n.Names.Network:
			return fmt.Errorf("no free subnet for the network of builds in Docker: remove networks that nothing uses (docker network prune), "+
				"or give Docker more addresses (default-address-pools in daemon.json): %w", engine.WrapError(ctx, "create network", err))
		case noPoolLeft(err):
			return fmt.Errorf("no free subnet for the workspaces' network in Docker: set CODEHUB_NETWORK_SUBNET to an IPv4 network that is not in use, "+
				"such as 10.213.0.0/24, or remove networks that nothing uses (docker network prune): %w", engine.WrapError(ctx, "create network", err))
		}
		return engine.WrapError(ctx, "create network", err)
	}
	info, err := n.API.NetworkInspect(ctx, first.ID, client.NetworkInspectOptions{})
	if err != nil {
		return engine.WrapError(ctx, "inspect network", err)
	}
	subnet, ok := subnetOf(info.Network.IPAM)
	if !ok {
		return errors.New("new network has no IPv4 subnet")
	}
	if _, err := n.API.NetworkRemove(ctx, first.ID, client.NetworkRemoveOptions{}); err != nil {
		return engine.WrapError(ctx, "remove network", err)
	}
	if _, err := n.API.NetworkCreate(ctx, n.name, n.Options(engine.RoleNetwork, subnet)); err != nil {
		return engine.WrapError(ctx, "create network", err)
	}
	return nil
}

// createdConcurrently reports whether another replica is creating the network.
func createdConcurrently(err error) bool {
	return errdefs.IsConflict(err) || strings.Contains(err.Error(), "same bridge name")
}

// noPoolLeft reports whether Docker's default address pools are used up, by
// the messages of Docker 20.10 and of 26 and later.
func noPoolLeft(err error) bool {
	message := strings.ToLower(err.Error())
	return strings.Contains(message, "non-overlapping ipv4 address pool") || strings.Contains(message, "predefined address pools have been fully subnetted")
}

// overlaps names the network that the configured subnet overlaps with, if that is
// why Docker refused it.
func (n *Network) overlaps(ctx context.Context, refused error) error {
	err := engine.WrapError(ctx, "create network", refused)
	list, listErr := n.API.NetworkList(ctx, client.NetworkListOptions{})
	if listErr != nil {
		return err
	}
	for _, other := range list.Items {
		for _, c := range other.IPAM.Config {
			if c.Subnet.IsValid() && c.Subnet.Overlaps(n.cfg.Subnet) {
				return fmt.Errorf("the subnet %s of CODEHUB_NETWORK_SUBNET overlaps with the network %s (%s): choose an IPv4 network that is not in use: %w",
					n.cfg.Subnet, other.Name, c.Subnet, err)
			}
		}
	}
	return err
}

// Options returns the complete configuration of a network of this role.
func (n *Network) Options(role string, subnet netip.Prefix) client.NetworkCreateOptions {
	opts := client.NetworkCreateOptions{
		Driver: "bridge",
		Options: map[string]string{
			"com.docker.network.bridge.name":       n.bridge,
			"com.docker.network.bridge.enable_icc": "false",
		},
		Labels: n.Labels(role, "", ""),
	}
	if subnet.IsValid() {
		opts.IPAM = &networktypes.IPAM{Driver: "default", Config: []networktypes.IPAMConfig{{Subnet: subnet}}}
	}
	return opts
}

func subnetOf(ipam networktypes.IPAM) (netip.Prefix, bool) {
	for _, c := range ipam.Config {
		if c.Subnet.IsValid() && c.Subnet.Addr().Is4() && c.Subnet.Bits() <= 29 {
			return c.Subnet.Masked(), true
		}
	}
	return netip.Prefix{}, false
}

// TakeAddress returns an address for a new container.
func (n *Network) TakeAddress() netip.Addr { return n.addrs.take(n.Now()) }

// MarkUsed records that a container has an address now.
func (n *Network) MarkUsed(addr netip.Addr) { n.addrs.markUsed(addr, n.Now()) }

// sharesHost reports whether this process sees the network's bridge, so that it can
// reach containers by their own addresses and set up the wall itself.
func (n *Network) sharesHost() bool {
	_, err := net.InterfaceByName(n.bridge)
	return err == nil
}
