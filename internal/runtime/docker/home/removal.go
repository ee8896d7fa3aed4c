package home

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/internal/base/treewipe"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/workspace"
)

// A docker-volume home is removed in this order (ADR 12):
//
//     1. Create the remover. It holds the volume, so that no other can take its
//        place, and its name is a lock. Check the claim and the users after that.
//     2. Create an empty volume as a record that the removal has begun. From now
//        on the home does not count as complete.
//     3. Remove the other records: seed, holder, ended jobs, markers, settled.
//     4. Start the remover. It syncs, empties the home, and syncs again.
//     5. Remove the remover and the volume, and sync Docker's directory.
//     6. Remove the record. Only then is the home no longer listed.
//
// Every call resumes where an earlier one ended.

// removerLimits are those of a remover.
func removerLimits() helper.Limits {
	return helper.Limits{Memory: 128 << 20, GoMemory: "64MiB", Pids: 64}
}

// RemoveVolume implements runtime.Runtime.
func (h *Homes) RemoveVolume(ctx context.Context, id workspace.ID, claim string, progress func(runtime.Progress)) error {
	unlock, err := h.LockHome(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	// The directory first: a volume that only has the home's name does not matter
	// for it.
	if err := h.removeFolder(ctx, id, claim, progress); err != nil {
		return err
	}
	if err := h.removeHome(ctx, id, claim, progress); err != nil {
		return err
	}
	return h.removeScratch(ctx, id)
}

// removeScratch removes the scratch volumes of archive jobs that were removed
// without their volumes. Docker keeps those in use.
func (h *Homes) removeScratch(ctx context.Context, id workspace.ID) error {
	list, err := h.API.VolumeList(ctx, client.VolumeListOptions{Filters: h.Filter(engine.RoleScratch).Add("label", engine.LabelWorkspace+"="+string(id))})
	if err != nil {
		return engine.WrapError(ctx, "list scratch volumes", err)
	}
	for _, v := range list.Items {
		if err := h.RemoveOwned(ctx, v.Name, engine.RoleScratch); err != nil && !errors.Is(err, runtime.ErrBusy) {
			return err
		}
	}
	return nil
}

// removeHome removes a docker-volume home, if it exists, and its records.
func (h *Homes) removeHome(ctx context.Context, id workspace.ID, claim string, progress func(runtime.Progress)) error {
	name := id.VolumeName()
	var last error
	for range engine.MaxTries {
		users, err := h.Users(ctx, name)
		if err != nil {
			return err
		}
		found, err := h.listHomes(ctx, id)
		if err != nil {
			return err
		}
		there, ok := found.homes[id]
		if !ok {
			if err := h.removeUnclaimed(ctx, id, found.removalsOf(id, claim)); err != nil {
				return err
			}
			if err := h.removeRecords(ctx, found, id, claim); err != nil {
				return err
			}
			return h.endRemoval(ctx, id, claim)
		}
		if there != claim {
			return fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
		}
		if err := engine.InUse("volume "+name, users, engine.RoleRemover); err != nil {
			return err
		}
		engine.Report(progress, runtime.StepRemoving)
		err = h.emptyHome(ctx, found, id, claim, progress)
		if errors.Is(err, runtime.ErrVolumeMismatch) {
			// Another call has removed it since it was listed. What takes its place is
			// judged by the next list.
			last = engine.ErrConcurrent("volume %s was removed or replaced by another call", name)
			continue
		}
		if errors.Is(err, errTryAgain) {
			last = err
			continue
		}
		if err != nil {
			return err
		}
		if err := h.DropVolume(ctx, name); err != nil {
			return err
		}
		return h.endRemoval(ctx, id, claim)
	}
	return last
}

// errTryAgain means that the remover did not finish, and that a new attempt may.
var errTryAgain = errors.New("the container that empties the home did not finish")

// errRemoverGone is an errTryAgain because another call has made or removed the
// remover. It is runtime.ErrBusy, if there are no more tries.
func errRemoverGone(id workspace.ID) error {
	return fmt.Errorf("%w: %w", errTryAgain, engine.ErrConcurrent("container %s was made or removed by another call", engine.RemoverName(id)))
}

// removeRecords removes the records of a home that was removed by hand.
func (h *Homes) removeRecords(ctx context.Context, found volumeState, id workspace.ID, claim string) error {
	if seed := found.seeds[id]; seed.claim == claim {
		if err := h.discard(ctx, seed.container); err != nil {
			return err
		}
	}
	if err := h.removeMarkers(ctx, found, id, claim); err != nil {
		return err
	}
	return h.removeSettled(ctx, found, id, claim)
}

// removeUnclaimed handles a volume with the home's name that is not its home. One
// that Docker created implicitly is removed. If the home's removal has begun, a
// volume without labels is that home, brought back by a power cut: its content was
// removed durably before, so it is removed if it is empty and otherwise left alone.
func (h *Homes) removeUnclaimed(ctx context.Context, id workspace.ID, records []record) error {
	name := id.VolumeName()
	v, err := h.API.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case err != nil:
		return engine.WrapError(ctx, "inspect volume", err)
	case h.Owns(v.Volume.Labels, engine.RoleHome):
		return engine.ErrConcurrent("volume %s was created by another call", name)
	case h.Owns(v.Volume.Labels, engine.RoleImplicit):
		return h.removeImplicit(ctx, id)
	case len(records) == 0 || len(v.Volume.Labels) > 0:
		return fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	}
	empty, err := h.isEmpty(ctx, name, v.Volume.Mountpoint)
	if err != nil {
		return err
	}
	if !empty {
		// The home is gone. Without its removal record this is a volume in the way,
		// which the owner can set aside.
		for _, rec := range records {
			if err := h.RemoveOwned(ctx, rec.name, engine.RoleRemoving); err != nil {
				return err
			}
		}
		return fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	}
	if err := h.DropVolume(ctx, name); err != nil {
		return err
	}
	return nil
}

