package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	networktypes "github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/home"
	"codehub/internal/runtime/docker/image"
	"codehub/internal/runtime/docker/network"
	"codehub/internal/runtime/docker/seccomp"
	"codehub/internal/runtime/docker/tools"
	"codehub/internal/workspace"
)

// networkMaxAge is how old the last check of network and wall may be when a
// container starts.
const networkMaxAge = time.Minute

// runAs is what a workspace's container runs and mounts.
type runAs struct {
	image.RunAs
	agent, agentDigest string        // the volume with the agent, and its digest
	ide                string        // the volume with the IDE; empty if the image brings it
	names              []mount.Mount // see image.Images.MountNames
	ulimits            []*container.Ulimit
}

// StartContainer implements runtime.Runtime.
func (r *Runtime) StartContainer(ctx context.Context, spec runtime.ContainerSpec, progress func(runtime.Progress)) (runtime.Container, error) {
	if !workspace.ValidID(string(spec.Workspace)) {
		return runtime.Container{}, fmt.Errorf("workspace %q is not a UUID", spec.Workspace)
	}
	if spec.UID == 0 {
		return runtime.Container{}, home.ErrNoUID
	}
	unlock, err := r.engine.Lock(ctx, spec.Workspace)
	if err != nil {
		return runtime.Container{}, err
	}
	defer unlock()
	var last error
	refilled := false
	var endTurn func() // nil before the first container is created
	defer func() {
		if endTurn != nil {
			endTurn()
		}
	}()
	for try := 0; try < engine.MaxTries; try++ {
		net, err := r.network.Checked(ctx, networkMaxAge)
		if err != nil {
			return runtime.Container{}, err
		}
		if err := r.homes.Ready(ctx, spec); err != nil {
			return runtime.Container{}, err
		}
		engine.Report(progress, runtime.StepCreating)
		image, err := r.images.Choose(ctx, spec.Image, spec.User, spec.Choice, progress)
		if err != nil {
			return runtime.Container{}, err
		}
		var as runAs
		if as.RunAs, err = r.images.RunAs(ctx, image.ID); err != nil {
			return runtime.Container{}, err
		}
		if as.agent, as.agentDigest, err = r.tools.Agent(ctx); err != nil {
			return runtime.Container{}, err
		}
		if !as.Included && !as.Missing {
			if err := r.images.AwaitIDE(ctx, progress); err != nil {
				return runtime.Container{}, err
			}
			if as.ide, _, err = r.tools.IDE(ctx); err != nil {
				return runtime.Container{}, err
			}
		}
		if endTurn == nil {
			if endTurn, err = r.engine.StartsTurn(ctx); err != nil {
				return runtime.Container{}, engine.WrapError(ctx, "create container", err)
			}
			if net, err = r.network.Checked(ctx, networkMaxAge); err != nil { // again, after the wait
				return runtime.Container{}, err
			}
		}
		as.ulimits = r.kernel.ulimits(ctx) // the starts before may have shown that Docker may not lift them
		as.names = r.images.MountNames(ctx, as.RunAs, spec.UID)
		addr := r.network.TakeAddress()
		attempt := engine.RandomHex(8)
		made, err := r.createContainer(ctx, spec.Workspace, image.Into(r.createOptions(spec, as, net, addr, attempt)))
		switch {
		case err == nil:
		case errdefs.IsConflict(err):
			c, found, err := r.adoptContainer(ctx, spec, progress)
			if found || err != nil {
				return c, err
			}
			continue // removed in the meantime
		case r.images.NamesRefused(err):
			last = engine.WrapError(ctx, "create container", err)
			continue // with copied names
		default:
			missing, why := r.images.Missing(ctx, err, image.ID)
			if why != nil {
				return runtime.Container{}, why
			}
			if !missing {
				return runtime.Container{}, engine.WrapError(ctx, "create container", err)
			}
			last = engine.WrapError(ctx, "create container", err)
			continue // it was removed in the meantime
		}

		if as.Missing { // the image has appeared, so that its command is known
			if err := r.engine.Discard(ctx, made.ID); err != nil {
				return runtime.Container{}, err
			}
			continue
		}
		if err := r.verifyHome(ctx, spec, made.ID); err != nil {
			return runtime.Container{}, err
		}
		if has, err := r.tools.HasIDE(ctx, as.ide); err != nil || !has {
			if err := errors.Join(err, r.engine.Discard(ctx, made.ID)); err != nil {
				return runtime.Container{}, err
			}
			last = engine.ErrConcurrent("the IDE's volume is removed as soon as it is filled")
			continue
		}
		engine.Report(progress, runtime.StepStarting)
		if err := r.images.MakeReady(ctx, as.RunAs, spec.UID, made.ID, len(as.names) > 0); err != nil {
			return runtime.Container{}, errors.Join(err, r.engine.Discard(ctx, made.ID))
		}
		err = r.engine.StartInTurn(ctx, made.ID)
		if err == nil {
			c, err := r.started(ctx, spec, made.ID, net, addr)
			return image.Describe(c), err
		}
		last = engine.WrapError(ctx, "start container", err)
		if errors.Is(last, runtime.ErrUnreachable) || ctx.Err() != nil {
			return runtime.Container{}, last
		}
		refused := r.kernel.refused(err, as.ulimits)
		// A container that could not be started is useless; the error says why.
		if err := r.engine.Discard(ctx, made.ID); err != nil {
			return runtime.Container{}, err
		}
		switch {
		case refused: // no attempt has any from now on
			try--
		case r.images.NamesRefused(err):
		case tools.AgentMissing(err) && !refilled:
			refilled = true
			r.tools.ForgetAgent()
		case engine.AddressTaken(err): // the next attempt uses another address
		case errdefs.IsNotFound(err) && strings.Contains(err.Error(), "network"):
			r.network.Forget()
		default:
			return runtime.Container{}, last
		}
	}
	if last == nil {
		last = engine.ErrConcurrent("create container: another call keeps taking and freeing its name")
	}
	return runtime.Container{}, last
}

