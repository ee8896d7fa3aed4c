package docker

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// The engine removes a volume by its name, whatever has come to bear that name
// since its claim was read: a server that was stopped in between, and goes on
// when another one leads, would remove a home that was filled meanwhile. It
// refuses, though, while any container holds the volume, and a container is
// removed by an id that no other ever has. So a home is held by a container
// from the moment it is complete until it is to go: by the seed container or
// the job that restored it, and, once it is live, by a holder, which is made
// of an empty image and never started. That also keeps `docker volume prune`
// away from homes.

// hold makes the holder of a home, or finds it. It reports false if the volume
// is not there, or another home's.
func (r *Runtime) hold(ctx context.Context, id workspace.ID, claim string) (bool, error) {
	attempt := randomHex(8)
	for range 3 {
		made, err := r.createHolder(ctx, id, claim, attempt)
		if errdefs.IsConflict(err) {
			found, gone, err := r.inspectOwned(ctx, holderName(id), roleHolder)
			if err != nil {
				return false, err
			}
			if gone {
				continue
			}
			// It has held the volume since before this look at it, if it still
			// stands: a holder of another claim is somebody's mistake.
			holds, err := r.carries(ctx, id, claim)
			if err != nil || !holds {
				return false, err
			}
			if found.Config.Labels[labelClaim] == claim {
				return true, nil
			}
			if err := r.discard(ctx, found.ID); err != nil {
				return false, err
			}
			continue
		}
		if err != nil {
			return false, failed(ctx, "create holder", err)
		}
		err = r.checkVolume(ctx, id, claim, made)
		if errors.Is(err, runtime.ErrVolumeMismatch) {
			return false, nil
		}
		return err == nil, err
	}
	return false, comesBack("container " + holderName(id))
}

func (r *Runtime) createHolder(ctx context.Context, id workspace.ID, claim, attempt string) (string, error) {
	opts := client.ContainerCreateOptions{
		Name: holderName(id),
		Config: &container.Config{
			Image:  r.names.holder,
			Cmd:    []string{"never-started"},
			Labels: r.labels(roleHolder, id, claim),
		},
		HostConfig: &container.HostConfig{
			NetworkMode: "none",
			Mounts:      []mount.Mount{r.volumeMount(id, runtime.HomeDir, attempt, false)},
		},
	}
	made, err := r.api.ContainerCreate(ctx, opts)
	if err != nil && errdefs.IsNotFound(err) {
		if err := r.ensureHolderImage(ctx); err != nil {
			return "", err
		}
		made, err = r.api.ContainerCreate(ctx, opts)
	}
	return made.ID, err
}

// ensureHolderImage makes the image of nothing, if it is missing.
func (r *Runtime) ensureHolderImage(ctx context.Context) error {
	r.holderImage.Lock() // many homes are settled at once
	defer r.holderImage.Unlock()
	_, err := r.api.ImageInspect(ctx, r.names.holder)
	if err == nil {
		return nil
	}
	if !errdefs.IsNotFound(err) {
		return failed(ctx, "inspect holder image", err)
	}
	nothing := func(*tar.Writer) error { return nil }
	return r.importImage(ctx, r.names.holder, roleHolder, nil, nothing)
}

// volumeMount mounts a docker-volume home. Should it be missing, what the
// engine makes up instead is marked as that.
func (r *Runtime) volumeMount(id workspace.ID, target, attempt string, readOnly bool) mount.Mount {
	labels := r.labels(roleMadeUp, id, "")
	labels[labelAttempt] = attempt
	return mount.Mount{
		Type: mount.TypeVolume, Source: id.VolumeName(), Target: target, ReadOnly: readOnly,
		VolumeOptions: &mount.VolumeOptions{
			NoCopy: true, // a home is filled by CreateVolume and by jobs alone
			Labels: labels,
		},
	}
}

