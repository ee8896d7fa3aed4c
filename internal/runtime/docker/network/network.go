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
		Engine: h.Engine, helper: h, cfg: cfg, Apply: wall.Apply, checking: make(chan struct{}, 1),
		noWall: h.Conditions.New(health.Config{
			Name: "isolation", Failing: "workspaces run without network isolation; they reach this host and its network",
			Resolved: "workspaces run with network isolation again", Level: slog.LevelWarn, Log: h.Log,
		}),
	}
}
