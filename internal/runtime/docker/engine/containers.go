package engine

import (
	"context"
	"fmt"
	"slices"
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

// Abandon is Discard also after a cancellation: a container that was not started, or has done its
// work, must not be left behind.
func (e *Engine) Abandon(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), AskTimeout)
	defer cancel()
	if err := e.Discard(ctx, id); err != nil {
		e.Log.Warn("container not removed", "container", id, "err", err)
	}
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

// NeededAlone returns a BusyError if any of the containers needs the home alone.
func NeededAlone(what string, users []User) error {
	for _, u := range users {
		if u.needsAlone() {
			return errInUse(what, u)
		}
	}
	return nil
}

func errInUse(what string, u User) error {
	return &runtime.BusyError{Reason: fmt.Sprintf("%s is in use by container %s", what, u.Name), Container: u.Name}
}

// InUse returns a BusyError if any of the containers uses the home and is not only
// a holder or of a role in except. what names the home in the error.
func InUse(what string, users []User, except ...string) error {
	for _, u := range users {
		if !u.Idle() && !slices.Contains(except, u.Role) {
			return errInUse(what, u)
		}
	}
	return nil
}

// User is a container that has a home mounted.
type User struct {
	ID      string
	Name    string
	Role    string // empty: not of this installation
	kind    runtime.JobKind
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
			u.kind, u.claim = runtime.JobKind(c.Labels[LabelKind]), c.Labels[LabelVolume]
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

// Idle reports whether the container only holds the home, or is a backup, and can be
// removed with it.
func (u User) Idle() bool {
	if u.Backup() {
		return true
	}
	switch u.Role {
	case RoleSeed, RoleHolder, RoleJob, RoleFingerprint, RoleRemover, RoleCopy:
		return !u.Running
	case RoleHelper:
		return true // it only reads metadata
	}
	return false
}

// HasRun reports whether it is a job that is or was running and may have written to the home.
func (u User) HasRun() bool { return u.Role == RoleJob && u.started && !u.Backup() }

// Backup reports whether it is a backup job.
func (u User) Backup() bool { return u.Role == RoleJob && u.kind == runtime.JobBackup }

// needsAlone reports whether it works on the home, or is about to, and no backup may begin.
func (u User) needsAlone() bool {
	switch u.Role {
	case RoleJob:
		return u.Running && !u.Backup()
	case RoleFingerprint, RoleRemover, RoleCopy:
		return true
	}
	return false
}

// EndBackups kills and removes the backup jobs among the users of a home. Those that have ended
// stay.
func (e *Engine) EndBackups(ctx context.Context, users []User) error {
	for _, u := range users {
		if !u.Backup() || u.started && !u.Running {
			continue
		}
		if err := e.Discard(ctx, u.ID); err != nil {
			return fmt.Errorf("end backup %s: %w", u.Name, err)
		}
	}
	return nil
}
