package docker

import (
	"context"
	"fmt"
	"slices"

	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/workspace"
)

// CreateEmptyVolume implements runtime.Runtime.
func (r *Runtime) CreateEmptyVolume(ctx context.Context, spec runtime.VolumeSpec) error {
	unlock, err := r.lockHome(ctx, spec.Workspace)
	if err != nil {
		return err
	}
	defer unlock()
	switch spec.Storage {
	case workspace.StorageDockerVolume:
	case workspace.StorageLocalDir:
		return r.createEmptyFolder(ctx, spec)
	default:
		return fmt.Errorf("storage backend %q is not one of Docker's", spec.Storage)
	}
	for range 3 {
		labels, made, err := r.makeVolume(ctx, spec)
		if made || err != nil {
			return err
		}
		if !r.engine.Owns(labels, engine.RoleImplicit) {
			begun, err := r.removalBegun(ctx, spec.Workspace, spec.Claim)
			if err == nil && begun {
				err = fmt.Errorf("volume %s is being removed: %w", spec.Workspace.VolumeName(), runtime.ErrVolumeMismatch)
			}
			return err
		}
		if err := r.removeImplicit(ctx, spec.Workspace); err != nil {
			return err
		}
	}
	return engine.ErrRecreated("volume " + spec.Workspace.VolumeName())
}

// homeState is the state of a home before its job is created.
type homeState struct{ side sidecar }

// checkHome checks that the job has a home before anything is created.
func (r *Runtime) checkHome(ctx context.Context, spec runtime.JobSpec) (homeState, error) {
	if spec.Storage == workspace.StorageLocalDir {
		if err := r.verifyFolder(spec.Workspace, spec.VolumeClaim); err != nil {
			return homeState{}, err
		}
		if err := r.openFolder(spec.Workspace); err != nil {
			return homeState{}, err
		}
		side, _, err := r.readFolder(spec.Workspace)
		if err == nil && spec.Kind == runtime.JobRestore && side.Live {
			err = errLive(spec.Workspace)
		}
		return homeState{side}, err
	}
	found, err := r.listHomes(ctx, spec.Workspace)
	if err != nil {
		return homeState{}, err
	}
	if claim, ok := found.homes[spec.Workspace]; !ok || claim != spec.VolumeClaim || found.removalBegun(spec.Workspace, claim) {
		return homeState{}, fmt.Errorf("volume %s: %w", spec.Workspace.VolumeName(), runtime.ErrVolumeMismatch)
	}
	if spec.Kind == runtime.JobRestore && found.live(spec.Workspace) {
		return homeState{}, errLive(spec.Workspace)
	}
	return homeState{}, nil
}

func errLive(id workspace.ID) error {
	return fmt.Errorf("the home of workspace %s is live and cannot be restored: %w", id, runtime.ErrConflict)
}

func errRestored(id workspace.ID) error {
	return fmt.Errorf("the home of workspace %s is already restored: %w", id, runtime.ErrConflict)
}

// admitJob checks the home while the job's container holds it, and for a restore
// records that it is being filled.
func (r *Runtime) admitJob(ctx context.Context, spec runtime.JobSpec, before homeState, containerID string) error {
	if err := r.checkUnused(ctx, spec, func(u engine.User) bool { return u.ID == containerID }); err != nil {
		return err
	}
	if spec.Storage == workspace.StorageLocalDir {
		return r.admitToFolder(ctx, spec, before, containerID)
	}
	if err := r.checkVolume(ctx, spec.Workspace, spec.VolumeClaim, containerID); err != nil {
		return err
	}
	if spec.Kind != runtime.JobRestore {
		return nil
	}
	found, err := r.listHomes(ctx, spec.Workspace)
	if err != nil {
		return err
	}
	if found.removalBegun(spec.Workspace, spec.VolumeClaim) {
		return fmt.Errorf("volume %s: %w", spec.Workspace.VolumeName(), runtime.ErrVolumeMismatch)
	}
	if found.live(spec.Workspace) {
		return errLive(spec.Workspace)
	}
	if m, ok := found.marker(spec.Workspace); ok && m.key == spec.Key {
		return errRestored(spec.Workspace)
	}
	if seed := found.seeds[spec.Workspace]; seed.claim == spec.VolumeClaim {
		if err := r.discard(ctx, seed.container); err != nil {
			return err
		}
	}
	return r.removeMarkers(ctx, found, spec.Workspace, spec.VolumeClaim)
}

// checkUnused checks that no container uses the home of a job, apart from those
// that except accepts.
func (r *Runtime) checkUnused(ctx context.Context, spec runtime.JobSpec, except func(engine.User) bool) error {
	source := spec.Workspace.VolumeName()
	if spec.Storage == workspace.StorageLocalDir {
		source = r.hostHomePath(spec.Workspace)
	}
	users, err := r.engine.Users(ctx, source)
	if err != nil {
		return err
	}
	return engine.InUse("the home of workspace "+string(spec.Workspace), slices.DeleteFunc(users, except))
}