// createContainer creates a workspace's container. A container that an earlier version
// created for it is a conflict as well.
func (r *Runtime) createContainer(ctx context.Context, id workspace.ID, opts client.ContainerCreateOptions) (client.ContainerCreateResult, error) {
	_, err := r.engine.API.ContainerInspect(ctx, id.ContainerName(), client.ContainerInspectOptions{})
	switch {
	case err == nil:
		return client.ContainerCreateResult{}, fmt.Errorf("container %s exists: %w", id.ContainerName(), errdefs.ErrConflict)
	case !errdefs.IsNotFound(err):
		return client.ContainerCreateResult{}, err
	}
	return r.engine.API.ContainerCreate(ctx, opts)
}

// inspectNamed inspects a workspace's container, also one of an earlier version.
func (r *Runtime) inspectNamed(ctx context.Context, id workspace.ID) (client.ContainerInspectResult, error) {
	found, err := r.engine.API.ContainerInspect(ctx, id.DockerName(), client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return r.engine.API.ContainerInspect(ctx, id.ContainerName(), client.ContainerInspectOptions{})
	}
	return found, err
}

// dnsHostname returns a host name that a shell shows as the label. Docker's DNS knows it
// by the whole name, which other workspaces cannot guess.
func dnsHostname(label string) string {
	if label == "" {
		return "" // Docker takes the container's short id
	}
	random := "." + engine.RandomHex(6)
	const most = 64 // HOST_NAME_MAX of Linux
	return strings.TrimRight(label[:min(len(label), most-len(random))], "-") + random
}

