package docker

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// A docker-volume home is seeded by a container that is made and never
// started: the engine copies what the image holds at HomeDir, with owners and
// modes, before it enters that container in its list. So the container in the
// list proves that the copy is complete, and no code of the image has run.
// Once the home is live an empty volume takes over as the proof, since a
// container would hold its image for ever.

// Volumes implements runtime.Runtime.
func (r *Runtime) Volumes(ctx context.Context) ([]runtime.Volume, error) {
	found, err := r.lookAtHomes(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]runtime.Volume, 0, len(found.homes))
	for id, claim := range found.homes {
		out = append(out, runtime.Volume{
			Workspace: id, Storage: workspace.StorageDockerVolume, Claim: claim,
			Seeded: found.proven[id] == claim,
		})
	}
	folders, err := r.folders()
	if err != nil {
		return nil, err
	}
	return append(out, folders...), nil
}

// homes is what the engine has of docker-volume homes.
type homes struct {
	homes   map[workspace.ID]string // → claim
	proven  map[workspace.ID]string // → claim whose seeding finished
	seeds   map[workspace.ID]string // → id of the seed container
	settled map[workspace.ID]bool
}

func (r *Runtime) lookAtHomes(ctx context.Context) (homes, error) {
	h := homes{
		homes:   map[workspace.ID]string{},
		proven:  map[workspace.ID]string{},
		seeds:   map[workspace.ID]string{},
		settled: map[workspace.ID]bool{},
	}
	seeds, err := r.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.filter(roleSeed)})
	if err != nil {
		return h, failed(ctx, "list seed containers", err)
	}
	volumes, err := r.api.VolumeList(ctx, client.VolumeListOptions{Filters: r.filter("")})
	if err != nil {
		return h, failed(ctx, "list volumes", err)
	}
	for _, c := range seeds.Items {
		id := workspace.ID(c.Labels[labelWorkspace])
		h.seeds[id] = c.ID
		h.proven[id] = c.Labels[labelClaim]
	}
	for _, v := range volumes.Items {
		id := workspace.ID(v.Labels[labelWorkspace])
		switch {
		case v.Labels[labelRole] == roleHome && v.Name == id.VolumeName():
			h.homes[id] = v.Labels[labelClaim]
		case v.Labels[labelRole] == roleSettled && v.Name == settledName(id):
			h.settled[id] = true
			if h.seeds[id] == "" {
				h.proven[id] = v.Labels[labelClaim]
			}
		}
	}
	return h, nil
}

// CreateVolume implements runtime.Runtime.
func (r *Runtime) CreateVolume(ctx context.Context, spec runtime.VolumeSpec, progress func(runtime.Progress)) error {
	if !workspace.ValidID(string(spec.Workspace)) {
		return fmt.Errorf("workspace %q is not a UUID", spec.Workspace)
	}
	unlock, err := r.locks.lock(ctx, spec.Workspace)
	if err != nil {
		return err
	}
	defer unlock()
	switch spec.Storage {
	case workspace.StorageDockerVolume:
	case workspace.StorageLocalDir:
		return r.createFolder(ctx, spec, progress)
	default:
		return fmt.Errorf("storage backend %q is not one of Docker's", spec.Storage)
	}
	report(progress, runtime.StepCreating)
	name := spec.Workspace.VolumeName()
	for range 3 {
		labels := r.labels(roleHome, spec.Workspace, spec.Claim)
		labels[labelAttempt] = randomHex(8)
		// The engine answers with the volume that is there, if one is.
		v, err := r.api.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name, Driver: "local", Labels: labels})
		if errdefs.IsConflict(err) {
			return fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
		}
		if err != nil {
			return failed(ctx, "create volume", err)
		}
		got := v.Volume.Labels
		if got[labelAttempt] == labels[labelAttempt] {
			return r.seed(ctx, spec, name, labels, progress)
		}
		if !r.owns(got, roleMadeUp) {
			if !r.owns(got, roleHome) || got[labelClaim] != spec.Claim {
				return fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
			}
			done, err := r.isSeeded(ctx, spec.Workspace, spec.Claim)
			if err != nil || done {
				return err
			}
		}
		// Half seeded, or made up for a home that was missing: nothing in it counts.
		if _, err := r.api.VolumeRemove(ctx, name, client.VolumeRemoveOptions{}); err != nil && !errdefs.IsNotFound(err) {
			return failed(ctx, "remove half-seeded volume", err)
		}
	}
	return fmt.Errorf("volume %s comes back as soon as it is removed", name)
}

// isSeeded reports whether the seeding for this claim is known to have finished.
func (r *Runtime) isSeeded(ctx context.Context, id workspace.ID, claim string) (bool, error) {
	c, err := r.api.ContainerInspect(ctx, seedName(id), client.ContainerInspectOptions{})
	if err == nil {
		l := c.Container.Config.Labels
		if r.owns(l, roleSeed) && l[labelClaim] == claim {
			return true, nil
		}
	} else if !errdefs.IsNotFound(err) {
		return false, failed(ctx, "inspect seed container", err)
	}
	v, err := r.api.VolumeInspect(ctx, settledName(id), client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, failed(ctx, "inspect volume", err)
	}
	return r.owns(v.Volume.Labels, roleSettled) && v.Volume.Labels[labelClaim] == claim, nil
}