// checkVolume makes sure that the volume in a container that was just made is
// the home that was meant; otherwise the container goes, and a made-up volume
// with it. From its creation on the container holds the volume, so that nobody
// can swap it.
func (r *Runtime) checkVolume(ctx context.Context, id workspace.ID, claim, containerID string) error {
	name := id.VolumeName()
	v, err := r.api.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if err != nil {
		return failed(ctx, "inspect volume", err)
	}
	labels := v.Volume.Labels
	if r.owns(labels, roleHome) && labels[labelClaim] == claim {
		return nil
	}
	if err := r.discard(ctx, containerID); err != nil {
		return err
	}
	if !r.owns(labels, roleMadeUp) {
		return fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	}
	// Also one that an earlier, interrupted call made up: it never held a home.
	if err := r.removeMadeUp(ctx, id); err != nil {
		return err
	}
	return fmt.Errorf("volume %s is missing: %w", name, runtime.ErrVolumeMismatch)
}

// removeMadeUp removes what the engine made up for a home that was missing. A
// home that has come in its place meanwhile is no worse off than any that is
// being made: it is held before it is complete.
func (r *Runtime) removeMadeUp(ctx context.Context, id workspace.ID) error {
	return r.removeOwned(ctx, id.VolumeName(), roleMadeUp)
}

// carries reports whether the home's volume is there with this claim.
func (r *Runtime) carries(ctx context.Context, id workspace.ID, claim string) (bool, error) {
	v, err := r.api.VolumeInspect(ctx, id.VolumeName(), client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, failed(ctx, "inspect volume", err)
	}
	return r.owns(v.Volume.Labels, roleHome) && v.Volume.Labels[labelClaim] == claim, nil
}

// inspectOwned looks at a container of this installation with this role by its
// name. It reports gone if there is none by that name; one of somebody else's
// is an ErrConflict.
func (r *Runtime) inspectOwned(ctx context.Context, name, role string) (found container.InspectResponse, gone bool, err error) {
	c, err := r.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return found, true, nil
	}
	if err != nil {
		return found, false, failed(ctx, "inspect container", err)
	}
	if !r.owns(c.Container.Config.Labels, role) {
		return found, false, fmt.Errorf("container %s is not this installation's: %w", name, runtime.ErrConflict)
	}
	return c.Container, false, nil
}

// user is a container that has a home mounted.
type user struct {
	id      string
	name    string
	role    string // empty: not this installation's
	claim   string // of the home; empty if it says none
	running bool
	started bool   // it runs, or did
	state   string // Docker's word for its state, if it is not idle
}

// users lists the containers that have a home mounted, by its volume's name or
// its folder's path on the host.
func (r *Runtime) users(ctx context.Context, source string) ([]user, error) {
	list, err := r.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("volume", source)})
	if err != nil {
		return nil, failed(ctx, "list containers that hold a home", err)
	}
	out := make([]user, 0, len(list.Items))
	for _, c := range list.Items {
		u := user{id: c.ID, running: stateOf(c.State) == runtime.ContainerRunning, started: stateOf(c.State) != runtime.ContainerCreated}
		if len(c.Names) > 0 {
			u.name = strings.TrimPrefix(c.Names[0], "/")
		}
		if c.Labels[labelInstallation] == r.cfg.Installation {
			u.role = c.Labels[labelRole]
		}
		switch u.role {
		case roleJob:
			u.claim = c.Labels[labelVolume]
		case roleSeed, roleHolder, roleRemover:
			u.claim = c.Labels[labelClaim]
		}
		if !u.idle() {
			// Docker's list may have a container that is gone, or its state of before a
			// crash; such a container must not keep a home busy for ever.
			found, err := r.api.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
			if errdefs.IsNotFound(err) {
				r.log.Warn("docker lists a container that does not exist", "container", u.name, "id", c.ID, "state", c.State)
				continue
			}
			if err != nil {
				return nil, failed(ctx, "inspect container that holds a home", err)
			}
			u.running = stateOf(found.Container.State.Status) == runtime.ContainerRunning
			u.state = string(found.Container.State.Status)
		}
		out = append(out, u)
	}
	return out, nil
}

// idle reports whether the container only holds the home, and can go with it.
func (u user) idle() bool {
	switch u.role {
	case roleSeed, roleHolder, roleJob, roleLook, roleRemover, roleCopy:
		return !u.running
	case roleHelper:
		return true // it only looks
	}
	return false
}

// worked reports whether it is a job that runs, or did.
func (u user) worked() bool { return u.role == roleJob && u.started }
