package engine

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
)

// NoNetwork is the mode of containers that have a loopback device and nothing
// else. Those that are started have NetworkDisabled as well: Docker then does not
// attach them to its network "none". That takes 0.1 s of processor time for each
// container, and Docker before 23.0 can deadlock when several leave it at once
// (github.com/moby/moby/pull/42545).
const NoNetwork = container.NetworkMode("none")

// Report calls progress, which may be nil.
func Report(progress func(runtime.Progress), step string) {
	if progress != nil {
		progress(runtime.Progress{Step: step})
	}
}

// InspectOwned inspects a container by name. It reports gone if there is none, and
// returns ErrConflict if the container is not of this installation and role.
func (e *Engine) InspectOwned(ctx context.Context, name, role string) (found container.InspectResponse, gone bool, err error) {
	c, err := e.API.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return found, true, nil
	}
	if err != nil {
		return found, false, WrapError(ctx, "inspect container", err)
	}
	if !e.Owns(c.Container.Config.Labels, role) {
		return found, false, fmt.Errorf("container %s is not this installation's: %w", name, runtime.ErrConflict)
	}
	return c.Container, false, nil
}

// StateOf returns the state of a container by Docker's.
func StateOf(s container.ContainerState) runtime.ContainerState {
	switch s {
	case container.StateCreated:
		return runtime.ContainerCreated
	case container.StateRunning, container.StatePaused, container.StateRestarting:
		return runtime.ContainerRunning
	}
	return runtime.ContainerExited
}

// Discard removes a container that was not used.
func (e *Engine) Discard(ctx context.Context, id string) error {
	_, err := e.API.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if errdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress") {
		err = e.AwaitRemoval(ctx, id)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return WrapError(ctx, "remove container", err)
	}
	return nil
}

// AwaitRemoval waits until a container that is being removed is gone.
func (e *Engine) AwaitRemoval(ctx context.Context, containerID string) error {
	wait := e.API.ContainerWait(ctx, containerID, client.ContainerWaitOptions{Condition: container.WaitConditionRemoved})
	select {
	case err := <-wait.Error:
		if err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		return WrapError(ctx, "wait for the container's removal", err)
	case <-wait.Result:
		return nil
	}
}
