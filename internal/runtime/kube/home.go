package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Volumes implements runtime.Runtime.
func (r *Runtime) Volumes(ctx context.Context) ([]runtime.Volume, error) {
	claims, err := r.listHomes(ctx)
	if err != nil {
		return nil, err
	}
	var list []runtime.Volume
	for _, c := range claims {
		list = append(list, volume(c))
	}
	foreign, err := r.foreign(ctx)
	return append(list, foreign...), err
}

func volume(c *corev1.PersistentVolumeClaim) runtime.Volume {
	notes := c.Annotations
	v := runtime.Volume{
		Workspace: workspace.ID(c.Labels[labelWorkspace]), Storage: workspace.StorageKubernetes, Claim: c.Labels[labelClaim],
		Removing: notes[noteRemoving] != "" || c.DeletionTimestamp != nil,
		Held:     notes[noteSettled] != "",
		Owner:    notes[noteOwner], Name: notes[noteName],
	}
	if !v.Removing {
		v.Marker = notes[noteRestored]
		v.Seeded = notes[noteSeeded] != "" && v.Marker == ""
	}
	return v
}

// home returns the claim of a workspace's home as the cluster has it now. Errors are those of
// the contract: runtime.ErrVolumeMismatch if it is missing, of another home, or going.
func (r *Runtime) home(ctx context.Context, id workspace.ID, claim string) (*corev1.PersistentVolumeClaim, error) {
	c, err := r.api.CoreV1().PersistentVolumeClaims(r.cfg.Namespace).Get(ctx, id.VolumeName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("volume %s does not exist: %w", id.VolumeName(), runtime.ErrVolumeMismatch)
	case err != nil:
		return nil, wrapError(ctx, "read persistent volume claim", err)
	case !r.owns(c.Labels, roleHome) || c.Labels[labelClaim] != claim:
		return c, fmt.Errorf("volume %s: %w", id.VolumeName(), runtime.ErrVolumeMismatch)
	case volume(c).Removing:
		return c, fmt.Errorf("volume %s is being removed: %w", id.VolumeName(), runtime.ErrVolumeMismatch)
	}
	return c, nil
}

// createHome creates the claim of a home, or returns the one with that name.
func (r *Runtime) createHome(ctx context.Context, spec runtime.VolumeSpec) (*corev1.PersistentVolumeClaim, error) {
	if !workspace.ValidID(string(spec.Workspace)) {
		return nil, fmt.Errorf("workspace %q is not a UUID", spec.Workspace)
	}
	if spec.Storage != workspace.StorageKubernetes {
		return nil, fmt.Errorf("storage backend %q is not one of Kubernetes", spec.Storage)
	}
	if err := fenced(ctx, "create persistent volume claim"); err != nil {
		return nil, err
	}
	labels := r.labels(roleHome, spec.Workspace)
	labels[labelClaim] = spec.Claim
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: spec.Workspace.VolumeName(), Labels: labels, Annotations: map[string]string{noteOwner: spec.Owner, noteName: spec.Name}},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: r.cfg.HomeSize}},
		},
	}
	if r.cfg.StorageClass != "" {
		claim.Spec.StorageClassName = &r.cfg.StorageClass
	}
	made, err := r.api.CoreV1().PersistentVolumeClaims(r.cfg.Namespace).Create(ctx, claim, metav1.CreateOptions{})
	switch {
	case err == nil:
		r.view.homes.wrote(made)
		return made, nil
	case !apierrors.IsAlreadyExists(err):
		return nil, wrapError(ctx, "create persistent volume claim", err)
	}
	return r.home(ctx, spec.Workspace, spec.Claim)
}

// CreateEmptyVolume implements runtime.Runtime.
func (r *Runtime) CreateEmptyVolume(ctx context.Context, spec runtime.VolumeSpec) error {
	_, err := r.createHome(ctx, spec)
	return err
}

// SettleVolume implements runtime.Runtime. A settled home keeps that it was seeded: unlike a
// container of Docker's, the note costs nothing.
func (r *Runtime) SettleVolume(ctx context.Context, id workspace.ID, claim string) error {
	c, err := r.home(ctx, id, claim)
	if errors.Is(err, runtime.ErrVolumeMismatch) || err == nil && c.Annotations[noteSettled] != "" {
		return nil // none, or another's: the contract leaves both alone
	}
	if err != nil {
		return err
	}
	return r.note(ctx, c, map[string]string{noteSettled: "true"})
}

// MarkRestored implements runtime.Runtime.
func (r *Runtime) MarkRestored(ctx context.Context, id workspace.ID, claim, key string) error {
	c, err := r.home(ctx, id, claim)
	if err != nil || c.Annotations[noteRestored] == key {
		return err
	}
	if c.Annotations[noteSettled] != "" {
		return fmt.Errorf("volume %s is in use: %w", c.Name, runtime.ErrConflict)
	}
	if key == "" { // an empty archive
		if c.Annotations[noteSeeded] == "" {
			return fmt.Errorf("volume %s is not seeded: %w", c.Name, runtime.ErrConflict)
		}
	} else if err := r.restoredBy(ctx, id, claim, key); err != nil {
		return err
	}
	return r.note(ctx, c, map[string]string{noteRestored: key})
}

