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
// modes, before it lets anybody inspect that container (but while it is in its
// list already). So a container that can be inspected proves that the copy is
// complete, and no code of the image has run.
// Once the home is live an empty volume takes over as the proof, since a
// container would hold its image for ever.

// CreateVolume implements runtime.Runtime. A home that is live (SettleVolume)
// is never wiped, whoever asks for that.
func (r *Runtime) CreateVolume(ctx context.Context, spec runtime.VolumeSpec, progress func(runtime.Progress)) error {
	unlock, err := r.lockHome(ctx, spec.Workspace)
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
		labels, made, err := r.makeVolume(ctx, spec)
		if err != nil {
			return err
		}
		if made {
			return r.seed(ctx, spec, name, labels, progress)
		}
		if r.owns(labels, roleMadeUp) {
			if err := r.removeMadeUp(ctx, spec.Workspace); err != nil {
				return err
			}
			continue
		}
		done, err := r.reuseVolume(ctx, spec.Workspace, spec.Claim)
		if err != nil || done {
			return err
		}
	}
	return fmt.Errorf("volume %s comes back as soon as it is removed", name)
}

// lockHome keeps other calls of this process away from the workspace's home.
func (r *Runtime) lockHome(ctx context.Context, id workspace.ID) (unlock func(), err error) {
	if !workspace.ValidID(string(id)) {
		return nil, fmt.Errorf("workspace %q is not a UUID", id)
	}
	return r.locks.lock(ctx, id)
}

// makeVolume makes the home's volume, or finds it: one with the claim, or one
// that the engine made up. It returns its labels.
func (r *Runtime) makeVolume(ctx context.Context, spec runtime.VolumeSpec) (labels map[string]string, made bool, err error) {
	name := spec.Workspace.VolumeName()
	labels = r.labels(roleHome, spec.Workspace, spec.Claim)
	labels[labelAttempt] = randomHex(8)
	// The engine answers with the volume that is there, if one is.
	v, err := r.api.VolumeCreate(ctx, client.VolumeCreateOptions{Name: name, Driver: "local", Labels: labels})
	if errdefs.IsConflict(err) {
		return nil, false, fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	}
	if err != nil {
		return nil, false, failed(ctx, "create volume", err)
	}
	got := v.Volume.Labels
	switch {
	case got[labelAttempt] == labels[labelAttempt]:
		return got, true, nil
	case r.owns(got, roleMadeUp), r.owns(got, roleHome) && got[labelClaim] == spec.Claim:
		return got, false, nil
	}
	return nil, false, fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
}

// reuseVolume decides about a volume with the claim that is there before it is
// seeded: it is seeded already, or it is wiped. Whatever holds it is listed
// before its state is looked at: who fills it meanwhile does so under a
// container that is not in the list, and the engine keeps it.
func (r *Runtime) reuseVolume(ctx context.Context, id workspace.ID, claim string) (seeded bool, err error) {
	name := id.VolumeName()
	users, err := r.users(ctx, name)
	if err != nil {
		return false, err
	}
	found, err := r.lookAtHomes(ctx, id)
	if err != nil {
		return false, err
	}
	if there, ok := found.homes[id]; !ok {
		return false, nil
	} else if there != claim {
		return false, fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	}
	if found.live(id) {
		return true, nil
	}
	marker, marked := found.marker(id)
	for _, u := range users {
		if !u.idle() || u.worked() && (!marked || u.id != marker.proof) {
			return false, fmt.Errorf("volume %s cannot be seeded: container %s has it: %w", name, u.name, runtime.ErrConflict)
		}
	}
	seeded = found.seeds[id].claim == claim // also where an archive of nothing was restored
	if seeded {
		// A job that was made and not started must not be started any more.
		err = r.discardJobs(ctx, users)
	} else {
		// Half seeded, or restored and not wanted after all: nothing in it counts.
		err = r.removeHeld(ctx, name, users)
	}
	if err != nil {
		return false, err
	}
	return seeded, r.removeMarkers(ctx, found, id, claim)
}

// discardJobs removes those of the containers that are jobs.
func (r *Runtime) discardJobs(ctx context.Context, users []user) error {
	for _, u := range users {
		if u.role != roleJob {
			continue
		}
		if err := r.discard(ctx, u.id); err != nil {
			return err
		}
	}
	return nil
}

