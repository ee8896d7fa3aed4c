package home

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
func (h *Homes) CreateEmptyVolume(ctx context.Context, spec runtime.VolumeSpec) error {
	unlock, err := h.LockHome(ctx, spec.Workspace)
	if err != nil {
		return err
	}
	defer unlock()
	switch spec.Storage {
	case workspace.StorageDockerVolume:
	case workspace.StorageLocalDir:
		return h.createEmptyFolder(ctx, spec)
	default:
		return fmt.Errorf("storage backend %q is not one of Docker's", spec.Storage)
	}
	for range 3 {
		labels, made, err := h.makeVolume(ctx, spec)
		if made || err != nil {
			return err
		}
		if !h.Owns(labels, engine.RoleImplicit) {
			begun, err := h.removalBegun(ctx, spec.Workspace, spec.Claim)
			if err == nil && begun {
				err = fmt.Errorf("volume %s is being removed: %w", spec.Workspace.VolumeName(), runtime.ErrVolumeMismatch)
			}
			return err
		}
		if err := h.removeImplicit(ctx, spec.Workspace); err != nil {
			return err
		}
	}
	return engine.ErrRecreated("volume " + spec.Workspace.VolumeName())
}

// State is the state of a home before its job is created.
type State struct{ side sidecar }

// CheckJob checks that the job has a home before anything is created.
func (h *Homes) CheckJob(ctx context.Context, spec runtime.JobSpec) (State, error) {
	if spec.Storage == workspace.StorageLocalDir {
		if err := h.verifyFolder(spec.Workspace, spec.VolumeClaim); err != nil {
			return State{}, err
		}
		if err := h.openFolder(spec.Workspace); err != nil {
			return State{}, err
		}
		side, _, err := h.readFolder(spec.Workspace)
		switch {
		case err != nil:
		case spec.Kind == runtime.JobRestore && side.Live:
			err = errLive(spec.Workspace)
		case spec.Kind == runtime.JobBackup && !side.Live:
			err = errNotLive(spec.Workspace)
		}
		return State{side}, err
	}
	found, err := h.listHomes(ctx, spec.Workspace)
	if err != nil {
		return State{}, err
	}
	if claim, ok := found.homes[spec.Workspace]; !ok || claim != spec.VolumeClaim || found.removalBegun(spec.Workspace, claim) {
		return State{}, fmt.Errorf("volume %s: %w", spec.Workspace.VolumeName(), runtime.ErrVolumeMismatch)
	}
	switch {
	case spec.Kind == runtime.JobRestore && found.live(spec.Workspace):
		return State{}, errLive(spec.Workspace)
	case spec.Kind == runtime.JobBackup && !found.live(spec.Workspace):
		return State{}, errNotLive(spec.Workspace)
	}
	return State{}, nil
}

func errLive(id workspace.ID) error {
	return fmt.Errorf("the home of workspace %s is live and cannot be restored: %w", id, runtime.ErrConflict)
}

func errNotLive(id workspace.ID) error {
	return fmt.Errorf("the home of workspace %s is not live and cannot be backed up: %w", id, runtime.ErrVolumeMismatch)
}

func errRestored(id workspace.ID) error {
	return fmt.Errorf("the home of workspace %s is already restored: %w", id, runtime.ErrConflict)
}

// AdmitJob checks the home while the job's container holds it, and for a restore
// records that it is being filled.
func (h *Homes) AdmitJob(ctx context.Context, spec runtime.JobSpec, before State, containerID string) error {
	if err := h.CheckUnused(ctx, spec, func(u engine.User) bool { return u.ID == containerID }); err != nil {
		return err
	}
	if spec.Storage == workspace.StorageLocalDir {
		return h.admitToFolder(ctx, spec, before, containerID)
	}
	if err := h.checkVolume(ctx, spec.Workspace, spec.VolumeClaim, containerID); err != nil {
		return err
	}
	switch spec.Kind {
	case runtime.JobBackup:
		_, err := h.CheckJob(ctx, spec)
		return err
	case runtime.JobRestore:
	default:
		return nil
	}
	found, err := h.listHomes(ctx, spec.Workspace)
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
		if err := h.discard(ctx, seed.container); err != nil {
			return err
		}
	}
	return h.removeMarkers(ctx, found, spec.Workspace, spec.VolumeClaim)
}

// CheckUnused checks that no container uses the home of a job, apart from those
// that except accepts. A backup runs beside all that do not need the home alone; another
// job ends it.
func (h *Homes) CheckUnused(ctx context.Context, spec runtime.JobSpec, except func(engine.User) bool) error {
	source := spec.Workspace.VolumeName()
	if spec.Storage == workspace.StorageLocalDir {
		source = h.HostPath(spec.Workspace)
	}
	users, err := h.Users(ctx, source)
	if err != nil {
		return err
	}
	users = slices.DeleteFunc(users, except)
	what := "the home of workspace " + string(spec.Workspace)
	if spec.Kind == runtime.JobBackup {
		return engine.NeededAlone(what, users)
	}
	if err := engine.InUse(what, users); err != nil {
		return err
	}
	return h.EndBackups(ctx, users)
}

