package home

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
func (h *Homes) hold(ctx context.Context, id workspace.ID, claim string) (bool, error) {
	attempt := engine.RandomHex(8)
	for range 3 {
		made, err := h.createHeld(ctx, engine.HolderName(id), h.Labels(engine.RoleHolder, id, claim), h.VolumeMount(id, runtime.HomeDir, attempt, false))
		if errdefs.IsConflict(err) {
			found, gone, err := h.InspectOwned(ctx, engine.HolderName(id), engine.RoleHolder)
			if err != nil {
				return false, err
			}
			if gone {
				continue
			}
			// The existing holder has held the volume since before this check,
			// provided it has this claim.
			holds, err := h.hasClaim(ctx, id, claim)
			if err != nil || !holds {
				return false, err
			}
			if found.Config.Labels[engine.LabelClaim] == claim {
				return true, nil
			}
			if err := h.discard(ctx, found.ID); err != nil {
				return false, err
			}
			continue
		}
		if err != nil {
			return false, engine.WrapError(ctx, "create holder", err)
		}
		err = h.checkVolume(ctx, id, claim, made)
		if errors.Is(err, runtime.ErrVolumeMismatch) {
			return false, nil
		}
		return err == nil, err
	}
	return false, engine.ErrRecreated("container " + engine.HolderName(id))
}

// createHeld creates a container that holds a volume and is never started.
func (h *Homes) createHeld(ctx context.Context, name string, labels map[string]string, m mount.Mount) (string, error) {
	opts := client.ContainerCreateOptions{
		Name:       name,
		Config:     &container.Config{Image: h.Names.Holder, Cmd: []string{"never-started"}, Labels: labels},
		HostConfig: &container.HostConfig{NetworkMode: engine.NoNetwork, Mounts: []mount.Mount{m}},
	}
	made, err := h.API.ContainerCreate(ctx, opts)
	if err != nil && errdefs.IsNotFound(err) {
		if err := h.ensureHolderImage(ctx); err != nil {
			return "", err
		}
		made, err = h.API.ContainerCreate(ctx, opts)
	}
	return made.ID, err
}

// ensureHolderImage creates the empty image if it is missing.
func (h *Homes) ensureHolderImage(ctx context.Context) error {
	h.holderImage.Lock() // many homes may be settled at once
	defer h.holderImage.Unlock()
	_, err := h.API.ImageInspect(ctx, h.Names.Holder)
	if err == nil {
		return nil
	}
	if !errdefs.IsNotFound(err) {
		return engine.WrapError(ctx, "inspect holder image", err)
	}
	nothing := func(*tar.Writer) error { return nil }
	return h.helper.ImportImage(ctx, h.Names.Holder, engine.RoleHolder, nil, nothing)
}

// VolumeMount mounts a docker-volume home. If the volume is missing, the one that
// Docker creates implicitly gets labels that say so.
func (h *Homes) VolumeMount(id workspace.ID, target, attempt string, readOnly bool) mount.Mount {
	labels := h.Labels(engine.RoleImplicit, id, "")
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
func (h *Homes) checkVolume(ctx context.Context, id workspace.ID, claim, containerID string) error {
	name := id.VolumeName()
	v, err := h.API.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if err != nil {
		return engine.WrapError(ctx, "inspect volume", err)
	}
	labels := v.Volume.Labels
	if h.Owns(labels, engine.RoleHome) && labels[engine.LabelClaim] == claim {
		return nil
	}
	if err := h.discard(ctx, containerID); err != nil {
		return err
	}
	if !h.Owns(labels, engine.RoleImplicit) {
		return fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	}
	// This includes one from an earlier, interrupted call: it never contained a
	// home.
	if err := h.removeImplicit(ctx, id); err != nil {
		return err
	}
	return fmt.Errorf("volume %s is missing: %w", name, runtime.ErrVolumeMismatch)
}

// removeImplicit removes the volume that Docker created implicitly for a missing
// home. A home that has taken its place is not at risk: it is held before it is
// complete.
func (h *Homes) removeImplicit(ctx context.Context, id workspace.ID) error {
	return h.RemoveOwned(ctx, id.VolumeName(), engine.RoleImplicit)
}

// hasClaim reports whether the home's volume exists with this claim.
func (h *Homes) hasClaim(ctx context.Context, id workspace.ID, claim string) (bool, error) {
	v, err := h.API.VolumeInspect(ctx, id.VolumeName(), client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, engine.WrapError(ctx, "inspect volume", err)
	}
	return h.Owns(v.Volume.Labels, engine.RoleHome) && v.Volume.Labels[engine.LabelClaim] == claim, nil
}

// Mount mounts the home of a workspace that starts.
func (h *Homes) Mount(spec runtime.ContainerSpec, attempt string) mount.Mount {
	if spec.Storage == workspace.StorageLocalDir {
		return mount.Mount{Type: mount.TypeBind, Source: h.HostPath(spec.Workspace), Target: runtime.HomeDir}
	}
	return h.VolumeMount(spec.Workspace, runtime.HomeDir, attempt, false)
}

// VerifyMounted checks that the home in a created container is the right one, and
// otherwise removes the container.
func (h *Homes) VerifyMounted(ctx context.Context, spec runtime.ContainerSpec, containerID string) error {
	if spec.Storage == workspace.StorageLocalDir {
		if err := h.verifyFolder(spec.Workspace, spec.VolumeClaim); err != nil {
			return errors.Join(err, h.Discard(ctx, containerID))
		}
		return nil
	}
	if err := h.checkVolume(ctx, spec.Workspace, spec.VolumeClaim, containerID); err != nil {
		return err
	}
	begun, err := h.removalBegun(ctx, spec.Workspace, spec.VolumeClaim)
	if err == nil && begun {
		err = fmt.Errorf("volume %s is being removed: %w", spec.Workspace.VolumeName(), runtime.ErrVolumeMismatch)
	}
	if err != nil {
		return errors.Join(err, h.Discard(ctx, containerID))
	}
	return nil
}
