package server

import (
	"context"
	"fmt"
	"log/slog"

	"codehub/internal/base/breaker"
	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent/program"
	"codehub/internal/runtime/docker"
	"codehub/internal/runtime/docker/build"
	"codehub/internal/runtime/imagebuild"
	"codehub/internal/runtime/kube"
	"codehub/internal/server/config"
)

// engine is the runtime of a server, with what only the server needs of it.
type engine struct {
	runtime.Runtime
	breaker *breaker.Breaker
	run     func(context.Context) error // until its context ends
	refresh func()                      // what is observed from here on includes what other servers have done
	close   func() error
	builder *build.Builder // of images from repositories; nil: the runtime builds none
}

// openEngine opens the runtime that the settings name.
func openEngine(ctx context.Context, cfg config.Config, installation string, builds *imagebuild.Builder, conditions *health.Monitor, log *slog.Logger) (engine, error) {
	if cfg.Runtime == config.Kubernetes {
		return openKubernetes(ctx, cfg, installation, conditions, log)
	}
	agent, err := program.Digest()
	if err != nil {
		return engine{}, fmt.Errorf("read the agent in this executable: %w", err)
	}
	d, err := docker.New(ctx, docker.Config{
		Installation: installation, AgentDigest: agent, DataDir: cfg.DataDir, HostDataDir: cfg.HostDataDir,
		DefaultImage: cfg.Defaults.DefaultImage, Builds: builds, MaxRunning: cfg.Limits.Global, UIDs: cfg.Reconcile.UIDs,
		PortURI: cfg.Layout.PortURI, Authorities: cfg.Authorities,
		Settings: cfg.Docker, Services: behind(ctx, cfg, log), Log: log, Conditions: conditions,
	})
	if err != nil {
		return engine{}, err
	}
	idle := func(ctx context.Context) error { <-ctx.Done(); return nil }
	return engine{Runtime: d, breaker: d.Breaker(), run: idle, refresh: func() {}, close: d.Close, builder: d.Builder()}, nil
}

// openKubernetes connects to the cluster. Settings that the cluster refuses are an error; a
// cluster that does not respond, or has a full quota, is not.
func openKubernetes(ctx context.Context, cfg config.Config, installation string, conditions *health.Monitor, log *slog.Logger) (engine, error) {
	connection, err := cfg.Cluster.Connect()
	if err != nil {
		return engine{}, err
	}
	c := kube.Config{
		Installation: installation, Settings: cfg.Cluster, IDEImage: cfg.Docker.IDEImage, RegistryAuthFile: cfg.Docker.RegistryAuthFile, Registries: cfg.Registries,
		PullTimeout: cfg.Docker.PullTimeout,
		Sudo:        cfg.Docker.Sudo, Variables: cfg.Docker.Variables(), PortURI: cfg.Layout.PortURI, Authorities: cfg.Authorities, Log: log, Conditions: conditions,
	}
	k, err := kube.New(connection, c)
	if err != nil {
		return engine{}, err
	}
	if err := k.Try(ctx); err != nil {
		_ = k.Close()
		return engine{}, fmt.Errorf("the cluster does not accept workspaces with these settings: %w", err)
	}
	return engine{Runtime: k, breaker: k.Breaker(), run: k.Run, refresh: k.Refresh, close: k.Close}, nil
}

// nodes are the machines that the containers run on; nil if they run on one.
func (e engine) nodes() runtime.Nodes {
	n, _ := e.Runtime.(runtime.Nodes)
	return n
}