func (h *Homes) admitToFolder(ctx context.Context, spec runtime.JobSpec, before State, containerID string) error {
	volume := runtime.VolumeSpec{Workspace: spec.Workspace, Claim: spec.VolumeClaim}
	return h.editFolder(ctx, volume, func(side sidecar, there bool) (sidecar, error) {
		switch {
		case !there:
			return side, fmt.Errorf("folder %s: %w", h.Path(spec.Workspace), runtime.ErrVolumeMismatch)
		case spec.Kind == runtime.JobBackup && !side.Live:
			return side, errNotLive(spec.Workspace)
		case spec.Kind != runtime.JobRestore:
			return side, nil
		case side.Live:
			return side, errLive(spec.Workspace)
		case side.Marker == spec.Key && spec.Key != "":
			return side, errRestored(spec.Workspace)
		case side != before.side:
			return side, engine.ErrConcurrent("folder %s has changed meanwhile", h.Path(spec.Workspace))
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
func (h *Homes) MarkRestored(ctx context.Context, id workspace.ID, claim, key string) error {
	unlock, err := h.LockHome(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	found, err := h.listHomes(ctx, id)
	if err != nil {
		return err
	}
	there, ok := found.homes[id]
	switch {
	case !ok && h.cfg.DataDir != "":
		return h.markFolder(ctx, id, claim, key)
	case !ok || there != claim || found.removalBegun(id, claim):
		return fmt.Errorf("volume %s: %w", id.VolumeName(), runtime.ErrVolumeMismatch)
	case found.live(id) && found.settledKey(id, claim) == key:
		return nil
	case found.live(id):
		return errLive(id)
	}
	proof, err := h.restoredBy(ctx, id, claim, key)
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
	labels := h.Labels(engine.RoleRestored, id, claim)
	labels[engine.LabelKey], labels[engine.LabelProof] = key, proof
	got, err := h.EnsureVolume(ctx, client.VolumeCreateOptions{Name: name, Driver: "local", Labels: labels})
	if err != nil {
		return err
	}
	if !h.Owns(got, engine.RoleRestored) || got[engine.LabelProof] != proof {
		return fmt.Errorf("volume %s is not this installation's", name)
	}
	for _, m := range found.markers[id] {
		if m.claim == claim && m.name != name {
			if err := h.RemoveOwned(ctx, m.name, engine.RoleRestored); err != nil {
				return err
			}
		}
	}
	return nil
}

// restoredBy returns the ID of the job that restored the archive into the home, or
// "".
func (h *Homes) restoredBy(ctx context.Context, id workspace.ID, claim, key string) (string, error) {
	c, gone, err := h.InspectOwned(ctx, engine.JobName(runtime.JobRestore, id), engine.RoleJob)
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

func (h *Homes) markFolder(ctx context.Context, id workspace.ID, claim, key string) error {
	if err := h.verifyFolder(id, claim); err != nil {
		return err
	}
	side, _, err := h.readFolder(id)
	if err != nil {
		return err
	}
	proof := ""
	if !side.Live {
		if proof, err = h.restoredBy(ctx, id, claim, key); err != nil {
			return err
		}
	}
	return h.editFolder(ctx, runtime.VolumeSpec{Workspace: id, Claim: claim}, func(side sidecar, there bool) (sidecar, error) {
		switch {
		case !there:
			return side, fmt.Errorf("folder %s: %w", h.Path(id), runtime.ErrVolumeMismatch)
		case side.Marker == key && key != "":
			return side, nil
		case side.Live:
			return side, errLive(id)
		case proof != "" && side.State == folderFilling && side.Filler == proof:
		case proof == "" && (side.State == folderSeeded || side.State == folderRestored):
		default:
			return side, fmt.Errorf("folder %s: no proof that %s was restored into it: %w", h.Path(id), key, runtime.ErrConflict)
		}
		side.State, side.Marker = folderRestored, key
		return side, nil
	})
}

// KeepsHome reports whether an ended job protects the home that it restored from
// delayed calls that would remove it or restore it again.
func (h *Homes) KeepsHome(ctx context.Context, job runtime.Job) (bool, error) {
	if job.Kind != runtime.JobRestore {
		return false, nil
	}
	id := job.Workspace
	found, err := h.listHomes(ctx, id)
	if err != nil {
		return false, err
	}
	if claim, ok := found.homes[id]; ok {
		marker, _ := found.marker(id)
		complete := !found.removalBegun(id, claim) && (marker.proof == job.ID || found.isSettled(id, claim))
		return claim == job.VolumeClaim && complete && found.holders[id].claim != claim, nil
	}
	if h.cfg.DataDir == "" {
		return false, nil
	}
	side, there, err := h.readFolder(id)
	return there && h.ownsFolder(side, job.VolumeClaim) && side.Filler == job.ID && side.Marker != "" && !side.Live, err
}