// seed copies what the image holds at HomeDir into an empty volume. On return
// the seed container stands. Should the volume have gone meanwhile, the engine
// makes another, with these labels.
func (r *Runtime) seed(ctx context.Context, spec runtime.VolumeSpec, volume string, labels map[string]string, progress func(runtime.Progress)) error {
	report(progress, runtime.StepSeeding)
	opts := client.ContainerCreateOptions{
		Name: seedName(spec.Workspace),
		Config: &container.Config{
			Image:  spec.Image,
			Cmd:    []string{"never-started"}, // some command is asked for
			Labels: r.labels(roleSeed, spec.Workspace, spec.Claim),
		},
		HostConfig: &container.HostConfig{
			NetworkMode: "none",
			Mounts: []mount.Mount{{
				Type: mount.TypeVolume, Source: volume, Target: runtime.HomeDir,
				VolumeOptions: &mount.VolumeOptions{Labels: labels},
			}},
		},
	}
	pulled := false
	for range 3 {
		_, err := r.api.ContainerCreate(ctx, opts)
		if err == nil {
			return nil
		}
		if errdefs.IsConflict(err) {
			// Of an earlier claim, or of a volume that is gone: it proves nothing now.
			if err := r.removeSeed(ctx, spec.Workspace); err != nil {
				return err
			}
			continue
		}
		missing, why := r.imageMissing(ctx, err, spec.Image)
		if why != nil {
			return why
		}
		if !missing || pulled {
			return failed(ctx, "create seed container", err)
		}
		if err := r.pull(ctx, spec.Image, progress); err != nil {
			return err
		}
		pulled = true
		report(progress, runtime.StepSeeding)
	}
	return fmt.Errorf("container %s comes back as soon as it is removed", seedName(spec.Workspace))
}

// removeSeed removes the workspace's seed container, if there is one.
func (r *Runtime) removeSeed(ctx context.Context, id workspace.ID) error {
	c, err := r.api.ContainerInspect(ctx, seedName(id), client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return failed(ctx, "inspect seed container", err)
	}
	if !r.owns(c.Container.Config.Labels, roleSeed) {
		return fmt.Errorf("container %s is not this installation's", seedName(id))
	}
	return r.discard(ctx, c.Container.ID)
}

// SettleVolume implements runtime.Runtime. What it leaves keeps the home from
// being taken for one that has to be seeded, whoever asks for that.
func (r *Runtime) SettleVolume(ctx context.Context, id workspace.ID, claim string) error {
	unlock, err := r.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	return r.settle(ctx, id, claim)
}

func (r *Runtime) settle(ctx context.Context, id workspace.ID, claim string) error {
	c, err := r.api.ContainerInspect(ctx, seedName(id), client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return failed(ctx, "inspect seed container", err)
	}
	if l := c.Container.Config.Labels; !r.owns(l, roleSeed) || l[labelClaim] != claim {
		return nil
	}
	for range 2 {
		v, err := r.api.VolumeCreate(ctx, client.VolumeCreateOptions{
			Name: settledName(id), Driver: "local", Labels: r.labels(roleSettled, id, claim),
		})
		if err != nil {
			return failed(ctx, "create volume", err)
		}
		if r.owns(v.Volume.Labels, roleSettled) && v.Volume.Labels[labelClaim] == claim {
			return r.discard(ctx, c.Container.ID)
		}
		if err := r.removeOwned(ctx, settledName(id), roleSettled); err != nil {
			return err
		}
	}
	return fmt.Errorf("volume %s is not this installation's", settledName(id))
}

// RemoveVolume implements runtime.Runtime.
func (r *Runtime) RemoveVolume(ctx context.Context, id workspace.ID, claim string) error {
	if !workspace.ValidID(string(id)) {
		return fmt.Errorf("workspace %q is not a UUID", id)
	}
	unlock, err := r.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	name := id.VolumeName()
	v, err := r.api.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if err != nil && !errdefs.IsNotFound(err) {
		return failed(ctx, "inspect volume", err)
	}
	if err == nil && !r.owns(v.Volume.Labels, roleMadeUp) &&
		(!r.owns(v.Volume.Labels, roleHome) || v.Volume.Labels[labelClaim] != claim) {
		return fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	}
	if err == nil {
		// The seed container holds the volume. What it proves stays known until
		// the volume is gone: its removal may be refused.
		if err := r.settle(ctx, id, claim); err != nil {
			return err
		}
	}
	if err := r.removeSeed(ctx, id); err != nil {
		return err
	}
	if err == nil {
		if _, err := r.api.VolumeRemove(ctx, name, client.VolumeRemoveOptions{}); err != nil && !errdefs.IsNotFound(err) {
			return failed(ctx, "remove volume", err)
		}
	}
	if err := r.removeOwned(ctx, settledName(id), roleSettled); err != nil {
		return err
	}
	return r.removeFolder(ctx, id, claim)
}

// removeOwned removes a volume that is this installation's with this role.
func (r *Runtime) removeOwned(ctx context.Context, name, role string) error {
	v, err := r.api.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return failed(ctx, "inspect volume", err)
	}
	if !r.owns(v.Volume.Labels, role) {
		return nil
	}
	if _, err := r.api.VolumeRemove(ctx, name, client.VolumeRemoveOptions{}); err != nil && !errdefs.IsNotFound(err) {
		return failed(ctx, "remove volume", err)
	}
	return nil
}