// restoredBy returns nil if the job that restored this archive into this home exists and
// ended well.
func (r *Runtime) restoredBy(ctx context.Context, id workspace.ID, claim, key string) error {
	name := jobName(runtime.JobRestore, id)
	p, err := r.api.CoreV1().Pods(r.cfg.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return wrapError(ctx, "read Pod", err)
	}
	if err != nil || !r.owns(p.Labels, roleJob) || p.Annotations[noteVolumeClaim] != claim || p.Annotations[noteKey] != key || p.Status.Phase != corev1.PodSucceeded {
		return fmt.Errorf("no job %s restored this archive: %w", name, runtime.ErrConflict)
	}
	return nil
}

// RemoveVolume implements runtime.Runtime. The note that the removal has begun is written
// before the Pods are listed, and a Pod is started only after its home was read: so one of
// the two sees the other.
func (r *Runtime) RemoveVolume(ctx context.Context, id workspace.ID, claim string, progress func(runtime.Progress)) error {
	c, err := r.api.CoreV1().PersistentVolumeClaims(r.cfg.Namespace).Get(ctx, id.VolumeName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return r.removeEnded(ctx, id)
	case err != nil:
		return wrapError(ctx, "read persistent volume claim", err)
	case !r.owns(c.Labels, roleHome) || c.Labels[labelClaim] != claim:
		return fmt.Errorf("volume %s: %w", c.Name, runtime.ErrVolumeMismatch)
	}
	if err := r.unused(ctx, id); err != nil {
		return err
	}
	if c.Annotations[noteRemoving] == "" {
		if err := r.note(ctx, c, map[string]string{noteRemoving: "true"}); err != nil {
			return err
		}
	}
	if err := r.unused(ctx, id); err != nil {
		return err // it started meanwhile; the next call continues
	}
	if err := r.removeEnded(ctx, id); err != nil {
		return err
	}
	if err := fenced(ctx, "delete persistent volume claim"); err != nil {
		return err
	}
	report(progress, runtime.StepRemoving)
	err = r.api.CoreV1().PersistentVolumeClaims(r.cfg.Namespace).Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return wrapError(ctx, "delete persistent volume claim", err)
	}
	return r.awaitGone(ctx, c)
}

// unused returns runtime.ErrBusy if a Pod uses the home: any that may run, of whoever.
func (r *Runtime) unused(ctx context.Context, id workspace.ID) error {
	list, err := r.api.CoreV1().Pods(r.cfg.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return wrapError(ctx, "list Pods", err)
	}
	for _, p := range list.Items {
		if mounts(&p, id.VolumeName()) && running(&p) {
			return &runtime.BusyError{Reason: fmt.Sprintf("volume %s is in use by Pod %s", id.VolumeName(), p.Name), Container: p.Name}
		}
	}
	return nil
}

func mounts(p *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}

// note changes annotations of a home, if it is as it was read.
func (r *Runtime) note(ctx context.Context, c *corev1.PersistentVolumeClaim, notes map[string]string) error {
	if err := fenced(ctx, "change persistent volume claim"); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": c.UID, "resourceVersion": c.ResourceVersion, "annotations": notes}})
	if err != nil {
		return err
	}
	changed, err := r.api.CoreV1().PersistentVolumeClaims(r.cfg.Namespace).Patch(ctx, c.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return wrapError(ctx, "change persistent volume claim", err)
	}
	r.view.homes.wrote(changed)
	c.ResourceVersion = changed.ResourceVersion
	c.Annotations = maps.Clone(changed.Annotations)
	return nil
}

func report(progress func(runtime.Progress), step string) {
	if progress != nil {
		progress(runtime.Progress{Step: step})
	}
}

// removeEnded removes the Pods of a home that have ended or never started.
func (r *Runtime) removeEnded(ctx context.Context, id workspace.ID) error {
	list, err := r.pods().List(ctx, metav1.ListOptions{LabelSelector: ours(r.cfg) + "," + labelWorkspace + "=" + string(id)})
	if err != nil {
		return wrapError(ctx, "list Pods", err)
	}
	for _, p := range list.Items {
		if running(&p) {
			continue
		}
		if err := r.remove(ctx, &p, 0); err != nil {
			return err
		}
	}
	return nil
}

// awaitGone waits until a deleted claim is gone, with its volume's content.
func (r *Runtime) awaitGone(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	for {
		now, err := r.api.CoreV1().PersistentVolumeClaims(r.cfg.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && now.UID != c.UID {
			return nil
		}
		if err != nil {
			return wrapError(ctx, "read persistent volume claim", err)
		}
		select {
		case <-ctx.Done():
			return wrapError(ctx, "remove persistent volume claim", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// foreign returns the claims with the name of a home that are not codehub's.
func (r *Runtime) foreign(ctx context.Context) ([]runtime.Volume, error) {
	list, err := r.api.CoreV1().PersistentVolumeClaims(r.cfg.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "!" + labelInstallation})
	if err != nil {
		return nil, wrapError(ctx, "list persistent volume claims", err)
	}
	var out []runtime.Volume
	for _, c := range list.Items {
		if id, ok := workspace.IDOfVolume(c.Name); ok {
			out = append(out, runtime.Volume{Workspace: id, Storage: workspace.StorageKubernetes, Foreign: true})
		}
	}
	return out, nil
}