// emptyHome removes all content of a home. When it returns, no container holds the
// home.
func (h *Homes) emptyHome(ctx context.Context, found volumeState, id workspace.ID, claim string, progress func(runtime.Progress)) error {
	remover, err := h.startRemover(ctx, found, id, claim)
	if err != nil {
		return err
	}
	code, words, err := h.helper.Follow(ctx, engine.RoleRemover, remover, func(line []byte) {
		if n, ok := parseRemoved(line); ok && progress != nil {
			progress(runtime.Progress{Step: runtime.StepRemoving, Entries: n})
		}
	})
	if errors.Is(err, runtime.ErrNotFound) {
		return errRemoverGone(id)
	}
	if err != nil {
		return err
	}
	switch code {
	case 0:
		err = nil
	case 1: // the helper's own error
		err = helper.Failure(fmt.Errorf("empty volume %s: %s", id.VolumeName(), words))
	default:
		err = fmt.Errorf("%w: exit code %d", errTryAgain, code)
	}
	return errors.Join(err, h.discard(ctx, remover))
}

// startRemover returns the ID of the container that empties the home, running or
// ended.
func (h *Homes) startRemover(ctx context.Context, found volumeState, id workspace.ID, claim string) (string, error) {
	image, err := h.helper.Image(ctx)
	if err != nil {
		return "", err
	}
	made, err := h.API.ContainerCreate(ctx, h.removerOptions(id, claim, image))
	switch {
	case err == nil:
	case errdefs.IsConflict(err):
		return h.adoptRemover(ctx, id, claim)
	case errdefs.IsNotFound(err): // another server removed it as an old image
		return "", errTryAgain
	default:
		return "", engine.WrapError(ctx, "create remover", err)
	}
	if err := h.admitRemover(ctx, found, id, claim, made.ID); err != nil {
		h.Abandon(ctx, made.ID)
		return "", err
	}
	if _, err := h.API.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}); err != nil {
		if errdefs.IsNotFound(err) || errdefs.IsConflict(err) {
			// Another server has removed it, or is removing it, because its creator
			// seemed dead, and has its own record.
			return "", errors.Join(errRemoverGone(id), h.RemoveOwned(ctx, engine.RemovingName(id, claim, made.ID), engine.RoleRemoving))
		}
		return "", engine.WrapError(ctx, "start remover", err)
	}
	return made.ID, nil
}

