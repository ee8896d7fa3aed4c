package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"codehub/internal/runtime"
	"codehub/internal/runtime/kube/inside"
)

// CreateVolume implements runtime.Runtime. A Pod with the image copies its content. It runs
// codehub's own executable and no code of the image.
func (r *Runtime) CreateVolume(ctx context.Context, spec runtime.VolumeSpec, progress func(runtime.Progress)) error {
	unlock, err := r.locks.lock(ctx, spec.Workspace)
	if err != nil {
		return err
	}
	defer unlock()
	report(progress, runtime.StepCreating)
	home, err := r.createHome(ctx, spec)
	if err != nil || complete(home) {
		return err
	}
	if err := r.clearRestore(ctx, home, spec); err != nil {
		return err
	}
	filler := types.UID("")
	err = r.withImage(ctx, spec.Image, spec.Choice, func(c chosenImage) error {
		line, p, err := r.runTask(ctx, onHome{
			name: seedName(spec.Workspace), id: spec.Workspace, home: home, caps: ownerCaps, image: &c,
			command: []string{inside.Command, inside.Seed, runtime.HomeDir, runtime.JobHomeDir},
		}, runtime.StepSeeding, func(p *corev1.Pod, home *corev1.PersistentVolumeClaim) error {
			filler = p.UID
			return r.change(ctx, home, func(now *corev1.PersistentVolumeClaim) (map[string]any, error) {
				if complete(now) {
					return nil, errFilled(now)
				}
				return map[string]any{noteFiller: p.UID, noteRestored: nil}, nil
			})
		}, progress)
		if err != nil {
			return err
		}
		_, _, err = r.learn(ctx, c, p, line)
		return err
	})
	if err != nil {
		return err
	}
	if home, err = r.home(ctx, spec.Workspace, spec.Claim); err != nil {
		return err
	}
	return r.change(ctx, home, func(now *corev1.PersistentVolumeClaim) (map[string]any, error) {
		if volume(now).Removing || now.Annotations[noteFiller] != string(filler) {
			return nil, errFilled(now)
		}
		return map[string]any{noteSeeded: "true"}, nil
	})
}

// errFilled is the refusal of a call that another one has overtaken.
func errFilled(home *corev1.PersistentVolumeClaim) error {
	return &runtime.BusyError{Reason: "another call has changed volume " + home.Name}
}

// complete reports whether a home is not to be seeded again: it is live, or its seeding has
// finished.
func complete(home *corev1.PersistentVolumeClaim) bool {
	return home.Annotations[noteSettled] != "" || home.Annotations[noteSeeded] != ""
}

// clearRestore removes the ended job that restored a home which is to be seeded. Any other
// job of a restore is runtime.ErrConflict.
func (r *Runtime) clearRestore(ctx context.Context, home *corev1.PersistentVolumeClaim, spec runtime.VolumeSpec) error {
	name := jobName(runtime.JobRestore, spec.Workspace)
	p, err := r.named(ctx, name, roleJob)
	if p == nil || gated(p) || err != nil {
		return err
	}
	if job := jobOf(p); job.Running || home.Annotations[noteRestored] == "" || home.Annotations[noteRestored] != job.Key {
		return fmt.Errorf("storage job %s uses volume %s: %w", name, home.Name, runtime.ErrConflict)
	}
	return r.remove(ctx, p, 0)
}
