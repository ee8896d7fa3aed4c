package home

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/workspace"
)

// A docker-volume home is seeded by a container that is created and never started:
// Docker copies the image's content at HomeDir, with owners and modes, before the
// container can be inspected (although it is listed earlier). So a container that
// can be inspected proves that the copy is complete, and no code of the image has
// run. Once the home is live an empty volume replaces it as the proof, since a
// container would keep its image forever.

// CreateVolume implements runtime.Runtime. It never wipes a live home
// (SettleVolume).
func (h *Homes) CreateVolume(ctx context.Context, spec runtime.VolumeSpec, progress func(runtime.Progress)) error {
	unlock, err := h.LockHome(ctx, spec.Workspace)
	if err != nil {
		return err
	}
	defer unlock()
	switch spec.Storage {
	case workspace.StorageDockerVolume:
	case workspace.StorageLocalDir:
		return h.createFolder(ctx, spec, progress)
	default:
		return fmt.Errorf("storage backend %q is not one of Docker's", spec.Storage)
	}
	engine.Report(progress, runtime.StepCreating)
	name := spec.Workspace.VolumeName()
	for range 3 {
		labels, made, err := h.makeVolume(ctx, spec)
		if err != nil {
			return err
		}
		if made {
			return h.seed(ctx, spec, name, labels, progress)
		}
		if h.Owns(labels, engine.RoleImplicit) {
			if err := h.removeImplicit(ctx, spec.Workspace); err != nil {
				return err
			}
			continue
		}
		done, err := h.reuseVolume(ctx, spec.Workspace, spec.Claim)
		if err != nil || done {
			return err
		}
	}
	return engine.ErrRecreated("volume " + name)
}

// LockHome serializes this process's calls on the workspace's home.
func (h *Homes) LockHome(ctx context.Context, id workspace.ID) (unlock func(), err error) {
	if !workspace.ValidID(string(id)) {
		return nil, fmt.Errorf("workspace %q is not a UUID", id)
	}
	return h.Lock(ctx, id)
}

// makeVolume creates the home's volume, or finds it with the claim or as one that
// Docker created implicitly. It returns its labels.
func (h *Homes) makeVolume(ctx context.Context, spec runtime.VolumeSpec) (labels map[string]string, made bool, err error) {
	name := spec.Workspace.VolumeName()
	labels = h.Labels(engine.RoleHome, spec.Workspace, spec.Claim)
	labels[engine.LabelAttempt] = engine.RandomHex(8)
	describe(labels, spec)
	got, err := h.EnsureVolume(ctx, client.VolumeCreateOptions{Name: name, Driver: "local", Labels: labels})
	if errdefs.IsConflict(err) {
		return nil, false, fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	}
	if err != nil {
		return nil, false, err
	}
	switch {
	case got[engine.LabelAttempt] == labels[engine.LabelAttempt]:
		return got, true, nil
	case h.Owns(got, engine.RoleImplicit), h.Owns(got, engine.RoleHome) && got[engine.LabelClaim] == spec.Claim:
		return got, false, nil
	}
	return nil, false, fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
}

// describe adds the owner and the workspace's name to a home's labels.
func describe(labels map[string]string, spec runtime.VolumeSpec) {
	if spec.Owner != "" {
		labels[engine.LabelOwner] = spec.Owner
	}
	if spec.Name != "" {
		labels[engine.LabelName] = spec.Name
	}
}

