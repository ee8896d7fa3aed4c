package runtimetest

import (
	"context"
	"fmt"

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
	if err := f.ensureImage(ctx, "CreateVolume/pull", spec.Workspace, spec.Image, progress); err != nil {
		return err
	}
	report(progress, runtime.StepSeeding)
	if err := f.fill(spec, false); err != nil {
		return err
	}
	if err := f.step(ctx, "CreateVolume/seed", spec.Workspace); err != nil {
		return err
	}
	if err := f.fill(spec, true); err != nil {
		return err
	}
	return f.step(ctx, "CreateVolume/done", spec.Workspace)
}

// makeVolume makes an empty volume and reports whether a seeded one is there.
func (f *Fake) makeVolume(spec runtime.VolumeSpec) (bool, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if v := f.w.volumes[spec.Workspace]; v != nil {
		if v.installation != f.installation || v.Claim != spec.Claim {
			return false, fmt.Errorf("volume of %s: %w", spec.Workspace, runtime.ErrVolumeMismatch)
		}
		if v.Seeded {
			return true, nil
		}
	}
	f.w.volumes[spec.Workspace] = &fakeVolume{
		Volume:       runtime.Volume{Workspace: spec.Workspace, Storage: spec.Storage, Claim: spec.Claim},
		installation: f.installation,
		files:        map[string]File{},
	}
	f.w.change()
	return false, nil
}

// fill copies the image's home into the volume: half of it, or all.
func (f *Fake) fill(spec runtime.VolumeSpec, all bool) error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v, img := f.w.volumes[spec.Workspace], f.w.images[spec.Image]
	if v == nil || v.installation != f.installation || v.Claim != spec.Claim || img == nil {
		return fmt.Errorf("seed volume of %s: it is gone, or its image is", spec.Workspace)
	}
	home := img.home
	if !all {
		home = home[:len(home)/2]
	}
	for _, file := range home {
		v.files[file.Path] = file
	}
	v.Seeded = all
	f.w.change()
	return nil
}

// SettleVolume implements runtime.Runtime. Like Docker's it keeps Seeded.
func (f *Fake) SettleVolume(ctx context.Context, id workspace.ID, claim string) error {
	return f.enter(ctx, "SettleVolume", id)
}

// RemoveVolume implements runtime.Runtime.
func (f *Fake) RemoveVolume(ctx context.Context, id workspace.ID, claim string) error {
	if err := f.enter(ctx, "RemoveVolume", id); err != nil {
		return err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.w.volumes[id]
	if v == nil {
		return nil
	}
	if v.installation != f.installation || v.Claim != claim {
		return fmt.Errorf("volume of %s: %w", id, runtime.ErrVolumeMismatch)
	}
	if f.w.containers[id] != nil {
		return fmt.Errorf("volume of %s is in use", id)
	}
	delete(f.w.volumes, id)
	f.w.change()
	return nil
}

// ensureImage pulls the image if it is missing.
func (f *Fake) ensureImage(ctx context.Context, op string, id workspace.ID, image string, progress func(runtime.Progress)) error {
	f.w.mu.Lock()
	img := f.w.images[image]
	if img != nil && img.local {
		f.w.mu.Unlock()
		return nil
	}
	f.w.mu.Unlock()

	report(progress, runtime.StepPulling)
	if err := f.step(ctx, op, id); err != nil {
		return err
	}
	f.w.mu.Lock()
	var hang chan struct{}
	refuse := "repository does not exist"
	var size int64
	if img = f.w.images[image]; img != nil {
		hang, refuse, size = img.hang, img.refuse, img.size
	}
	f.w.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return fmt.Errorf("pull %s: %w", image, context.Cause(ctx))
		}
	}
	if refuse != "" {
		return &runtime.PullError{Image: image, Message: refuse}
	}
	if progress != nil {
		for done := int64(1); done <= 4; done++ {
			progress(runtime.Progress{Step: runtime.StepPulling, Done: size * done / 4, Total: size})
		}
	}
	if err := f.step(ctx, op, id); err != nil {
		return err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	img.local = true
	return nil
}

func report(progress func(runtime.Progress), step string) {
	if progress != nil {
		progress(runtime.Progress{Step: step})
	}
}
