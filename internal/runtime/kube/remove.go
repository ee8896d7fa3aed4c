package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// RemoveVolume implements runtime.Runtime. The cluster removes the content with the volume,
// unless the storage class retains volumes, so no entries are counted.
func (r *Runtime) RemoveVolume(ctx context.Context, id workspace.ID, claim string, progress func(runtime.Progress)) error {
	if !workspace.ValidID(string(id)) {
		return errNoUUID(id)
	}
	unlock, err := r.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	c, err := r.claims().Get(ctx, id.VolumeName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return r.removeEnded(ctx, id)
	case err != nil:
		return wrapError(ctx, "read persistent volume claim", err)
	case !r.owns(c.Labels, roleHome) || c.Labels[labelClaim] != claim:
		return fmt.Errorf("volume %s: %w", c.Name, runtime.ErrVolumeMismatch)
	}
	report(progress, runtime.StepRemoving)
	if c.Annotations[noteRemoving] == "" {
		// Reading first leaves a home in use as it is.
		if err := r.free(ctx, id, nil); err != nil {
			return err
		}
		err := r.change(ctx, c, func(*corev1.PersistentVolumeClaim) (map[string]any, error) {
			return map[string]any{noteRemoving: "true"}, nil
		})
		if err != nil {
			return err
		}
	}
	// A Pod that was admitted before the note is seen here, and one that is created after it
	// sees the note.
	if err := r.free(ctx, id, nil); err != nil {
		return err
	}
	if err := r.removeEnded(ctx, id); err != nil {
		return err
	}
	return wrapError(ctx, "delete persistent volume claim", r.deleteClaim(ctx, c, nil))
}

// removeEnded removes the Pods of a workspace that work on its home and have ended, or wait.
func (r *Runtime) removeEnded(ctx context.Context, id workspace.ID) error {
	own, err := r.podsOf(ctx, id)
	if err != nil {
		return err
	}
	for _, p := range own {
		if p.Labels[labelRole] == roleWorkspace || kindOf(p) == runtime.JobDrill || !ended(p) && !unstarted(p) {
			continue
		}
		if err := r.remove(ctx, p, 0); err != nil {
			return err
		}
	}
	return nil
}

// deleteClaim deletes exactly this claim, in this version unless it is nil, and waits until it
// is gone. The error is that of the cluster.
func (r *Runtime) deleteClaim(ctx context.Context, c *corev1.PersistentVolumeClaim, version *string) error {
	err := r.claims().Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID, ResourceVersion: version}})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	for wait := pollEvery; ; wait = min(2*wait, maxPoll) {
		now, err := r.claims().Get(ctx, c.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && now.UID != c.UID {
			r.homeView.awaitGone(ctx, c)
			return nil
		}
		if err != nil {
			return err
		}
		if err := pauseFor(ctx, wait, "remove persistent volume claim "+c.Name); err != nil {
			return err
		}
	}
}
