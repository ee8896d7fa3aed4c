package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/volume"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/internal/runtime"
	"codehub/internal/treewipe"
	"codehub/internal/workspace"
)

// A docker-volume home is removed in this order (ADR 12):
//
//  1. The remover is created. It holds the volume, so that no other can come in
//     its place, and its name is a lock. Claim and users are checked only now.
//  2. An empty volume records that the removal has begun. From now on nothing
//     takes the home for complete.
//  3. What says otherwise is removed: seed, holder, ended jobs, markers, the
//     settled record.
//  4. The remover is started. It syncs, empties the home and syncs.
//  5. The remover and the volume are removed, and Docker's folder is synced.
//  6. The record goes. Only then is the home no longer listed.
//
// A call that finds any of this done goes on from there.

// What a remover may use; see jobMemory.
const (
	removerMemory   = 128 << 20
	removerGoMemory = "64MiB"
	removerPids     = 64
)

// RemoveVolume implements runtime.Runtime.
func (r *Runtime) RemoveVolume(ctx context.Context, id workspace.ID, claim string, progress func(runtime.Progress)) error {
	unlock, err := r.lockHome(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	// The folder first: a volume that only has the home's name is not in its way.
	if err := r.removeFolder(ctx, id, claim, progress); err != nil {
		return err
	}
	if err := r.removeHome(ctx, id, claim, progress); err != nil {
		return err
	}
	return r.removeScratch(ctx, id)
}

// removeScratch removes the scratch volumes of archive jobs that somebody
// removed without their volumes. Docker keeps one that a job uses.
func (r *Runtime) removeScratch(ctx context.Context, id workspace.ID) error {
	list, err := r.api.VolumeList(ctx, client.VolumeListOptions{Filters: r.filter(roleScratch).Add("label", labelWorkspace+"="+string(id))})
	if err != nil {
		return failed(ctx, "list scratch volumes", err)
	}
	for _, v := range list.Items {
		if err := r.removeOwned(ctx, v.Name, roleScratch); err != nil && !errors.Is(err, runtime.ErrBusy) {
			return err
		}
	}
	return nil
}

// removeHome removes a docker-volume home, if there is one, and what belongs to it.
func (r *Runtime) removeHome(ctx context.Context, id workspace.ID, claim string, progress func(runtime.Progress)) error {
	name := id.VolumeName()
	var last error
	for range startTries {
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
			if err := r.removeUnknown(ctx, id, found.removalsOf(id, claim)); err != nil {
				return err
			}
			if err := r.removeRecords(ctx, found, id, claim); err != nil {
				return err
			}
			return r.endRemoval(ctx, id, claim)
		}
		if there != claim {
			return fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
		}
		if err := inUse("volume "+name, users, roleRemover); err != nil {
			return err
		}
		report(progress, runtime.StepRemoving)
		err = r.emptyHome(ctx, found, id, claim, progress)
		if errors.Is(err, errTryAgain) || errors.Is(err, runtime.ErrVolumeMismatch) {
			last = err
			continue // another call may have removed it meanwhile
		}
		if err != nil {
			return err
		}
		if err := r.removeVolume(ctx, name); err != nil {
			return err
		}
		return r.endRemoval(ctx, id, claim)
	}
	return last
}

// errTryAgain: the remover went away, or was killed, before it was done.
var errTryAgain = errors.New("the container that empties the home did not finish")

// removeRecords removes what speaks of a home that somebody removed by hand.
func (r *Runtime) removeRecords(ctx context.Context, found homes, id workspace.ID, claim string) error {
	if seed := found.seeds[id]; seed.claim == claim {
		if err := r.discard(ctx, seed.container); err != nil {
			return err
		}
	}
	if err := r.removeMarkers(ctx, found, id, claim); err != nil {
		return err
	}
	return r.removeSettled(ctx, found, id, claim)
}

