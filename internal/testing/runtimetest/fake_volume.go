package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// CreateVolume implements runtime.Runtime.
func (f *Fake) CreateVolume(ctx context.Context, spec runtime.VolumeSpec, progress func(runtime.Progress)) error {
	if err := f.enter(ctx, "CreateVolume", spec.Workspace); err != nil {
		return err
	}
	report(progress, runtime.StepCreating)
	done, err := f.makeVolume(spec)
	if done || err != nil {
		return err
	}
	img, err := f.chooseImage(ctx, "CreateVolume/pull", spec.Workspace, spec.Image, spec.Choice, progress)
	if err != nil {
		return err
	}
	report(progress, runtime.StepSeeding)
	if err := f.fill(spec, img, false); err != nil {
		return err
	}
	if f.reportSeeding(progress, spec.Workspace) {
		if err := f.step(ctx, "CreateVolume/slow", spec.Workspace); err != nil {
			return err
		}
	}
	if err := f.step(ctx, "CreateVolume/seed", spec.Workspace); err != nil {
		return err
	}
	if err := f.fill(spec, img, true); err != nil {
		return err
	}
	return f.step(ctx, "CreateVolume/done", spec.Workspace)
}

// makeVolume creates an empty volume and reports whether a seeded one exists.
func (f *Fake) makeVolume(spec runtime.VolumeSpec) (bool, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if v := f.w.volumes[spec.Workspace]; v != nil {
		if !f.owns(v, spec.Claim) {
			return false, fmt.Errorf("volume of %s: %w", spec.Workspace, runtime.ErrVolumeMismatch)
		}
		if v.live {
			return true, nil
		}
		if err := f.w.inUse(spec.Workspace); err != nil {
			return false, err
		}
		for _, j := range f.w.jobsOf(spec.Workspace) {
			if j.state != jobCreated && !j.keeps(v) {
				return false, fmt.Errorf("volume of %s: a job uses it: %w", spec.Workspace, runtime.ErrConflict)
			}
		}
		f.w.dropJobs(spec.Workspace)
		if v.Seeded || v.Marker != "" && v.proof == "" {
			v.Seeded, v.Marker = true, ""
			return true, nil
		}
	}
	f.w.volumes[spec.Workspace] = f.newVolume(spec)
	f.w.change()
	return false, nil
}

// reportSeeding reports the content of the volume as seeding progress.
func (f *Fake) reportSeeding(progress func(runtime.Progress), id workspace.ID) bool {
	f.mu.Lock()
	slow := f.before != nil
	f.mu.Unlock()
	if !slow || progress == nil {
		return false
	}
	f.w.mu.Lock()
	entries := 0
	if v := f.w.volumes[id]; v != nil {
		entries = len(v.files)
	}
	f.w.mu.Unlock()
	progress(runtime.Progress{Step: runtime.StepSeeding, Entries: int64(entries)})
	return true
}

// fill copies half or all of the image's home to the volume.
func (f *Fake) fill(spec runtime.VolumeSpec, img chosen, all bool) error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.w.volumes[spec.Workspace]
	if v == nil || v.installation != f.installation || v.Claim != spec.Claim {
		return fmt.Errorf("seed volume of %s: it was removed", spec.Workspace)
	}
	home := img.home
	if !all {
		home = home[:len(home)/2]
	}
	for _, file := range home {
		v.files[file.Path] = file
	}
	v.folder = ""
	v.Seeded = all
	f.w.change()
	return nil
}

