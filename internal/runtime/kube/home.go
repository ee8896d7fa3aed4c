package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Volumes implements runtime.Runtime.
func (r *Runtime) Volumes(ctx context.Context) ([]runtime.Volume, error) {
	claims, err := r.homeView.list(ctx)
	if err != nil {
		return nil, wrapError(ctx, "list persistent volume claims", err)
	}
	var list []runtime.Volume
	for _, c := range claims {
		if r.owns(c.Labels, roleHome) {
			if v := volume(c); c.Name == v.Workspace.VolumeName() { // a copy under another name is no home
				list = append(list, v)
			}
		} else if id, ok := workspace.IDOfVolume(c.Name); ok && c.Labels[labelInstallation] == "" {
			list = append(list, runtime.Volume{Workspace: id, Storage: workspace.StorageKubernetes, Foreign: true})
		}
	}
	return list, nil
}

func volume(c *corev1.PersistentVolumeClaim) runtime.Volume {
	notes := c.Annotations
	lost := c.Status.Phase == corev1.ClaimLost
	v := runtime.Volume{
		Workspace: workspace.ID(c.Labels[labelWorkspace]), Storage: workspace.StorageKubernetes, Claim: c.Labels[labelClaim],
		Removing: notes[noteRemoving] != "" || c.DeletionTimestamp != nil || lost, Lost: lost,
		Held:  notes[noteSettled] != "",
		Owner: notes[noteOwner], Name: notes[noteName], Limit: space(c), OwnDisk: true,
	}
	if !v.Removing {
		v.Marker = notes[noteRestored]
		v.Seeded = notes[noteSeeded] != "" && v.Marker == ""
	}
	return v
}

// home returns the claim of a workspace's home as the cluster has it now. A missing one,
// another home, and one that is being removed are runtime.ErrVolumeMismatch.
func (r *Runtime) home(ctx context.Context, id workspace.ID, claim string) (*corev1.PersistentVolumeClaim, error) {
	if !workspace.ValidID(string(id)) {
		return nil, errNoUUID(id)
	}
	c, err := r.claims().Get(ctx, id.VolumeName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("volume %s does not exist: %w", id.VolumeName(), runtime.ErrVolumeMismatch)
	case err != nil:
		return nil, wrapError(ctx, "read persistent volume claim", err)
	}
	if err := r.usable(c, claim); err != nil {
		return nil, err
	}
	return c, nil
}

// knownHome returns the claim of a home as the watch has it, which may be a moment old, or as
// home does. It is for the creation of a Pod with a gate, which admit opens only after it has
// read the home itself.
func (r *Runtime) knownHome(ctx context.Context, id workspace.ID, claim string) (*corev1.PersistentVolumeClaim, error) {
	if c := r.homeView.get(r.cfg.Namespace, id.VolumeName()); c != nil && r.usable(c, claim) == nil {
		return c.DeepCopy(), nil
	}
	return r.home(ctx, id, claim)
}

// usable returns runtime.ErrVolumeMismatch unless a claim is that of the home and stays it.
func (r *Runtime) usable(c *corev1.PersistentVolumeClaim, claim string) error {
	switch {
	case !r.owns(c.Labels, roleHome) || c.Labels[labelClaim] != claim:
		return fmt.Errorf("volume %s: %w", c.Name, runtime.ErrVolumeMismatch)
	case volume(c).Lost:
		return fmt.Errorf("volume %s has lost its persistent volume: %w", c.Name, runtime.ErrVolumeMismatch)
	case volume(c).Removing:
		return fmt.Errorf("volume %s is being removed: %w", c.Name, runtime.ErrVolumeMismatch)
	case c.Annotations[noteAside] != "":
		return fmt.Errorf("volume %s is being set aside: %w", c.Name, runtime.ErrVolumeMismatch)
	}
	return nil
}

func errNoUUID(id workspace.ID) error { return fmt.Errorf("workspace %q is not a UUID", id) }

// CreateEmptyVolume implements runtime.Runtime.
func (r *Runtime) CreateEmptyVolume(ctx context.Context, spec runtime.VolumeSpec) error {
	_, err := r.createHome(ctx, spec)
	return err
}