// removeUnknown handles a volume with the home's name that is nobody's home.
// One that Docker made up is removed. If the home's removal has begun, one
// without labels is that home: a power cut has brought it back. Its content was
// removed for good before, and if there is any, the volume is left alone.
func (r *Runtime) removeUnknown(ctx context.Context, id workspace.ID, records []record) error {
	name := id.VolumeName()
	v, err := r.api.VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case err != nil:
		return failed(ctx, "inspect volume", err)
	case r.owns(v.Volume.Labels, roleHome):
		return meanwhile("volume %s was created by another call", name)
	case r.owns(v.Volume.Labels, roleMadeUp):
		return r.removeMadeUp(ctx, id)
	case len(records) == 0 || len(v.Volume.Labels) > 0:
		return fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	}
	empty, err := r.isEmpty(ctx, name, v.Volume.Mountpoint)
	if err != nil {
		return err
	}
	if !empty {
		// The home itself is gone for good: without the record of its removal this
		// is a volume in the way, which its owner can set aside.
		for _, rec := range records {
			if err := r.removeOwned(ctx, rec.name, roleRemoving); err != nil {
				return err
			}
		}
		return fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	}
	if err := r.removeVolume(ctx, name); err != nil {
		return err
	}
	return nil
}

// emptyHome removes all that is in a home. On return no container holds it.
func (r *Runtime) emptyHome(ctx context.Context, found homes, id workspace.ID, claim string, progress func(runtime.Progress)) error {
	remover, err := r.startRemover(ctx, found, id, claim)
	if err != nil {
		return err
	}
	code, err := r.follow(ctx, roleRemover, remover, func(line []byte) {
		if n, ok := parseRemoved(line); ok && progress != nil {
			progress(runtime.Progress{Step: runtime.StepRemoving, Entries: n})
		}
	})
	if errors.Is(err, runtime.ErrNotFound) {
		return fmt.Errorf("%w: %w", errTryAgain, err)
	}
	if err != nil {
		return err
	}
	switch code {
	case 0:
		err = nil
	case 1: // its own error
		err = fmt.Errorf("empty volume %s: %s", id.VolumeName(), r.helperWords(ctx, remover))
	default:
		err = fmt.Errorf("%w: exit code %d", errTryAgain, code)
	}
	return errors.Join(err, r.discard(ctx, remover))
}

// startRemover returns the id of the container that empties the home, running
// or ended.
func (r *Runtime) startRemover(ctx context.Context, found homes, id workspace.ID, claim string) (string, error) {
	image, err := r.ensureHelperImage(ctx)
	if err != nil {
		return "", err
	}
	made, err := r.api.ContainerCreate(ctx, r.removerOptions(id, claim, image))
	switch {
	case err == nil:
	case errdefs.IsConflict(err):
		return r.takeUpRemover(ctx, id, claim)
	case errdefs.IsNotFound(err): // another server has removed the image as an old one
		return "", errTryAgain
	default:
		return "", failed(ctx, "create remover", err)
	}
	if err := r.admitRemover(ctx, found, id, claim, made.ID); err != nil {
		// Also when the caller gave up: what was not started is of no use.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		return "", errors.Join(err, r.discard(ctx, made.ID))
	}
	if _, err := r.api.ContainerStart(ctx, made.ID, client.ContainerStartOptions{}); err != nil {
		if errdefs.IsNotFound(err) {
			// Another server has taken it for one whose maker is gone. That one
			// has a record of its own.
			return "", errors.Join(errTryAgain, r.removeOwned(ctx, removingName(id, claim, made.ID), roleRemoving))
		}
		return "", failed(ctx, "start remover", err)
	}
	return made.ID, nil
}

// takeUpRemover handles a container that has the remover's name already.
func (r *Runtime) takeUpRemover(ctx context.Context, id workspace.ID, claim string) (string, error) {
	found, gone, err := r.inspectOwned(ctx, removerName(id), roleRemover)
	if err != nil {
		return "", err
	}
	if gone {
		return "", errTryAgain
	}
	own := found.Config.Labels[labelClaim] == claim
	switch stateOf(found.State.Status) {
	case runtime.ContainerRunning:
		if !own {
			return "", fmt.Errorf("container %s has another claim (%s): %w", removerName(id), found.Config.Labels[labelClaim], runtime.ErrConflict)
		}
		return found.ID, nil
	case runtime.ContainerExited:
		if own && found.State.ExitCode == 0 {
			return found.ID, nil
		}
	}
	// One that was never started has a maker that has ended, or that waits
	// before the start and will not find it.
	return "", errors.Join(errTryAgain, r.discard(ctx, found.ID))
}