// adoptRemover handles an existing container with the remover's name.
func (h *Homes) adoptRemover(ctx context.Context, id workspace.ID, claim string) (string, error) {
	found, gone, err := h.InspectOwned(ctx, engine.RemoverName(id), engine.RoleRemover)
	if err != nil {
		return "", err
	}
	if gone {
		return "", errRemoverGone(id)
	}
	if found.State.Status == container.StateRemoving {
		return "", errors.Join(errRemoverGone(id), h.AwaitRemoval(ctx, found.ID))
	}
	own := found.Config.Labels[engine.LabelClaim] == claim
	switch engine.StateOf(found.State.Status) {
	case runtime.ContainerRunning:
		if !own {
			return "", fmt.Errorf("container %s has another claim (%s): %w", engine.RemoverName(id), found.Config.Labels[engine.LabelClaim], runtime.ErrConflict)
		}
		return found.ID, nil
	case runtime.ContainerExited:
		if own && found.State.ExitCode == 0 && found.State.Status != container.StateDead { // a dead one has no log
			return found.ID, nil
		}
	}
	// If it was never started, its creator has died, or has not started it yet and
	// will not find it.
	return "", errors.Join(errRemoverGone(id), h.discard(ctx, found.ID))
}

// admitRemover checks, while the remover holds the volume, that it is the right
// home and not in use, and removes the records that it is complete.
func (h *Homes) admitRemover(ctx context.Context, found volumeState, id workspace.ID, claim, remover string) error {
	if err := h.checkVolume(ctx, id, claim, remover); err != nil {
		return err
	}
	users, err := h.Users(ctx, id.VolumeName())
	if err != nil {
		return err
	}
	if err := engine.InUse("volume "+id.VolumeName(), users); err != nil {
		return err
	}
	if err := h.recordRemoval(ctx, id, claim, remover); err != nil {
		return err
	}
	for _, u := range users {
		if u.ID == remover {
			continue
		}
		if err := h.discard(ctx, u.ID); err != nil {
			return err
		}
	}
	if err := h.removeMarkers(ctx, found, id, claim); err != nil {
		return err
	}
	if err := h.removeLostRecords(ctx, found, id, claim); err != nil {
		return err
	}
	return h.removeSettled(ctx, found, id, claim)
}

// recordRemoval creates the record that the removal has begun.
func (h *Homes) recordRemoval(ctx context.Context, id workspace.ID, claim, remover string) error {
	name := engine.RemovingName(id, claim, remover)
	labels := h.Labels(engine.RoleRemoving, id, claim)
	labels[engine.LabelProof] = remover
	got, err := h.EnsureVolume(ctx, client.VolumeCreateOptions{Name: name, Driver: "local", Labels: labels})
	if err != nil {
		return err
	}
	if !h.Owns(got, engine.RoleRemoving) || got[engine.LabelClaim] != claim {
		return fmt.Errorf("volume %s belongs to another installation or claim", name)
	}
	return nil
}

// removalBegun reports whether the removal of the home with this claim has begun.
func (h *Homes) removalBegun(ctx context.Context, id workspace.ID, claim string) (bool, error) {
	all, err := h.removing.Do(ctx, struct{}{}, func(ctx context.Context) ([]volume.Volume, error) {
		return h.listRemovals(ctx, h.Filter(engine.RoleRemoving))
	})
	return slices.ContainsFunc(all, func(v volume.Volume) bool {
		return v.Labels[engine.LabelWorkspace] == string(id) && v.Labels[engine.LabelClaim] == claim
	}), err
}

// removals lists the removal records of the home with this claim.
func (h *Homes) removals(ctx context.Context, id workspace.ID, claim string) ([]volume.Volume, error) {
	return h.listRemovals(ctx, h.Filter(engine.RoleRemoving).Add("label", engine.LabelWorkspace+"="+string(id), engine.LabelClaim+"="+claim))
}

func (h *Homes) listRemovals(ctx context.Context, filter client.Filters) ([]volume.Volume, error) {
	list, err := h.API.VolumeList(ctx, client.VolumeListOptions{Filters: filter})
	if err != nil {
		return nil, engine.WrapError(ctx, "list volumes", err)
	}
	return list.Items, nil
}

// endRemoval deletes the removal record once Docker's removal of the volume is
// durable.
func (h *Homes) endRemoval(ctx context.Context, id workspace.ID, claim string) error {
	records, err := h.removals(ctx, id, claim)
	if err != nil || len(records) == 0 {
		return err // no record: the home was gone when this call began
	}
	if err := h.syncVolumes(ctx, records[0]); err != nil {
		return err
	}
	if holds, err := h.hasClaim(ctx, id, claim); err != nil {
		return err
	} else if holds {
		return fmt.Errorf("volume %s exists again after its removal", id.VolumeName())
	}
	for _, record := range records {
		if err := h.RemoveOwned(ctx, record.Name, engine.RoleRemoving); err != nil {
			return err
		}
	}
	return nil
}