// removeHeld removes a volume and what holds it.
func (r *Runtime) removeHeld(ctx context.Context, name string, users []user) error {
	for _, u := range users {
		if err := r.discard(ctx, u.id); err != nil {
			return err
		}
	}
	if _, err := r.api.VolumeRemove(ctx, name, client.VolumeRemoveOptions{}); err != nil && !errdefs.IsNotFound(err) {
		return failed(ctx, "remove volume", err)
	}
	return nil
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
// ever being wiped, whoever asks for that; it may be called for any live home,
// and mends what of that was lost.
func (r *Runtime) SettleVolume(ctx context.Context, id workspace.ID, claim string) error {
	unlock, err := r.lockHome(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.settleFolder(ctx, id, claim); err != nil {
		return err
	}
	found, err := r.lookAtHomes(ctx, id)
	if err != nil {
		return err
	}
	if there, ok := found.homes[id]; !ok || there != claim {
		return nil
	}
	if found.holders[id].claim != claim {
		if holds, err := r.hold(ctx, id, claim); err != nil || !holds {
			return err
		}
	}
	if found.settled[id].claim != claim {
		marker, _ := found.marker(id)
		if err := r.recordSettled(ctx, id, claim, marker.key); err != nil {
			return err
		}
	}
	if err := r.removeMarkers(ctx, found, id, claim); err != nil {
		return err
	}
	if seed := found.seeds[id]; seed.claim == claim {
		return r.discard(ctx, seed.container)
	}
	return nil
}

// recordSettled makes the volume that says that the home is live.
func (r *Runtime) recordSettled(ctx context.Context, id workspace.ID, claim, key string) error {
	labels := r.labels(roleSettled, id, claim)
	if key != "" {
		labels[labelKey] = key
	}
	for range 2 {
		v, err := r.api.VolumeCreate(ctx, client.VolumeCreateOptions{Name: settledName(id), Driver: "local", Labels: labels})
		if err != nil {
			return failed(ctx, "create volume", err)
		}
		if r.owns(v.Volume.Labels, roleSettled) && v.Volume.Labels[labelClaim] == claim {
			return nil
		}
		if err := r.removeOwned(ctx, settledName(id), roleSettled); err != nil {
			return err
		}
	}
	return fmt.Errorf("volume %s is not this installation's", settledName(id))
}

// RemoveVolume implements runtime.Runtime.
func (r *Runtime) RemoveVolume(ctx context.Context, id workspace.ID, claim string) error {
	unlock, err := r.lockHome(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.removeHome(ctx, id, claim); err != nil {
		return err
	}
	return r.removeFolder(ctx, id, claim)
}

// removeHome removes a docker-volume home, if there is one, and what belongs
// to it. What holds the volume is removed by the ids that it had before the
// claim was read; so what was made since is held by something else.
func (r *Runtime) removeHome(ctx context.Context, id workspace.ID, claim string) error {
	name := id.VolumeName()
	users, err := r.users(ctx, name)
	if err != nil {
		return err
	}
	found, err := r.lookAtHomes(ctx, id)
	if err != nil {
		return err
	}
	there, ok := found.homes[id]
	if !ok {
		// None, or one that is nobody's home.
		v, err := r.api.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
		switch {
		case errdefs.IsNotFound(err):
		case err != nil:
			return failed(ctx, "inspect volume", err)
		case r.owns(v.Volume.Labels, roleHome):
			return fmt.Errorf("volume %s was made at this moment", name)
		case !r.owns(v.Volume.Labels, roleMadeUp):
			return fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
		default:
			if err := r.removeMadeUp(ctx, id); err != nil {
				return err
			}
		}
	} else {
		if there != claim {
			return fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
		}
		for _, u := range users {
			if !u.idle() {
				return fmt.Errorf("volume %s is in use by container %s", name, u.name)
			}
		}
		if err := r.removeHeld(ctx, name, users); err != nil {
			return err
		}
	}
	return r.removeRecords(ctx, found, id, claim)
}

// removeRecords removes what speaks of a home that is gone.
func (r *Runtime) removeRecords(ctx context.Context, found homes, id workspace.ID, claim string) error {
	if seed := found.seeds[id]; seed.claim == claim {
		if err := r.discard(ctx, seed.container); err != nil {
			return err
		}
	}
	if err := r.removeMarkers(ctx, found, id, claim); err != nil {
		return err
	}
	if found.settled[id].claim != claim {
		return nil
	}
	return r.removeOwned(ctx, settledName(id), roleSettled)
}

// removeMarkers removes the markers of a home that were found.
func (r *Runtime) removeMarkers(ctx context.Context, found homes, id workspace.ID, claim string) error {
	for _, m := range found.markers[id] {
		if m.claim != claim {
			continue
		}
		if err := r.removeOwned(ctx, m.name, roleRestored); err != nil {
			return err
		}
	}
	return nil
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