// admitRemover makes sure, once the remover holds the volume, that it is the
// home that is meant and that nothing uses it, and removes what says that the
// home is complete.
func (r *Runtime) admitRemover(ctx context.Context, found homes, id workspace.ID, claim, remover string) error {
	if err := r.checkVolume(ctx, id, claim, remover); err != nil {
		return err
	}
	users, err := r.users(ctx, id.VolumeName())
	if err != nil {
		return err
	}
	if err := inUse("volume "+id.VolumeName(), users); err != nil {
		return err
	}
	if err := r.recordRemoval(ctx, id, claim, remover); err != nil {
		return err
	}
	for _, u := range users {
		if u.id == remover {
			continue
		}
		if err := r.discard(ctx, u.id); err != nil {
			return err
		}
	}
	if err := r.removeMarkers(ctx, found, id, claim); err != nil {
		return err
	}
	return r.removeSettled(ctx, found, id, claim)
}

// recordRemoval makes the volume that says that the removal has begun.
func (r *Runtime) recordRemoval(ctx context.Context, id workspace.ID, claim, remover string) error {
	name := removingName(id, claim, remover)
	labels := r.labels(roleRemoving, id, claim)
	labels[labelProof] = remover
	got, err := r.createVolume(ctx, client.VolumeCreateOptions{Name: name, Driver: "local", Labels: labels})
	if err != nil {
		return err
	}
	if !r.owns(got, roleRemoving) || got[labelClaim] != claim {
		return fmt.Errorf("volume %s belongs to another installation or claim", name)
	}
	return nil
}

// removalBegun reports whether the removal of the home with this claim has begun.
func (r *Runtime) removalBegun(ctx context.Context, id workspace.ID, claim string) (bool, error) {
	records, err := r.removals(ctx, id, claim)
	return len(records) > 0, err
}

// removals lists the records that the removal of the home with this claim has begun.
func (r *Runtime) removals(ctx context.Context, id workspace.ID, claim string) ([]volume.Volume, error) {
	filter := r.filter(roleRemoving).Add("label", labelWorkspace+"="+string(id), labelClaim+"="+claim)
	list, err := r.api.VolumeList(ctx, client.VolumeListOptions{Filters: filter})
	if err != nil {
		return nil, failed(ctx, "list volumes", err)
	}
	return list.Items, nil
}

// endRemoval removes the record of the removal of a home whose volume Docker
// has removed, once that outlasts a power cut.
func (r *Runtime) endRemoval(ctx context.Context, id workspace.ID, claim string) error {
	records, err := r.removals(ctx, id, claim)
	if err != nil || len(records) == 0 {
		return err // none: it was gone when this call began
	}
	if err := r.syncVolumes(ctx, records[0]); err != nil {
		return err
	}
	if holds, err := r.carries(ctx, id, claim); err != nil {
		return err
	} else if holds {
		return fmt.Errorf("volume %s exists again after its removal", id.VolumeName())
	}
	for _, record := range records {
		if err := r.removeOwned(ctx, record.Name, roleRemoving); err != nil {
			return err
		}
	}
	return nil
}

