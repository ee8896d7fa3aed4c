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

// Docker removes a volume by its name, even if another volume has taken the name
// since its claim was read: a server that was stopped in between and continues
// after another has become the leader would remove a new home. But Docker refuses
// to remove a volume that a container holds, and containers have unique IDs. So
// from the moment it is complete until its removal a home is held by a container:
// the seed container or the job that restored it, and, once it is live, a holder
// with an empty image that is never started. That also protects homes from `docker
// volume prune`.

// hold creates or finds the holder of a home. It returns false if the volume is
// missing or belongs to another home.
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
			// The existing holder has held the volume since before this check,
			// provided it has this claim.
			holds, err := r.hasClaim(ctx, id, claim)
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
			return false, wrapError(ctx, "create holder", err)
		}
		err = r.checkVolume(ctx, id, claim, made)
		if errors.Is(err, runtime.ErrVolumeMismatch) {
			return false, nil
		}
		return err == nil, err
	}
	return false, errRecreated("container " + holderName(id))
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
			NetworkMode: noNetwork,
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

// ensureHolderImage creates the empty image if it is missing.
func (r *Runtime) ensureHolderImage(ctx context.Context) error {
	r.holderImage.Lock() // many homes may be settled at once
	defer r.holderImage.Unlock()
	_, err := r.api.ImageInspect(ctx, r.names.holder)
	if err == nil {
		return nil
	}
	if !errdefs.IsNotFound(err) {
		return wrapError(ctx, "inspect holder image", err)
	}
	nothing := func(*tar.Writer) error { return nil }
	return r.importImage(ctx, r.names.holder, roleHolder, nil, nothing)
}

// volumeMount mounts a docker-volume home. If the volume is missing, the one that
// Docker creates implicitly gets labels that say so.
func (r *Runtime) volumeMount(id workspace.ID, target, attempt string, readOnly bool) mount.Mount {
	labels := r.labels(roleImplicit, id, "")
	labels[labelAttempt] = attempt
	return mount.Mount{
		Type: mount.TypeVolume, Source: id.VolumeName(), Target: target, ReadOnly: readOnly,
		VolumeOptions: &mount.VolumeOptions{
			NoCopy: true, // only CreateVolume and jobs fill a home
			Labels: labels,
		},
	}
}

// checkVolume checks that the volume in a created container is the right home.
// Otherwise it removes the container and a volume that Docker created implicitly.
// The container holds the volume, so the volume cannot be replaced after the check.
func (r *Runtime) checkVolume(ctx context.Context, id workspace.ID, claim, containerID string) error {
	name := id.VolumeName()
	v, err := r.api.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if err != nil {
		return wrapError(ctx, "inspect volume", err)
	}
	labels := v.Volume.Labels
	if r.owns(labels, roleHome) && labels[labelClaim] == claim {
		return nil
	}
	if err := r.discard(ctx, containerID); err != nil {
		return err
	}
	if !r.owns(labels, roleImplicit) {
		return fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	}
	// This includes one from an earlier, interrupted call: it never contained a
	// home.
	if err := r.removeImplicit(ctx, id); err != nil {
		return err
	}
	return fmt.Errorf("volume %s is missing: %w", name, runtime.ErrVolumeMismatch)
}

// removeImplicit removes the volume that Docker created implicitly for a missing
// home. A home that has taken its place is not at risk: it is held before it is
// complete.
func (r *Runtime) removeImplicit(ctx context.Context, id workspace.ID) error {
	return r.removeOwned(ctx, id.VolumeName(), roleImplicit)
}

// hasClaim reports whether the home's volume exists with this claim.
func (r *Runtime) hasClaim(ctx context.Context, id workspace.ID, claim string) (bool, error) {
	v, err := r.api.VolumeInspect(ctx, id.VolumeName(), client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, wrapError(ctx, "inspect volume", err)
	}
	return r.owns(v.Volume.Labels, roleHome) && v.Volume.Labels[labelClaim] == claim, nil
}

// inspectOwned inspects a container by name. It reports gone if there is none, and
// returns ErrConflict if the container is not of this installation and role.
func (r *Runtime) inspectOwned(ctx context.Context, name, role string) (found container.InspectResponse, gone bool, err error) {
	c, err := r.api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return found, true, nil
	}
	if err != nil {
		return found, false, wrapError(ctx, "inspect container", err)
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
	role    string // empty: not of this installation
	claim   string // of the home; empty if it has no label
	running bool
	started bool   // it is or was running
	state   string // Docker's state, if it is not idle
}

// users lists the containers that have a home mounted, by the volume's name or the
// directory's path on the host.
func (r *Runtime) users(ctx context.Context, source string) ([]user, error) {
	list, err := r.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("volume", source)})
	if err != nil {
		return nil, wrapError(ctx, "list containers that hold a home", err)
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
			// Docker may list a container that is gone, or a state from before a
			// crash. Such an entry must not keep a home busy forever.
			found, err := r.api.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
			if errdefs.IsNotFound(err) {
				r.log.Warn("listed container does not exist", "container", u.name, "id", c.ID, "state", c.State)
				continue
			}
			if err != nil {
				return nil, wrapError(ctx, "inspect container that holds a home", err)
			}
			u.running = stateOf(found.Container.State.Status) == runtime.ContainerRunning
			u.state = string(found.Container.State.Status)
		}
		out = append(out, u)
	}
	return out, nil
}

// idle reports whether the container only holds the home and can be removed with
// it.
func (u user) idle() bool {
	switch u.role {
	case roleSeed, roleHolder, roleJob, roleFingerprint, roleRemover, roleCopy:
		return !u.running
	case roleHelper:
		return true // it only reads metadata
	}
	return false
}

// hasRun reports whether it is a job that is or was running.
func (u user) hasRun() bool { return u.role == roleJob && u.started }