func (r *Runtime) admitToFolder(ctx context.Context, spec runtime.JobSpec, before homeState, containerID string) error {
	volume := runtime.VolumeSpec{Workspace: spec.Workspace, Claim: spec.VolumeClaim}
	return r.editFolder(ctx, volume, func(side sidecar, there bool) (sidecar, error) {
		switch {
		case !there:
			return side, fmt.Errorf("folder %s: %w", r.homePath(spec.Workspace), runtime.ErrVolumeMismatch)
		case spec.Kind != runtime.JobRestore:
			return side, nil
		case side.Live:
			return side, errLive(spec.Workspace)
		case side.Marker == spec.Key && spec.Key != "":
			return side, errRestored(spec.Workspace)
		case side != before.side:
			return side, engine.ErrConcurrent("folder %s has changed meanwhile", r.homePath(spec.Workspace))
		}
		return sidecar{
			Claim: spec.VolumeClaim, State: folderFilling, Filler: containerID,
			Owner: side.Owner, Name: side.Name, Limit: side.Limit,
		}, nil
	})
}

// MarkRestored implements runtime.Runtime. The proof is the job that restored the
// home, which still exists and has exited with code 0, or for an empty archive the
// seed container. The mark is invalid once another job has begun.
func (r *Runtime) MarkRestored(ctx context.Context, id workspace.ID, claim, key string) error {
	unlock, err := r.lockHome(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	found, err := r.listHomes(ctx, id)
	if err != nil {
		return err
	}
	there, ok := found.homes[id]
	switch {
	case !ok && r.cfg.DataDir != "":
		return r.markFolder(ctx, id, claim, key)
	case !ok || there != claim || found.removalBegun(id, claim):
		return fmt.Errorf("volume %s: %w", id.VolumeName(), runtime.ErrVolumeMismatch)
	case found.live(id) && found.settledKey(id, claim) == key:
		return nil
	case found.live(id):
		return errLive(id)
	}
	proof, err := r.restoredBy(ctx, id, claim, key)
	if err != nil {
		return err
	}
	if proof == "" && found.seeds[id].claim == claim {
		proof = found.seeds[id].container
	}
	if proof == "" {
		return fmt.Errorf("volume %s: no proof that %s was restored into it: %w", id.VolumeName(), key, runtime.ErrConflict)
	}
	name := engine.RestoredName(id, claim, key, proof)
	labels := r.engine.Labels(engine.RoleRestored, id, claim)
	labels[engine.LabelKey], labels[engine.LabelProof] = key, proof
	got, err := r.engine.CreateVolume(ctx, client.VolumeCreateOptions{Name: name, Driver: "local", Labels: labels})
	if err != nil {
		return err
	}
	if !r.engine.Owns(got, engine.RoleRestored) || got[engine.LabelProof] != proof {
		return fmt.Errorf("volume %s is not this installation's", name)
	}
	for _, m := range found.markers[id] {
		if m.claim == claim && m.name != name {
			if err := r.engine.RemoveOwned(ctx, m.name, engine.RoleRestored); err != nil {
				return err
			}
		}
	}
	return nil
}

// restoredBy returns the ID of the job that restored the archive into the home, or
// "".
func (r *Runtime) restoredBy(ctx context.Context, id workspace.ID, claim, key string) (string, error) {
	c, gone, err := r.engine.InspectOwned(ctx, engine.JobName(runtime.JobRestore, id), engine.RoleJob)
	if gone || err != nil {
		return "", err
	}
	job := helper.Job(c)
	ended := engine.StateOf(c.State.Status) == runtime.ContainerExited
	if !ended || c.State.ExitCode != 0 || job.VolumeClaim != claim || job.Key != key {
		return "", fmt.Errorf("the job of claim %s (%s, code %d) has not restored %s: %w",
			job.Claim, c.State.Status, c.State.ExitCode, key, runtime.ErrConflict)
	}
	return job.ID, nil
}

func (r *Runtime) markFolder(ctx context.Context, id workspace.ID, claim, key string) error {
	if err := r.verifyFolder(id, claim); err != nil {
		return err
	}
	side, _, err := r.readFolder(id)
	if err != nil {
		return err
	}
	proof := ""
	if !side.Live {
		if proof, err = r.restoredBy(ctx, id, claim, key); err != nil {
			return err
		}
	}
	return r.editFolder(ctx, runtime.VolumeSpec{Workspace: id, Claim: claim}, func(side sidecar, there bool) (sidecar, error) {
		switch {
		case !there:
			return side, fmt.Errorf("folder %s: %w", r.homePath(id), runtime.ErrVolumeMismatch)
		case side.Marker == key && key != "":
			return side, nil
		case side.Live:
			return side, errLive(id)
		case proof != "" && side.State == folderFilling && side.Filler == proof:
		case proof == "" && (side.State == folderSeeded || side.State == folderRestored):
		default:
			return side, fmt.Errorf("folder %s: no proof that %s was restored into it: %w", r.homePath(id), key, runtime.ErrConflict)
		}
		side.State, side.Marker = folderRestored, key
		return side, nil
	})
}

// keepsHome reports whether an ended job protects the home that it restored from
// delayed calls that would remove it or restore it again.
func (r *Runtime) keepsHome(ctx context.Context, job runtime.Job) (bool, error) {
	if job.Kind != runtime.JobRestore {
		return false, nil
	}
	id := job.Workspace
	found, err := r.listHomes(ctx, id)
	if err != nil {
		return false, err
	}
	if claim, ok := found.homes[id]; ok {
		marker, _ := found.marker(id)
		complete := !found.removalBegun(id, claim) && (marker.proof == job.ID || found.isSettled(id, claim))
		return claim == job.VolumeClaim && complete && found.holders[id].claim != claim, nil
	}
	if r.cfg.DataDir == "" {
		return false, nil
	}
	side, there, err := r.readFolder(id)
	return there && r.ownsFolder(side, job.VolumeClaim) && side.Filler == job.ID && side.Marker != "" && !side.Live, err
}
