// Package docker implements runtime.Runtime on one Docker Engine. Each workspace
// has a container and a named volume or a local directory, on a network that is
// isolated from the host.
//
// This package starts, stops, lists and sweeps containers. Its parts are packages of their
// own, each of which imports only those before it:
//
//	engine   the connection to Docker, names, labels, errors
//	helper   containers that run codehub's own executable
//	image    the images of workspaces; imagefile reads them from archives
//	network  the network of workspaces, and the wall around it
//	tools    the volumes with the agent and the IDE
//	home     the homes of workspaces
//	job      storage jobs
//	build    the images that are built for workspaces
package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"codehub/internal/base/breaker"
	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/build"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/home"
	"codehub/internal/runtime/docker/image"
	"codehub/internal/runtime/docker/job"
	"codehub/internal/runtime/docker/network"
	"codehub/internal/runtime/docker/tools"
	"codehub/internal/runtime/imagebuild"
	"codehub/internal/workspace"
)

// Config identifies an installation and limits its workspaces.
type Config struct {
	// Installation is a UUID. It labels everything that is created; objects without
	// that label are never changed.
	Installation string

	// Host is Docker's address; empty: DOCKER_HOST, or else the default socket.
	Host string

	// DataDir is the absolute path of the directory for local-dir homes and for the names of
	// workspaces' users.
	// HostDataDir is its path on Docker's host, if it differs.
	DataDir     string
	HostDataDir string

	// HelperBinary is a static Linux executable that calls HelperMain when its
	// first argument is "host-helper"; empty: the running executable.
	HelperBinary string
	// AgentDigest is that of the agent in HelperBinary (internal/runtime/agent/program); empty:
	// HelperBinary is the agent.
	AgentDigest string

	Settings
	LogMaxFiles int // 0 = 2

	// Services are addresses of codehub's own services, which workspaces must not
	// reach either.
	Services []netip.Prefix

	// Publish reaches workspaces through a port on 127.0.0.1 even if their own
	// address is reachable.
	Publish bool

	// PortURI returns the addresses of a workspace's ports, with {{port}} for the port, or
	// "" if the IDE forwards them itself; optional.
	PortURI func(workspace.ID) string

	// Authorities are those of a company, in PEM, which workspaces trust in addition to those
	// of their images; empty: none.
	Authorities []byte

	// DefaultImage is never pulled without a digest; see package image.
	DefaultImage string
	// Builds makes images in the background; nil: none. Starts wait for those that are
	// missing.
	Builds *imagebuild.Builder
	// MaxRunning is how many workspaces may run at once; 0: no limit.
	MaxRunning int
	// UIDs are the uids of the workspaces; more workspaces share them. The zero value is
	// workspace.ArchivedUID alone.
	UIDs workspace.UIDRange

	ExtraLabels map[string]string // added to everything that is created
	Log         *slog.Logger
	// Conditions lists that Docker does not respond, that workspaces run without
	// network isolation, and what else an administrator should repair; nil: it is only
	// logged.
	Conditions *health.Monitor
}

// The parts of which Runtime has the methods of runtime.Runtime.
type (
	homes  = home.Homes
	images = image.Images
	jobs   = job.Jobs
)

// Runtime implements runtime.Runtime on a Docker Engine.
type Runtime struct {
	*homes
	*images
	*jobs
	cfg     Config
	engine  *engine.Engine
	helper  *helper.Helper
	network *network.Network
	builder *build.Builder
	tools   *tools.Tools
	kernel  *kernel

	mu    sync.Mutex
	swept time.Time // guarded by mu
}

var _ runtime.Runtime = (*Runtime)(nil)

// New returns a Runtime. It does not call Docker: while Docker is down, calls fail
// with runtime.ErrUnreachable.
func New(_ context.Context, cfg Config) (*Runtime, error) {
	if !workspace.ValidID(cfg.Installation) {
		return nil, fmt.Errorf("installation %q is not a UUID", cfg.Installation)
	}
	if cfg.DataDir != "" && !filepath.IsAbs(cfg.DataDir) {
		return nil, fmt.Errorf("data folder %q is not an absolute path", cfg.DataDir)
	}
	if cfg.HostDataDir == "" {
		cfg.HostDataDir = cfg.DataDir
	}
	if cfg.UIDs == (workspace.UIDRange{}) {
		cfg.UIDs = workspace.UIDRange{First: workspace.ArchivedUID, Last: workspace.ArchivedUID}
	}
	if cfg.HelperBinary == "" {
		// Also after another version has replaced the file: helper and agent are of this one.
		cfg.HelperBinary = "/proc/self/exe"
	}
	if cfg.LogMaxBytes == 0 {
		cfg.LogMaxBytes = 10 << 20
	}
	if cfg.LogMaxFiles == 0 {
		cfg.LogMaxFiles = 2
	}
	if cfg.Log == nil {
		return nil, errors.New("no logger given")
	}

	e, err := engine.New(engine.Config{
		Installation: cfg.Installation, Host: cfg.Host, ExtraLabels: cfg.ExtraLabels, Log: cfg.Log, Conditions: cfg.Conditions,
	})
	if err != nil {
		return nil, err
	}
	h := helper.New(e, cfg.HelperBinary)
	images := image.New(e, image.Config{
		DefaultImage: cfg.DefaultImage, IDEImage: cfg.IDEImage, Builds: cfg.Builds, Authorities: cfg.Authorities,
		RegistryAuthFile: cfg.RegistryAuthFile, PullBytesPerSecond: cfg.PullBytesPerSecond, PullTimeout: cfg.PullTimeout,
		DataDir: cfg.DataDir, HostDataDir: cfg.HostDataDir, Sudo: cfg.Sudo,
	})
	homes := home.New(h, images, home.Config{DataDir: cfg.DataDir, HostDataDir: cfg.HostDataDir, HomeQuota: cfg.HomeQuota, UIDs: cfg.UIDs})
	net := network.New(h, network.Config{
		Subnet: cfg.Subnet, Publish: cfg.Publish, Services: cfg.Services, Denied: cfg.Denied, Allowed: cfg.Allowed,
		Connections: cfg.Connections, ConnRate: cfg.ConnRate, AllowNoWall: cfg.AllowNoWall,
	})
	return &Runtime{
		cfg:     cfg,
		engine:  e,
		helper:  h,
		images:  images,
		homes:   homes,
		jobs:    job.New(h, homes),
		network: net,
		builder: build.New(e, images, net.ForBuilds(), cfg.Pids),
		tools: tools.New(h, images, tools.Config{
			AgentDigest: cfg.AgentDigest, DefaultImage: cfg.DefaultImage, IDEImage: cfg.IDEImage, Builds: cfg.Builds, ExtensionsDir: cfg.ExtensionsDir,
		}),
		kernel: newKernel(e),
	}, nil
}

// Close closes the connections to Docker.
func (r *Runtime) Close() error { return r.engine.Close() }

// Builder returns what builds images for workspaces.
func (r *Runtime) Builder() *build.Builder { return r.builder }

// Breaker returns the circuit breaker for Docker.
func (r *Runtime) Breaker() *breaker.Breaker { return r.engine.Breaker }
