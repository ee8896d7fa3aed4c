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
)

// RemoveContainer implements runtime.Runtime.
func (r *Runtime) RemoveContainer(ctx context.Context, containerID string, grace time.Duration) error {
	found, err := r.api.ContainerInspect(ctx, containerID, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return wrapError(ctx, "inspect container", err)
	}
	c := found.Container
	if c.ID != containerID || !r.owns(c.Config.Labels, roleWorkspace) {
		return fmt.Errorf("container %s is not a workspace of this installation", containerID)
	}
	if c.NetworkSettings != nil {
		if e := c.NetworkSettings.Networks[r.names.network]; e != nil {
			defer func() { r.addrs.markUsed(e.IPAddress, r.now()) }()
		}
	}
	if c.State.Status != container.StateExited && c.State.Status != container.StateDead { // it may start meanwhile
		end, err := r.turn(ctx, toStop)
		if err != nil {
			return wrapError(ctx, "wait to stop the container", err)
		}
		defer end()
	}
	if c.State.Running && grace > 0 {
		seconds := int(math.Ceil(grace.Seconds()))
		_, err := r.api.ContainerStop(ctx, containerID, client.ContainerStopOptions{Timeout: &seconds})
		if err != nil && !errdefs.IsNotFound(err) {
			return wrapError(ctx, "stop container", err)
		}
	}
	// Anonymous volumes of the image are removed with the container; named ones
	// never are.
	_, err = r.api.ContainerRemove(ctx, containerID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	switch {
	case err == nil || errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress"):
		return r.awaitRemoval(ctx, containerID)
	}
	return wrapError(ctx, "remove container", err)
}

func (r *Runtime) awaitRemoval(ctx context.Context, containerID string) error {
	wait := r.api.ContainerWait(ctx, containerID, client.ContainerWaitOptions{Condition: container.WaitConditionRemoved})
	select {
	case err := <-wait.Error:
		if err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		return wrapError(ctx, "wait for the container's removal", err)
	case <-wait.Result:
		return nil
	}
}
