package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/workspace"
)

// agentMore is how much longer a start may take with the agent and the user's name.
const agentMore = 50 * time.Millisecond

// starter starts containers of one workspace as the server does, and the same containers
// without the agent and the name.
type starter struct {
	runtime *docker.Runtime
	api     *client.Client
	spec    runtime.ContainerSpec
	bare    client.ContainerCreateOptions
}

// agentCost measures what the agent and the user's name in the container add to a start,
// from the creation of the container until /healthz answers.
func agentCost(ctx context.Context, o options) (err error) {
	installation := uuid.NewString()
	api, err := client.New(client.FromEnv)
	if err != nil {
		return err
	}
	defer api.Close()
	defer func() { err = errors.Join(err, proc.Sweep(context.WithoutCancel(ctx), api, installation)) }()
	agent, err := os.ReadFile(o.binary + "-agent")
	if err != nil {
		return err
	}
	data, err := os.MkdirTemp("", "codehub-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data)
	rt, err := docker.New(ctx, docker.Config{
		Installation: installation, DataDir: data, HelperBinary: o.binary, AgentDigest: fmt.Sprintf("%x", sha256.Sum256(agent)), Log: slog.New(slog.DiscardHandler),
		Settings: docker.Settings{Pids: 4096, KeepLimits: true},
	})
	if err != nil {
		return err
	}
	defer rt.Close()
	if err := rt.Prepare(ctx); err != nil {
		return err
	}
	s := starter{runtime: rt, api: api, spec: runtime.ContainerSpec{
		Size: workspace.Size{NanoCPUs: 2e9, Memory: 4 << 30},
		UID:  1_500_000, Claim: "bench", Image: env("CODEHUB_TEST_IMAGE", "codehub/testserver:latest"), VolumeClaim: "bench", Secret: "bench",
	}}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	took, err := timesInTurns(2*o.n, func() (time.Duration, error) { return s.workspace(ctx) }, func() (time.Duration, error) { return s.plain(ctx) })
	if err != nil {
		return err
	}
	more := median(took[0]) - median(took[1])
	fmt.Printf("agent: start of a workspace %s, of its container without the agent and the user's name %s, %s more (at most %s): %s\n",
		ms(median(took[0])), ms(median(took[1])), ms(more), ms(agentMore), verdict(more <= agentMore))
	return nil
}

// prepare makes two homes, and learns what container a workspace has.
func (s *starter) prepare(ctx context.Context) error {
	home, err := s.home(ctx)
	if err != nil {
		return err
	}
	if s.spec.Workspace, err = s.home(ctx); err != nil {
		return err
	}
	c, err := s.runtime.StartContainer(ctx, s.spec, nil)
	if err != nil {
		return err
	}
	found, err := s.api.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	s.bare.Config, s.bare.HostConfig = found.Container.Config, found.Container.HostConfig
	s.bare.Config.Entrypoint = nil // of the agent; the rest is the IDE's command
	mounts := s.bare.HostConfig.Mounts
	at := slices.IndexFunc(mounts, func(m mount.Mount) bool { return m.Target == runtime.HomeDir })
	if at < 0 {
		return fmt.Errorf("a workspace has the mounts %+v", mounts)
	}
	mounts[at].Source = home.VolumeName()
	s.bare.HostConfig.Mounts = slices.DeleteFunc(mounts, func(m mount.Mount) bool {
		return slices.Contains([]string{"/opt/codehub", "/etc/passwd", "/etc/group"}, m.Target)
	})
	// Otherwise the runtime takes it for the workspace's.
	s.bare.Config.Labels["codehub.role"] = "bench"
	return s.remove(ctx, c.ID)
}

func (s *starter) home(ctx context.Context) (workspace.ID, error) {
	id := workspace.ID(uuid.NewString())
	spec := runtime.VolumeSpec{Workspace: id, Storage: workspace.StorageDockerVolume, Claim: s.spec.VolumeClaim, Image: s.spec.Image}
	if err := s.runtime.CreateVolume(ctx, spec, nil); err != nil {
		return "", err
	}
	return id, s.runtime.OwnHome(ctx, runtime.OwnSpec{Workspace: id, VolumeClaim: spec.Claim, UID: s.spec.UID, From: workspace.Home{FromImage: true}.UserIDs()}, nil)
}

func (s *starter) workspace(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	c, err := s.runtime.StartContainer(ctx, s.spec, nil)
	if err == nil {
		err = s.answers(ctx, c)
	}
	took := time.Since(begun)
	return took, errors.Join(err, s.remove(ctx, c.ID))
}

func (s *starter) plain(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	made, err := s.api.ContainerCreate(ctx, s.bare)
	if err != nil {
		return 0, err
	}
	if _, err = s.api.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}); err == nil {
		var found client.ContainerInspectResult
		if found, err = s.api.ContainerInspect(ctx, made.ID, client.ContainerInspectOptions{}); err == nil {
			network := found.Container.NetworkSettings.Networks[string(s.bare.HostConfig.NetworkMode)]
			err = s.answers(ctx, runtime.Container{Addr: net.JoinHostPort(network.IPAddress.String(), strconv.Itoa(runtime.IDEPort))})
		}
	}
	took := time.Since(begun)
	return took, errors.Join(err, s.remove(ctx, made.ID))
}

func (s *starter) answers(ctx context.Context, c runtime.Container) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := s.runtime.Probe(ctx, c)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (s *starter) remove(ctx context.Context, id string) error {
	if id == "" {
		return nil
	}
	_, err := s.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true})
	return err
}