// createOptions returns the complete configuration of a workspace's container.
func (r *Runtime) createOptions(spec runtime.ContainerSpec, as runAs, net *network.Bridge, addr netip.Addr, attempt string) client.ContainerCreateOptions {
	host := &container.HostConfig{
		NetworkMode:   container.NetworkMode(r.engine.Names.Network),
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{
			"max-size": strconv.FormatInt(r.cfg.LogMaxBytes, 10),
			"max-file": strconv.Itoa(r.cfg.LogMaxFiles),
		}},
		Resources: container.Resources{
			NanoCPUs:   spec.Size.NanoCPUs,
			Memory:     spec.Size.Memory,
			MemorySwap: spec.Size.Memory, // equal to Memory: no swap
			Ulimits:    as.ulimits,
		},
		Mounts: slices.Concat([]mount.Mount{r.homes.Mount(spec, attempt)}, r.tools.Mounts(as.agent, as.ide), as.names),
	}
	workingDir := "" // the image's
	if !as.Included {
		workingDir = "/" // the user may not enter the image's
	}
	if r.cfg.Pids > 0 {
		host.PidsLimit = &r.cfg.Pids
	}
	host.SecurityOpt = []string{seccomp.Option()}
	if r.cfg.Sudo {
		// With raw sockets a workspace could forge its neighbours' addresses.
		host.CapDrop = []string{"NET_RAW"}
	} else {
		host.CapDrop = []string{"ALL"}
		host.SecurityOpt = append(host.SecurityOpt, "no-new-privileges:true")
	}
	if !net.Direct {
		host.PortBindings = networktypes.PortMap{
			idePort:   {{HostIP: netip.AddrFrom4([4]byte{127, 0, 0, 1})}},
			agentPort: {{HostIP: netip.AddrFrom4([4]byte{127, 0, 0, 1})}},
		}
	}
	// Docker's list names an image by its id once its tag was moved.
	labels := r.engine.Labels(engine.RoleWorkspace, spec.Workspace, spec.Claim)
	labels[engine.LabelImage], labels[engine.LabelEnvironment], labels[engine.LabelAgent], labels[engine.LabelSize] = spec.Image, spec.EnvDigest, as.agentDigest, spec.Size.Name
	return client.ContainerCreateOptions{
		Name: spec.Workspace.DockerName(),
		Config: &container.Config{
			Image:        spec.Image,
			User:         image.UserSpec(spec.UID),
			Hostname:     dnsHostname(spec.Hostname),
			WorkingDir:   workingDir,
			Env:          variables(account.Environment(spec, as.Env, as.Zoned, slices.Concat(r.cfg.Variables(), r.portEnv(spec.Workspace)))),
			Labels:       labels,
			Entrypoint:   tools.AgentEntrypoint,
			Cmd:          as.Command,
			StopSignal:   "SIGTERM", // the agent's, whatever the image's command expects
			ExposedPorts: networktypes.PortSet{idePort: {}, agentPort: {}},
			// The server probes /healthz itself. A health check in the image would
			// start a process per workspace every few seconds.
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		},
		HostConfig: host,
		NetworkingConfig: &networktypes.NetworkingConfig{EndpointsConfig: map[string]*networktypes.EndpointSettings{
			r.engine.Names.Network: {IPAMConfig: &networktypes.EndpointIPAMConfig{IPv4Address: addr}},
		}},
	}
}

// variables returns NAME=VALUE, sorted by name.
func variables(env map[string]string) []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

var (
	idePort   = networktypes.MustParsePort(strconv.Itoa(runtime.IDEPort) + "/tcp")
	agentPort = networktypes.MustParsePort(strconv.Itoa(runtime.AgentPort) + "/tcp")
)

// verifyHome checks that the home in a created container is the right one, and ends
// tasks on it (job.ClearTasks). It removes the container if the home is another or a
// storage job uses it.
func (r *Runtime) verifyHome(ctx context.Context, spec runtime.ContainerSpec, containerID string) error {
	if err := r.homes.VerifyMounted(ctx, spec, containerID); err != nil {
		return err
	}
	if err := r.jobs.ClearTasks(ctx, spec.Workspace, containerID); err != nil {
		return errors.Join(err, r.engine.Discard(ctx, containerID))
	}
	return nil
}