// createHome creates the claim of a home, or returns the one that exists.
func (r *Runtime) createHome(ctx context.Context, spec runtime.VolumeSpec) (*corev1.PersistentVolumeClaim, error) {
	if !workspace.ValidID(string(spec.Workspace)) {
		return nil, errNoUUID(spec.Workspace)
	}
	if spec.Storage != workspace.StorageKubernetes {
		return nil, fmt.Errorf("storage backend %q is not that of Kubernetes", spec.Storage)
	}
	claim := r.newClaim(spec.Workspace.VolumeName(), r.labels(roleHome, spec.Workspace, spec.Claim))
	if spec.Disk > 0 {
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(spec.Disk, resource.BinarySI)
	}
	claim.Annotations = map[string]string{noteOwner: spec.Owner, noteName: spec.Name}
	made, err := r.claims().Create(ctx, claim, metav1.CreateOptions{})
	switch {
	case err == nil:
		r.homeView.wrote(made)
		return made, nil
	case !apierrors.IsAlreadyExists(err):
		return nil, wrapError(ctx, "create persistent volume claim", err)
	}
	home, err := r.home(ctx, spec.Workspace, spec.Claim)
	if err != nil {
		return nil, err
	}
	return home, r.grow(ctx, home, spec.Disk)
}

// space is the size of a claim's volume in bytes; that of its request while it has none.
func space(c *corev1.PersistentVolumeClaim) int64 {
	size, ok := c.Status.Capacity[corev1.ResourceStorage]
	if !ok {
		size = c.Spec.Resources.Requests[corev1.ResourceStorage]
	}
	return size.Value()
}

// grow requests a larger volume for a home; one that is large enough stays. A storage class that
// does not allow that keeps the volume as it is, and Volume.Limit says so.
func (r *Runtime) grow(ctx context.Context, home *corev1.PersistentVolumeClaim, disk int64) error {
	if asked := home.Spec.Resources.Requests[corev1.ResourceStorage]; disk <= asked.Value() || disk <= space(home) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": home.UID},
		"spec":     map[string]any{"resources": map[string]any{"requests": map[string]any{string(corev1.ResourceStorage): resource.NewQuantity(disk, resource.BinarySI).String()}}},
	})
	if err != nil {
		return err
	}
	changed, err := r.claims().Patch(ctx, home.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
		r.log.Info("the home's volume cannot grow", "volume", home.Name, "bytes", disk, "err", err)
		return nil
	case err != nil:
		return wrapError(ctx, "resize persistent volume claim", err)
	}
	r.homeView.wrote(changed)
	return nil
}

// newClaim returns a claim of the configured size and class.
func (r *Runtime) newClaim(name string, labels map[string]string) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: r.cfg.Size}},
		},
	}
	if r.cfg.StorageClass != "" {
		claim.Spec.StorageClassName = &r.cfg.StorageClass
	}
	return claim
}

// SettleVolume implements runtime.Runtime. A settled home stays marked as seeded.
func (r *Runtime) SettleVolume(ctx context.Context, id workspace.ID, claim string) error {
	home, err := r.home(ctx, id, claim)
	if err == nil {
		err = r.change(ctx, home, func(now *corev1.PersistentVolumeClaim) (map[string]any, error) {
			if now.Annotations[noteSettled] != "" || volume(now).Removing {
				return nil, nil
			}
			return map[string]any{noteSettled: "true"}, nil
		})
	}
	if errors.Is(err, runtime.ErrVolumeMismatch) {
		return nil // the contract leaves a missing or other home alone
	}
	return err
}

// change changes annotations of exactly this claim. decide returns those to change, where nil
// removes one, or nothing, or why not. If the claim changes meanwhile, which the cluster
// does while it makes the volume, decide is asked again with the new version.
func (r *Runtime) change(ctx context.Context, c *corev1.PersistentVolumeClaim, decide func(*corev1.PersistentVolumeClaim) (map[string]any, error)) error {
	for {
		notes, err := decide(c)
		if err != nil || len(notes) == 0 {
			return err
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": c.UID, "resourceVersion": c.ResourceVersion, "annotations": notes}})
		if err != nil {
			return err
		}
		changed, err := r.claims().Patch(ctx, c.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			r.homeView.wrote(changed)
			return nil
		}
		if !apierrors.IsConflict(err) {
			return wrapError(ctx, "change persistent volume claim", err)
		}
		now, err := r.claims().Get(ctx, c.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && now.UID != c.UID {
			return fmt.Errorf("volume %s was replaced: %w", c.Name, runtime.ErrVolumeMismatch)
		}
		if err != nil {
			return wrapError(ctx, "read persistent volume claim", err)
		}
		c = now
	}
}
