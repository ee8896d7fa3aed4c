package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// MarkRestored implements runtime.Runtime.
func (r *Runtime) MarkRestored(ctx context.Context, id workspace.ID, claim, key string) error {
	home, err := r.home(ctx, id, claim)
	if err != nil {
		return err
	}
	return r.change(ctx, home, func(now *corev1.PersistentVolumeClaim) (map[string]any, error) {
		switch {
		case volume(now).Removing:
			return nil, fmt.Errorf("volume %s is being removed: %w", now.Name, runtime.ErrVolumeMismatch)
		case now.Annotations[noteRestored] == key:
			return nil, nil
		case now.Annotations[noteSettled] != "":
			return nil, fmt.Errorf("volume %s is live: %w", now.Name, runtime.ErrConflict)
		case now.Annotations[noteSeeded] == "": // otherwise it has the content of an empty archive
			if err := r.restoredBy(ctx, now, key); err != nil {
				return nil, err
			}
		}
		return map[string]any{noteRestored: key}, nil
	})
}

// restoredBy returns nil if the job that restored this archive into this home exists and has
// exited with code 0.
func (r *Runtime) restoredBy(ctx context.Context, home *corev1.PersistentVolumeClaim, key string) error {
	name := jobName(runtime.JobRestore, workspace.ID(home.Labels[labelWorkspace]))
	p, err := r.named(ctx, name, roleJob)
	if err != nil {
		return err
	}
	if p != nil && string(p.UID) == home.Annotations[noteFiller] && p.Annotations[noteKey] == key {
		if s := statusOf(p, containerHelper); s != nil && s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 {
			return nil
		}
	}
	return fmt.Errorf("no storage job %s has restored this archive: %w", name, runtime.ErrConflict)
}

// keeps reports whether a job must stay: it restored a home that is marked and not settled.
func (r *Runtime) keeps(ctx context.Context, job runtime.Job) (bool, error) {
	if job.Kind != runtime.JobRestore || job.Running {
		return false, nil
	}
	claims, err := r.homeView.list(ctx)
	if err != nil {
		return false, wrapError(ctx, "list persistent volume claims", err)
	}
	for _, c := range claims {
		if c.Name == job.Workspace.VolumeName() && r.owns(c.Labels, roleHome) && c.Labels[labelClaim] == job.VolumeClaim {
			v := volume(c)
			return v.Marker == job.Key && !v.Held, nil
		}
	}
	return false, nil
}
