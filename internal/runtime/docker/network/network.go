// Package network keeps an installation's network, on which its workspaces are, and the wall
// around it.
package network

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/wall"
)

// Config is what an installation decides about its network; see docker.Config and
// docker.Settings.
type Config struct {
	Subnet                    netip.Prefix
	Publish                   bool
	Services, Denied, Allowed []netip.Prefix
	Connections, ConnRate     uint32
	AllowNoWall               bool
}

// Network is an installation's network.
type Network struct {
	*engine.Engine
	// Apply sets the wall as this process: wall.Apply, but in tests.
	Apply func(wall.Spec) error

	name     string // in Docker
	bridge   string // its interface
	table    string // of the wall
	helper   *helper.Helper
	cfg      Config
	addrs    addresses
	checking chan struct{}     // of capacity 1: held while the network is checked or repaired
	noWall   *health.Condition // workspaces run without network isolation

	mu            sync.Mutex
	current       *Bridge   // as of the last check
	checkedAt     time.Time // when network and wall were last found intact
	wallCheckedAt time.Time // when the wall was last set or checked
	subnetLogged  bool      // another subnet than Config.Subnet was logged
}

// New returns an installation's network. It does not call Docker.
func New(h *helper.Helper, cfg Config) *Network {
	return &Network{
		name: h.Names.Network, bridge: h.Names.Bridge, table: h.Names.Table,
		Engine: h.Engine, helper: h, cfg: cfg, Apply: wall.Apply, checking: make(chan struct{}, 1),
		noWall: h.Conditions.New(health.Config{
			Name: "isolation", Failing: "workspaces run without network isolation; they reach this host and its network",
			Resolved: "workspaces run with network isolation again", Level: slog.LevelWarn, Log: h.Log,
		}),
	}
}

// ForBuilds returns the network of containers that build images, with a wall of its own. Docker
// gives them raw sockets, with which they could forge the addresses of workspaces on the same
// bridge. It exists from the first build on; Docker chooses its subnet.
func (n *Network) ForBuilds() *Network {
	cfg := n.cfg
	cfg.Subnet = netip.Prefix{}
	return &Network{
		name: n.Names.Network + "-build", bridge: n.Names.BuildBridge, table: n.Names.Table + "-build",
		Engine: n.Engine, helper: n.helper, cfg: cfg, Apply: n.Apply, checking: make(chan struct{}, 1), noWall: n.noWall,
	}
}

// Name returns the network's name in Docker.
func (n *Network) Name() string { return n.name }

// Table returns the name of the wall's nftables table.
func (n *Network) Table() string { return n.table }
