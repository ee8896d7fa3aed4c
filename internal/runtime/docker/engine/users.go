package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
)

// InUse returns a BusyError if any of the containers uses the home and is not only
// a holder or of a role in except. what names the home in the error.
func InUse(what string, users []User, except ...string) error {
	for _, u := range users {
		if !u.Idle() && !slices.Contains(except, u.Role) {
			return &runtime.BusyError{Reason: fmt.Sprintf("%s is in use by container %s", what, u.Name), Container: u.Name}
		}
	}
	return nil
}

// User is a container that has a home mounted.
type User struct {
	ID      string
	Name    string
	Role    string // empty: not of this installation
	claim   string // of the home; empty if it has no label
	Running bool
	started bool   // it is or was running
	state   string // Docker's state, if it is not idle
}

// Users lists the containers that have a home mounted, by the volume's name or the
// directory's path on the host.
func (e *Engine) Users(ctx context.Context, source string) ([]User, error) {
	list, err := e.API.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("volume", source)})
	if err != nil {
		return nil, WrapError(ctx, "list containers that hold a home", err)
	}
	out := make([]User, 0, len(list.Items))
	for _, c := range list.Items {
		u := User{ID: c.ID, Running: StateOf(c.State) == runtime.ContainerRunning, started: StateOf(c.State) != runtime.ContainerCreated}
		if len(c.Names) > 0 {
			u.Name = strings.TrimPrefix(c.Names[0], "/")
		}
		if c.Labels[LabelInstallation] == e.Installation {
			u.Role = c.Labels[LabelRole]
		}
		switch u.Role {
		case RoleJob:
			u.claim = c.Labels[LabelVolume]
		case RoleSeed, RoleHolder, RoleRemover:
			u.claim = c.Labels[LabelClaim]
		}
		if !u.Idle() {
			// Docker may list a container that is gone, or a state from before a
			// crash. Such an entry must not keep a home busy forever.
			found, err := e.API.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
			if errdefs.IsNotFound(err) {
				e.Log.Warn("listed container does not exist", "container", u.Name, "id", c.ID, "state", c.State)
				continue
			}
			if err != nil {
				return nil, WrapError(ctx, "inspect container that holds a home", err)
			}
			u.Running = StateOf(found.Container.State.Status) == runtime.ContainerRunning
			u.state = string(found.Container.State.Status)
		}
		out = append(out, u)
	}
	return out, nil
}

// Idle reports whether the container only holds the home and can be removed with
// it.
func (u User) Idle() bool {
	switch u.Role {
	case RoleSeed, RoleHolder, RoleJob, RoleFingerprint, RoleRemover, RoleCopy:
		return !u.Running
	case RoleHelper:
		return true // it only reads metadata
	}
	return false
}

// HasRun reports whether it is a job that is or was running.
func (u User) HasRun() bool { return u.Role == RoleJob && u.started }
