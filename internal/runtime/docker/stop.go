package docker

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/runtime/docker/engine"
)

// RemoveContainer implements runtime.Runtime.
func (r *Runtime) RemoveContainer(ctx context.Context, containerID string, grace time.Duration) error {
	found, err := r.engine.API.ContainerInspect(ctx, containerID, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return engine.WrapError(ctx, "inspect container", err)
	}
	c := found.Container
	if c.ID != containerID || !r.engine.Owns(c.Config.Labels, engine.RoleWorkspace) {
		return fmt.Errorf("container %s is not a workspace of this installation", containerID)
	}
	if c.NetworkSettings != nil {
		if e := c.NetworkSettings.Networks[r.engine.Names.Network]; e != nil {
			defer func() { r.network.MarkUsed(e.IPAddress) }()
		}
	}
	if c.State.Status != container.StateExited && c.State.Status != container.StateDead { // it may start meanwhile
		end, err := r.engine.StopTurn(ctx)
		if err != nil {
			return engine.WrapError(ctx, "wait to stop the container", err)
		}
		defer end()
	}
	if c.State.Running && grace > 0 {
		seconds := int(math.Ceil(grace.Seconds()))
		_, err := r.engine.API.ContainerStop(ctx, containerID, client.ContainerStopOptions{Timeout: &seconds})
		if err != nil && !errdefs.IsNotFound(err) {
			return engine.WrapError(ctx, "stop container", err)
		}
	}
	// Anonymous volumes of the image are removed with the container; named ones
	// never are.
	_, err = r.engine.API.ContainerRemove(ctx, containerID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	switch {
	case err == nil || errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress"):
		return r.engine.AwaitRemoval(ctx, containerID)
	}
	return engine.WrapError(ctx, "remove container", err)
}