// reuseVolume handles an existing volume with the claim: it is seeded, or it is
// wiped. It lists the users before it checks the state: a concurrent call that
// fills the volume does so with a container that is not in the list, so that Docker
// keeps the volume.
func (h *Homes) reuseVolume(ctx context.Context, id workspace.ID, claim string) (seeded bool, err error) {
	name := id.VolumeName()
	users, err := h.Users(ctx, name)
	if err != nil {
		return false, err
	}
	found, err := h.listHomes(ctx, id)
	if err != nil {
		return false, err
	}
	if there, ok := found.homes[id]; !ok {
		return false, nil
	} else if there != claim || found.removalBegun(id, claim) {
		return false, fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	}
	if found.live(id) {
		return true, nil
	}
	marker, marked := found.marker(id)
	if err := engine.InUse("volume "+name, users); err != nil {
		return false, err
	}
	for _, u := range users {
		if u.HasRun() && (!marked || u.ID != marker.proof) {
			return false, fmt.Errorf("volume %s cannot be seeded: container %s uses it: %w", name, u.Name, runtime.ErrConflict)
		}
	}
	seeded = found.seeds[id].claim == claim // also if an empty archive was restored
	if seeded {
		// A job that was created but not started must not start any more.
		err = h.discardJobs(ctx, users)
	} else {
		// The content of a partial seeding, or of a restore that was cancelled, is
		// not used.
		err = h.removeHeld(ctx, name, users)
	}
	if err != nil {
		return false, err
	}
	return seeded, h.removeMarkers(ctx, found, id, claim)
}

// discardJobs removes the containers that are jobs.
func (h *Homes) discardJobs(ctx context.Context, users []engine.User) error {
	for _, u := range users {
		if u.Role != engine.RoleJob {
			continue
		}
		if err := h.discard(ctx, u.ID); err != nil {
			return err
		}
	}
	return nil
}

// removeHeld removes a volume and the containers that hold it.
func (h *Homes) removeHeld(ctx context.Context, name string, users []engine.User) error {
	for _, u := range users {
		if err := h.discard(ctx, u.ID); err != nil {
			return err
		}
	}
	return h.DropVolume(ctx, name)
}

// seed copies the image's content at HomeDir into an empty volume. When it returns,
// the seed container exists. If the volume has been removed in the meantime, Docker
// creates another with these labels.
func (h *Homes) seed(ctx context.Context, spec runtime.VolumeSpec, volume string, labels map[string]string, progress func(runtime.Progress)) error {
	opts := client.ContainerCreateOptions{
		Name: engine.SeedName(spec.Workspace),
		Config: &container.Config{
			Cmd:    []string{"never-started"}, // Docker requires a command
			Labels: h.Labels(engine.RoleSeed, spec.Workspace, spec.Claim),
		},
		HostConfig: &container.HostConfig{
			NetworkMode: engine.NoNetwork,
			Mounts: []mount.Mount{{
				Type: mount.TypeVolume, Source: volume, Target: runtime.HomeDir,
				VolumeOptions: &mount.VolumeOptions{Labels: labels},
			}},
		},
	}
	for range 3 {
		image, err := h.images.Choose(ctx, spec.Image, spec.User, spec.Choice, progress)
		if err != nil {
			return err
		}
		opts.Config.Image = image.ID
		engine.Report(progress, runtime.StepSeeding)
		counted := h.watchSeeding(ctx, spec, volume, progress)
		_, err = h.API.ContainerCreate(ctx, opts)
		counted()
		if err == nil {
			return nil
		}
		if errdefs.IsConflict(err) {
			// It belongs to an earlier claim or a removed volume, so it proves
			// nothing.
			if err := h.removeSeed(ctx, spec.Workspace); err != nil {
				return err
			}
			continue
		}
		missing, why := h.images.Missing(ctx, err, image.ID)
		if why != nil {
			return why
		}
		if !missing {
			return engine.WrapError(ctx, "create seed container", err)
		}
	}
	return engine.ErrRecreated("container " + engine.SeedName(spec.Workspace))
}

// removeSeed removes the workspace's seed container, if there is one.
func (h *Homes) removeSeed(ctx context.Context, id workspace.ID) error {
	c, err := h.API.ContainerInspect(ctx, engine.SeedName(id), client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return engine.WrapError(ctx, "inspect seed container", err)
	}
	if !h.Owns(c.Container.Config.Labels, engine.RoleSeed) {
		return fmt.Errorf("container %s is not this installation's", engine.SeedName(id))
	}
	return h.discard(ctx, c.Container.ID)
}

