package docker

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
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
	attempt := engine.RandomHex(8)
	for range 3 {
		made, err := r.createHolder(ctx, id, claim, attempt)
		if errdefs.IsConflict(err) {
			found, gone, err := r.engine.InspectOwned(ctx, engine.HolderName(id), engine.RoleHolder)
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
			if found.Config.Labels[engine.LabelClaim] == claim {
				return true, nil
			}
			if err := r.discard(ctx, found.ID); err != nil {
				return false, err
			}
			continue
		}
		if err != nil {
			return false, engine.WrapError(ctx, "create holder", err)
		}
		err = r.checkVolume(ctx, id, claim, made)
		if errors.Is(err, runtime.ErrVolumeMismatch) {
			return false, nil
		}
		return err == nil, err
	}
	return false, engine.ErrRecreated("container " + engine.HolderName(id))
}

func (r *Runtime) createHolder(ctx context.Context, id workspace.ID, claim, attempt string) (string, error) {
	opts := client.ContainerCreateOptions{
		Name: engine.HolderName(id),
		Config: &container.Config{
			Image:  r.engine.Names.Holder,
			Cmd:    []string{"never-started"},
			Labels: r.engine.Labels(engine.RoleHolder, id, claim),
		},
		HostConfig: &container.HostConfig{
			NetworkMode: engine.NoNetwork,
			Mounts:      []mount.Mount{r.volumeMount(id, runtime.HomeDir, attempt, false)},
		},
	}
	made, err := r.engine.API.ContainerCreate(ctx, opts)
	if err != nil && errdefs.IsNotFound(err) {
		if err := r.ensureHolderImage(ctx); err != nil {
			return "", err
		}
		made, err = r.engine.API.ContainerCreate(ctx, opts)
	}
	return made.ID, err
}

// ensureHolderImage creates the empty image if it is missing.
func (r *Runtime) ensureHolderImage(ctx context.Context) error {
	r.holderImage.Lock() // many homes may be settled at once
	defer r.holderImage.Unlock()
	_, err := r.engine.API.ImageInspect(ctx, r.engine.Names.Holder)
	if err == nil {
		return nil
	}
	if !errdefs.IsNotFound(err) {
		return engine.WrapError(ctx, "inspect holder image", err)
	}
	nothing := func(*tar.Writer) error { return nil }
	return r.helper.ImportImage(ctx, r.engine.Names.Holder, engine.RoleHolder, nil, nothing)
}

// volumeMount mounts a docker-volume home. If the volume is missing, the one that
// Docker creates implicitly gets labels that say so.
func (r *Runtime) volumeMount(id workspace.ID, target, attempt string, readOnly bool) mount.Mount {
	labels := r.engine.Labels(engine.RoleImplicit, id, "")
	labels[engine.LabelAttempt] = attempt
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
	v, err := r.engine.API.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if err != nil {
		return engine.WrapError(ctx, "inspect volume", err)
	}
	labels := v.Volume.Labels
	if r.engine.Owns(labels, engine.RoleHome) && labels[engine.LabelClaim] == claim {
		return nil
	}
	if err := r.discard(ctx, containerID); err != nil {
		return err
	}
	if !r.engine.Owns(labels, engine.RoleImplicit) {
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
	return r.engine.RemoveOwned(ctx, id.VolumeName(), engine.RoleImplicit)
}

// hasClaim reports whether the home's volume exists with this claim.
func (r *Runtime) hasClaim(ctx context.Context, id workspace.ID, claim string) (bool, error) {
	v, err := r.engine.API.VolumeInspect(ctx, id.VolumeName(), client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, engine.WrapError(ctx, "inspect volume", err)
	}
	return r.engine.Owns(v.Volume.Labels, engine.RoleHome) && v.Volume.Labels[engine.LabelClaim] == claim, nil
}