// adoptContainer handles an existing container with the workspace's name. It
// returns false if there is none after all.
func (r *Runtime) adoptContainer(ctx context.Context, spec runtime.ContainerSpec, progress func(runtime.Progress)) (runtime.Container, bool, error) {
	found, err := r.inspectNamed(ctx, spec.Workspace)
	if errdefs.IsNotFound(err) {
		return runtime.Container{}, false, nil
	}
	if err != nil {
		return runtime.Container{}, false, engine.WrapError(ctx, "inspect container", err)
	}
	if found.Container.State.Status == container.StateRemoving {
		return runtime.Container{}, false, r.engine.AwaitRemoval(ctx, found.Container.ID)
	}
	c := r.inspected(found.Container)
	labels := found.Container.Config.Labels
	if !r.engine.Owns(labels, engine.RoleWorkspace) || c.Claim != spec.Claim || c.State == runtime.ContainerExited {
		return runtime.Container{}, true, fmt.Errorf("container %s (%s): %w", strings.TrimPrefix(found.Container.Name, "/"), c.Detail, runtime.ErrConflict)
	}
	if c.State == runtime.ContainerRunning {
		return c, true, nil
	}
	if found.Container.Config.User != image.UserSpec(spec.UID) { // by an earlier version, or before its uid was changed
		return runtime.Container{}, false, r.engine.Discard(ctx, c.ID)
	}
	if err := r.verifyHome(ctx, spec, c.ID); err != nil {
		return runtime.Container{}, true, err
	}
	for _, m := range found.Container.Mounts {
		if m.Destination != account.IDEDir {
			continue
		}
		if has, err := r.tools.HasIDE(ctx, m.Name); err != nil || !has {
			return runtime.Container{}, err != nil, errors.Join(err, r.engine.Discard(ctx, c.ID))
		}
	}
	as, err := r.images.RunAs(ctx, found.Container.Image)
	if err != nil {
		return runtime.Container{}, true, err
	}
	engine.Report(progress, runtime.StepStarting)
	mounted := image.MountsNames(found.Container.Mounts)
	if mounted {
		r.images.MountNames(ctx, as, spec.UID) // a crash may have damaged the files
	}
	if err := r.images.MakeReady(ctx, as, spec.UID, c.ID, mounted); err != nil {
		return runtime.Container{}, true, errors.Join(err, r.engine.Discard(ctx, c.ID))
	}
	if err := r.engine.StartInTurn(ctx, c.ID); err != nil {
		err = engine.WrapError(ctx, "start container", err)
		if errors.Is(err, runtime.ErrUnreachable) || ctx.Err() != nil {
			return runtime.Container{}, true, err
		}
		if discarded := r.engine.Discard(ctx, c.ID); discarded != nil {
			return runtime.Container{}, true, discarded
		}
		if tools.AgentMissing(err) {
			r.tools.ForgetAgent()
		}
		if tools.AgentMissing(err) || engine.AddressTaken(err) || r.images.NamesRefused(err) || errdefs.IsNotFound(err) || r.kernel.refused(err, found.Container.HostConfig.Ulimits) {
			return runtime.Container{}, false, nil // create a new one
		}
		return runtime.Container{}, true, err
	}
	c, err = r.inspect(ctx, c.ID)
	return c, true, err
}

func (r *Runtime) started(ctx context.Context, spec runtime.ContainerSpec, id string, net *network.Bridge, addr netip.Addr) (runtime.Container, error) {
	if !net.Direct {
		return r.inspect(ctx, id) // Docker chose the port
	}
	return runtime.Container{
		ID:        id,
		Workspace: spec.Workspace,
		Claim:     spec.Claim,
		Image:     spec.Image,
		EnvDigest: spec.EnvDigest,
		Size:      cmp.Or(spec.Size.Name, workspace.DefaultSize),
		State:     runtime.ContainerRunning,
		Detail:    "running",
		Addr:      upstreamAddr(addr, runtime.IDEPort, ""),
	}, nil
}

func (r *Runtime) inspect(ctx context.Context, id string) (runtime.Container, error) {
	found, err := r.engine.API.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return runtime.Container{}, engine.WrapError(ctx, "inspect container", err)
	}
	return r.inspected(found.Container), nil
}