// SettleVolume implements runtime.Runtime. It may be called for any live home, and
// restores missing records.
func (h *Homes) SettleVolume(ctx context.Context, id workspace.ID, claim string) error {
	unlock, err := h.LockHome(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := h.settleFolder(ctx, id, claim); err != nil {
		return err
	}
	found, err := h.listHomes(ctx, id)
	if err != nil {
		return err
	}
	if there, ok := found.homes[id]; !ok || there != claim || found.removalBegun(id, claim) {
		return nil
	}
	if found.holders[id].claim != claim {
		if holds, err := h.hold(ctx, id, claim); err != nil || !holds {
			return err
		}
	}
	// Before the record of this home: with that, nothing settles it again after an interruption.
	if err := h.removeLostRecords(ctx, found, id, claim); err != nil {
		return err
	}
	if !found.isSettled(id, claim) {
		marker, _ := found.marker(id)
		if err := h.recordSettled(ctx, id, claim, marker.key); err != nil {
			return err
		}
	}
	if err := h.removeMarkers(ctx, found, id, claim); err != nil {
		return err
	}
	if seed := found.seeds[id]; seed.claim == claim {
		return h.discard(ctx, seed.container)
	}
	return nil
}

// recordSettled creates the record that the home is live.
func (h *Homes) recordSettled(ctx context.Context, id workspace.ID, claim, key string) error {
	labels := h.Labels(engine.RoleSettled, id, claim)
	if key != "" {
		labels[engine.LabelKey] = key
	}
	for range 2 {
		got, err := h.EnsureVolume(ctx, client.VolumeCreateOptions{Name: engine.SettledName(id, claim), Driver: "local", Labels: labels})
		if err != nil {
			return err
		}
		if h.Owns(got, engine.RoleSettled) && got[engine.LabelClaim] == claim {
			return nil
		}
		if err := h.RemoveOwned(ctx, engine.SettledName(id, claim), engine.RoleSettled); err != nil {
			return err
		}
	}
	return fmt.Errorf("volume %s is not this installation's", engine.SettledName(id, claim))
}

// removeMarkers removes the given restore records of a home.
func (h *Homes) removeMarkers(ctx context.Context, found volumeState, id workspace.ID, claim string) error {
	return h.removeRecordsIf(ctx, found.markers[id], engine.RoleRestored, func(of string) bool { return of == claim })
}

// removeSettled removes the record that the home with this claim is live.
func (h *Homes) removeSettled(ctx context.Context, found volumeState, id workspace.ID, claim string) error {
	return h.removeRecordsIf(ctx, found.settled[id], engine.RoleSettled, func(of string) bool { return of == claim })
}

// removeLostRecords removes the records of homes that were removed by hand before the home with
// this claim was created.
func (h *Homes) removeLostRecords(ctx context.Context, found volumeState, id workspace.ID, claim string) error {
	return h.removeRecordsIf(ctx, found.settled[id], engine.RoleSettled, func(of string) bool { return of != claim })
}

func (h *Homes) removeRecordsIf(ctx context.Context, records []record, role string, of func(claim string) bool) error {
	for _, rec := range records {
		if !of(rec.claim) {
			continue
		}
		if err := h.RemoveOwned(ctx, rec.name, role); err != nil {
			return err
		}
	}
	return nil
}

// KeepProofs records the completeness of homes that only a container proves.
func (h *Homes) KeepProofs(ctx context.Context) error {
	homes, err := h.Volumes(ctx)
	if err != nil {
		return err
	}
	for _, v := range homes {
		if v.Storage != workspace.StorageDockerVolume || v.Foreign || v.Removing || !v.Seeded && v.Marker == "" {
			continue
		}
		if err := h.recordSettled(ctx, v.Workspace, v.Claim, v.Marker); err != nil {
			return err
		}
	}
	return nil
}