// syncVolumes makes Docker's changes to volumes durable. The record is on the same
// file system as the volumes.
func (h *Homes) syncVolumes(ctx context.Context, record volume.Volume) error {
	if h.isLocal(record.Mountpoint) {
		err := syncDir(filepath.Dir(filepath.Dir(record.Mountpoint)))
		if err == nil || !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	m := helperMount(record.Name)
	// Another server may have removed the record since it was listed. Docker then
	// creates it implicitly, and with these labels it is removed again.
	m.VolumeOptions.Labels = record.Labels
	return h.helper.Run(ctx, helper.Run{Args: []string{helper.CmdSync, helperVolume}, Mounts: []mount.Mount{m}})
}

// isLocal reports whether the path of a volume on Docker's host is the same
// directory for this process. The path contains the volume's name, which makes a
// coincidence unlikely.
func (h *Homes) isLocal(mountpoint string) bool {
	if h.Remote || mountpoint == "" || !strings.HasPrefix(h.API.DaemonHost(), "unix://") {
		return false
	}
	_, err := os.Stat(mountpoint)
	return err == nil
}

// isEmpty reports whether a volume is empty.
func (h *Homes) isEmpty(ctx context.Context, name, mountpoint string) (bool, error) {
	if h.isLocal(mountpoint) {
		entries, err := os.ReadDir(mountpoint)
		if err == nil || !errors.Is(err, fs.ErrPermission) {
			return len(entries) == 0, err
		}
	}
	err := h.helper.Run(ctx, helper.Run{
		Args: []string{helper.CmdIsEmpty, helperVolume}, Caps: []string{"DAC_OVERRIDE"}, Mounts: []mount.Mount{helperMount(name)},
	})
	if err != nil && strings.Contains(err.Error(), notEmpty) {
		return false, nil
	}
	return err == nil, err
}

// helperVolume is the mount point of a volume in helpers.
const helperVolume = "/volume"

func helperMount(name string) mount.Mount {
	return mount.Mount{
		Type: mount.TypeVolume, Source: name, Target: helperVolume, ReadOnly: true,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true},
	}
}

// removerOptions returns the complete configuration of a remover's container.
func (h *Homes) removerOptions(id workspace.ID, claim, image string) client.ContainerCreateOptions {
	return helper.Confined{
		Name: engine.RemoverName(id), Image: image, Cmd: []string{helper.CmdEmptyHome, runtime.JobHomeDir},
		Labels: h.Labels(engine.RoleRemover, id, claim),
		Caps:   []string{"DAC_OVERRIDE", "FOWNER"}, // files of any owner, also in sticky directories
		Mounts: []mount.Mount{h.VolumeMount(id, runtime.JobHomeDir, engine.RandomHex(8), false)},
		Limits: removerLimits(),
	}.Options()
}

// removedPrefix begins a line with the number of entries that a helper has removed.
const removedPrefix = "removed "

func parseRemoved(line []byte) (int64, bool) {
	s, ok := strings.CutPrefix(string(line), removedPrefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// emptyHomeAt is the work of a remover. It syncs first, because the record of the
// removal must be durable before anything is removed.
func emptyHomeAt(ctx context.Context, path string, progress func(n int64)) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := syncFileSystem(dir); err != nil {
		return err
	}
	if err := counted(progress, func(at func(int64)) error { return treewipe.Empty(ctx, path, at) }); err != nil {
		return err
	}
	return syncFileSystem(dir)
}

// removeTree removes a directory with its content, and reports the number of
// removed entries.
func removeTree(ctx context.Context, path string, progress func(n int64)) error {
	return counted(progress, func(at func(int64)) error { return treewipe.Remove(ctx, path, at) })
}

// counted reports the number of removed entries once a second, and at the end.
func counted(progress func(n int64), remove func(at func(int64)) error) error {
	var removed int64
	paced := pace(progress)
	err := remove(func(n int64) { removed = n; paced(n) })
	if err == nil {
		progress(removed)
	}
	return err
}

// syncFileSystem syncs the file system of a file.
func syncFileSystem(f *os.File) error {
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync the file system of %s: %w", f.Name(), err)
	}
	return nil
}