// SettleVolume implements runtime.Runtime. Like Docker's it keeps Seeded.
func (f *Fake) SettleVolume(ctx context.Context, id workspace.ID, claim string) error {
	if err := f.enter(ctx, "SettleVolume", id); err != nil {
		return err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if v := f.w.volumes[id]; f.owns(v, claim) {
		v.live, v.Held = true, true
		f.w.change()
	}
	return nil
}

// owns reports whether the volume belongs to this installation and claim and is not
// being removed.
func (f *Fake) owns(v *fakeVolume, claim string) bool {
	return v != nil && v.installation == f.installation && v.Claim == claim && !v.goes
}

// CreateEmptyVolume implements runtime.Runtime.
func (f *Fake) CreateEmptyVolume(ctx context.Context, spec runtime.VolumeSpec) error {
	if err := f.enter(ctx, "CreateEmptyVolume", spec.Workspace); err != nil {
		return err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if v := f.w.volumes[spec.Workspace]; v != nil {
		if !f.owns(v, spec.Claim) {
			return fmt.Errorf("volume of %s: %w", spec.Workspace, runtime.ErrVolumeMismatch)
		}
		return nil
	}
	f.w.volumes[spec.Workspace] = f.newVolume(spec)
	f.w.change()
	return nil
}

func (f *Fake) newVolume(spec runtime.VolumeSpec) *fakeVolume {
	return &fakeVolume{
		Volume: runtime.Volume{
			Workspace: spec.Workspace, Storage: spec.Storage, Claim: spec.Claim, Owner: spec.Owner, Name: spec.Name, Limit: spec.Disk, OwnDisk: spec.Disk > 0,
		},
		installation: f.installation,
		files:        map[string]File{},
	}
}

// MarkRestored implements runtime.Runtime.
func (f *Fake) MarkRestored(ctx context.Context, id workspace.ID, claim, key string) error {
	if err := f.enter(ctx, "MarkRestored", id); err != nil {
		return err
	}
	if err := f.mark(id, claim, key); err != nil {
		return err
	}
	return f.step(ctx, "MarkRestored/done", id)
}

func (f *Fake) mark(id workspace.ID, claim, key string) error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.w.volumes[id]
	if !f.owns(v, claim) {
		return fmt.Errorf("volume of %s: %w", id, runtime.ErrVolumeMismatch)
	}
	if v.live && v.Marker == key {
		return nil
	}
	j := f.w.jobs[jobName{runtime.JobRestore, id}]
	byJob := j != nil && j.installation == f.installation && j.state == jobEnded && j.exit == 0 && j.VolumeClaim == claim && j.Key == key
	bySeed := j == nil && (v.Seeded || v.Marker != "" && v.proof == "")
	if v.live || !byJob && !bySeed {
		return fmt.Errorf("volume of %s: no proof that %s was restored into it: %w", id, key, runtime.ErrConflict)
	}
	v.Seeded, v.Marker, v.proof = false, key, ""
	if byJob {
		v.proof = j.ID
	}
	f.w.change()
	return nil
}

// RemoveVolume implements runtime.Runtime.
func (f *Fake) RemoveVolume(ctx context.Context, id workspace.ID, claim string, progress func(runtime.Progress)) error {
	if err := f.enter(ctx, "RemoveVolume", id); err != nil {
		return err
	}
	files, err := f.beginRemoval(id, claim)
	if files < 0 || err != nil {
		return err
	}
	report(progress, runtime.StepRemoving)
	if err := f.step(ctx, "RemoveVolume/begun", id); err != nil {
		return err
	}
	for removed := range files {
		if err := f.removeFile(id, claim); err != nil {
			return err
		}
		if progress != nil {
			progress(runtime.Progress{Step: runtime.StepRemoving, Entries: int64(removed) + 1})
		}
		if removed == files/2 {
			if err := f.step(ctx, "RemoveVolume/half", id); err != nil {
				return err
			}
		}
	}
	f.w.mu.Lock()
	if v := f.w.volumes[id]; v != nil && v.Claim == claim {
		delete(f.w.volumes, id)
		f.w.change()
	}
	f.w.mu.Unlock()
	return f.step(ctx, "RemoveVolume/done", id)
}

// beginRemoval returns the number of files to remove, or a negative number if there
// is no volume.
func (f *Fake) beginRemoval(id workspace.ID, claim string) (files int, err error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.w.volumes[id]
	if v == nil {
		return -1, nil
	}
	if v.installation != f.installation || v.Claim != claim {
		return 0, fmt.Errorf("volume of %s: %w", id, runtime.ErrVolumeMismatch)
	}
	if err := f.w.inUse(id); err != nil {
		return 0, err
	}
	v.goes, v.Removing, v.live, v.Seeded, v.Marker, v.proof, v.Held = true, true, false, false, "", "", false
	f.w.dropJobs(id)
	f.w.change()
	return len(v.files), nil
}

func (f *Fake) removeFile(id workspace.ID, claim string) error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.w.volumes[id]
	if v == nil || v.Claim != claim {
		return nil // another call has removed it
	}
	for path := range v.files {
		delete(v.files, path)
		break
	}
	return nil
}

// usedByJob returns a BusyError while a job runs that needs the home alone. The caller
// holds w.mu.
func (w *world) usedByJob(id workspace.ID) error {
	for _, j := range w.jobsOf(id) {
		if j.state == jobRunning {
			return usedBy(id, "codehub-"+string(j.Kind)+"-"+string(id))
		}
	}
	return nil
}

func usedBy(id workspace.ID, container string) error {
	return &runtime.BusyError{Reason: fmt.Sprintf("volume of %s is in use by container %s", id, container), Container: container}
}