// syncVolumes has what Docker did to its volumes outlast a power cut. The record
// is on the same file system as the others.
func (r *Runtime) syncVolumes(ctx context.Context, record volume.Volume) error {
	if r.isLocal(record.Mountpoint) {
		err := syncDir(filepath.Dir(filepath.Dir(record.Mountpoint)))
		if err == nil || !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	m := helperMount(record.Name)
	// Another server may have removed the record since it was listed. Docker then
	// creates it implicitly; with these labels it is removed as a record.
	m.VolumeOptions.Labels = record.Labels
	return r.runHelper(ctx, helperRun{args: []string{cmdSync, helperVolume}, network: "none", mounts: []mount.Mount{m}})
}

// isLocal reports whether the folder of a volume is where Docker says, as seen
// from this process. The volume's own name makes sure that it is that folder.
func (r *Runtime) isLocal(mountpoint string) bool {
	if r.farAway || mountpoint == "" || !strings.HasPrefix(r.api.DaemonHost(), "unix://") {
		return false
	}
	_, err := os.Stat(mountpoint)
	return err == nil
}

// isEmpty reports whether nothing is in a volume.
func (r *Runtime) isEmpty(ctx context.Context, name, mountpoint string) (bool, error) {
	if r.isLocal(mountpoint) {
		entries, err := os.ReadDir(mountpoint)
		if err == nil || !errors.Is(err, fs.ErrPermission) {
			return len(entries) == 0, err
		}
	}
	err := r.runHelper(ctx, helperRun{
		args: []string{cmdIsEmpty, helperVolume}, network: "none", caps: []string{"DAC_OVERRIDE"}, mounts: []mount.Mount{helperMount(name)},
	})
	if err != nil && strings.Contains(err.Error(), notEmpty) {
		return false, nil
	}
	return err == nil, err
}

// helperVolume is where helpers have a volume.
const helperVolume = "/volume"

func helperMount(name string) mount.Mount {
	return mount.Mount{
		Type: mount.TypeVolume, Source: name, Target: helperVolume, ReadOnly: true,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true},
	}
}

// removerOptions is the whole of what a remover's container is.
func (r *Runtime) removerOptions(id workspace.ID, claim, image string) client.ContainerCreateOptions {
	pids := int64(removerPids)
	return client.ContainerCreateOptions{
		Name: removerName(id),
		Config: &container.Config{
			Image:       image,
			Cmd:         []string{cmdEmptyHome, runtime.JobHomeDir},
			User:        "0:0",
			Env:         []string{"GOMEMLIMIT=" + removerGoMemory},
			Labels:      r.labels(roleRemover, id, claim),
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		},
		HostConfig: &container.HostConfig{
			NetworkMode:    "none",
			UsernsMode:     "host",
			CapDrop:        []string{"ALL"},
			CapAdd:         []string{"DAC_OVERRIDE", "FOWNER"}, // the files are any user's, also in sticky folders
			ReadonlyRootfs: true,
			SecurityOpt:    []string{"no-new-privileges:true"},
			RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
			LogConfig:      container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": jobLogMax}},
			Mounts:         []mount.Mount{r.volumeMount(id, runtime.JobHomeDir, randomHex(8), false)},
			Resources: container.Resources{
				Memory: removerMemory, MemorySwap: removerMemory, PidsLimit: &pids, CPUShares: jobCPUShares,
			},
		},
	}
}

// removedPrefix begins a line by which a helper tells how many entries it has
// removed.
const removedPrefix = "removed "

func parseRemoved(line []byte) (int64, bool) {
	s, ok := strings.CutPrefix(string(line), removedPrefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// counter counts what is removed and tells of it once a second.
type counter struct {
	n    int64
	tell func(n int64)
	told time.Time
}

// at takes note that n entries are removed.
func (c *counter) at(n int64) {
	c.n = n
	if c.tell == nil || c.n%64 != 0 {
		return
	}
	if now := time.Now(); now.Sub(c.told) >= time.Second {
		c.told = now
		c.tell(c.n)
	}
}

// done tells the whole count.
func (c *counter) done() {
	if c.tell != nil {
		c.tell(c.n)
	}
}

// emptyHomeAt is what a remover does. What was done before it began, such as to
// record the removal, must outlast a power cut if what it does can.
func emptyHomeAt(ctx context.Context, path string, tell func(n int64)) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := syncFileSystem(dir); err != nil {
		return err
	}
	count := &counter{tell: tell}
	if err := treewipe.Empty(ctx, path, count.at); err != nil {
		return err
	}
	count.done()
	return syncFileSystem(dir)
}

// removeTree removes a folder with all that is in it, and tells now and then
// how many entries it has removed.
func removeTree(ctx context.Context, path string, tell func(n int64)) error {
	count := &counter{tell: tell}
	if err := treewipe.Remove(ctx, path, count.at); err != nil {
		return err
	}
	count.done()
	return nil
}

// syncFileSystem syncs the file system that the file is on.
func syncFileSystem(f *os.File) error {
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync the file system of %s: %w", f.Name(), err)
	}
	return nil
}