// inUse returns a BusyError while the workspace's volume is in use, except by a backup. The
// caller holds w.mu.
func (w *world) inUse(id workspace.ID) error {
	by := ""
	if w.containers[id] != nil {
		by = id.ContainerName()
	}
	if err := w.usedByJob(id); err != nil {
		return err
	}
	if users := w.users[id]; len(users) > 0 {
		by = users[0]
	}
	if by == "" {
		return nil
	}
	return usedBy(id, by)
}

// Fingerprint implements runtime.Runtime.
func (f *Fake) Fingerprint(ctx context.Context, id workspace.ID, claim string, progress func(runtime.Progress)) (string, error) {
	if err := f.enter(ctx, "Fingerprint", id); err != nil {
		return "", err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.w.volumes[id]
	if !f.owns(v, claim) {
		return "", fmt.Errorf("volume of %s: %w", id, runtime.ErrVolumeMismatch)
	}
	if err := f.w.inUse(id); err != nil {
		return "", err
	}
	f.w.endBackup(id)
	folder, err := f.w.folderOf(v)
	if err != nil {
		return "", err
	}
	report(progress, runtime.StepChecking)
	m, err := archive.Measure(ctx, folder, nil)
	if err == nil && progress != nil {
		progress(runtime.Progress{Step: runtime.StepChecking, Entries: m.Entries})
	}
	return m.Fingerprint, err
}

// OwnHome implements runtime.Runtime.
func (f *Fake) OwnHome(ctx context.Context, spec runtime.OwnSpec, progress func(runtime.Progress)) error {
	if spec.UID == 0 {
		return errors.New("a workspace cannot run as root")
	}
	if err := f.enter(ctx, "OwnHome", spec.Workspace); err != nil {
		return err
	}
	paths, own, err := f.beginOwning(spec)
	if err != nil {
		return err
	}
	report(progress, runtime.StepOwning)
	for i, path := range paths {
		if i == len(paths)/2 {
			if err := f.step(ctx, "OwnHome/half", spec.Workspace); err != nil {
				return err
			}
		}
		if err := f.own(spec, path, own); err != nil {
			return err
		}
		if progress != nil {
			progress(runtime.Progress{Step: runtime.StepOwning, Entries: int64(i) + 1})
		}
	}
	return nil
}

// beginOwning returns the files of the home, its folder last, and their new owners.
func (f *Fake) beginOwning(spec runtime.OwnSpec) (paths []string, own func(File) File, err error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.w.volumes[spec.Workspace]
	if !f.owns(v, spec.VolumeClaim) {
		return nil, nil, fmt.Errorf("volume of %s: %w", spec.Workspace, runtime.ErrVolumeMismatch)
	}
	if err := f.w.inUse(spec.Workspace); err != nil {
		return nil, nil, err
	}
	f.w.endBackup(spec.Workspace)
	top := v.files["."]
	from := func(id int) bool { return slices.Contains(spec.From, uint32(id)) }
	counts := top.UID != int(spec.UID) && !from(top.UID)
	next := func(id, of int) int {
		if counts && id == of || from(id) {
			return int(spec.UID)
		}
		return id
	}
	paths = slices.Sorted(maps.Keys(v.files))
	paths = append(slices.DeleteFunc(paths, func(path string) bool { return path == "." }), ".")
	return paths, func(file File) File {
		file.UID, file.GID = next(file.UID, top.UID), next(file.GID, top.GID)
		return file
	}, nil
}

func (f *Fake) own(spec runtime.OwnSpec, path string, own func(File) File) error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.w.volumes[spec.Workspace]
	if !f.owns(v, spec.VolumeClaim) {
		return fmt.Errorf("volume of %s: %w", spec.Workspace, runtime.ErrVolumeMismatch)
	}
	v.files[path], v.folder = own(v.files[path]), ""
	return nil
}

// folderOf returns the volume as a directory, the same one until its files change.
// The caller holds w.mu.
func (w *world) folderOf(v *fakeVolume) (string, error) {
	if v.folder != "" {
		return v.folder, nil
	}
	if w.scratch == "" {
		dir, err := os.MkdirTemp("", "codehub-fake-")
		if err != nil {
			return "", err
		}
		w.scratch = dir
	}
	folder, err := unload(w.scratch, v.files)
	if err != nil {
		return "", err
	}
	v.folder = folder
	return folder, nil
}

func report(progress func(runtime.Progress), step string) {
	if progress != nil {
		progress(runtime.Progress{Step: step})
	}
}
