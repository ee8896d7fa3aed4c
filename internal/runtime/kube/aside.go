package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// A claim cannot be renamed, so that a claim which blocks a home is copied to one with
// another name, compared and removed. The new name contains the UID of the original: a
// repeated call finds the copy of an earlier one. The copy is noted as complete before the
// original is removed.

// asideName is the name of the copy of a claim.
func asideName(id workspace.ID, original *corev1.PersistentVolumeClaim) string {
	return "ws-" + string(id) + "-aside-" + string(original.UID)
}

// SetAside implements runtime.Runtime.
func (r *Runtime) SetAside(ctx context.Context, id workspace.ID, claim, found string, progress func(runtime.Progress)) (string, error) {
	if !workspace.ValidID(string(id)) {
		return "", errNoUUID(id)
	}
	unlock, err := r.locks.lock(ctx, id)
	if err != nil {
		return "", err
	}
	defer unlock()
	original, err := r.claims().Get(ctx, id.VolumeName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", wrapError(ctx, "read persistent volume claim", err)
	}
	ours := r.owns(original.Labels, roleHome)
	switch {
	case !ours && original.Labels[labelInstallation] != "":
		return "", fmt.Errorf("volume %s belongs to another installation: %w", original.Name, runtime.ErrVolumeMismatch)
	case ours && claim != "" && original.Labels[labelClaim] == claim:
		return "", nil
	case original.Labels[labelClaim] != found:
		return "", fmt.Errorf("volume %s appeared later: %w", original.Name, runtime.ErrVolumeMismatch)
	}
	if err := r.notMounted(ctx, id); err != nil {
		return "", err
	}
	aside, err := r.asideOf(ctx, id, original)
	if err != nil {
		return "", err
	}
	if aside.Annotations[noteSince] == "" {
		if err := r.copyAside(ctx, id, original, aside, progress); err != nil {
			return "", err
		}
	}
	if err := r.notMounted(ctx, id); err != nil {
		return "", err
	}
	if err := r.removeEnded(ctx, id); err != nil {
		return "", err
	}
	return aside.Name, r.deleteClaim(ctx, original)
}

// notMounted returns runtime.ErrConflict if a Pod uses the volume with the name of a home.
func (r *Runtime) notMounted(ctx context.Context, id workspace.ID) error {
	var used *runtime.BusyError
	if err := r.free(ctx, id, nil); errors.As(err, &used) {
		return fmt.Errorf("%s: %w", used.Reason, runtime.ErrConflict)
	} else if err != nil {
		return err
	}
	return nil
}

// asideOf returns the claim for the copy: a complete copy, or an empty one.
func (r *Runtime) asideOf(ctx context.Context, id workspace.ID, original *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	if err := r.removeNamed(ctx, copyName(id), roleAside); err != nil {
		return nil, err
	}
	name := asideName(id, original)
	earlier, err := r.claims().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, wrapError(ctx, "read persistent volume claim", err)
	case !r.owns(earlier.Labels, roleAside):
		return nil, fmt.Errorf("volume %s: %w", name, runtime.ErrVolumeMismatch)
	case earlier.Annotations[noteSince] != "":
		return earlier, nil
	default:
		if err := r.deleteClaim(ctx, earlier); err != nil {
			return nil, err
		}
	}
	claim := r.newClaim(name, r.labels(roleAside, id, ""))
	claim.Annotations = map[string]string{noteOrigin: string(original.UID)}
	claim.Spec.StorageClassName = original.Spec.StorageClassName
	claim.Spec.Resources = original.Spec.Resources
	made, err := r.claims().Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return nil, wrapError(ctx, "create persistent volume claim", err)
	}
	r.homeView.wrote(made)
	return made, nil
}

// copyAside copies and compares a volume, and notes that the copy is complete.
func (r *Runtime) copyAside(ctx context.Context, id workspace.ID, original, aside *corev1.PersistentVolumeClaim, progress func(runtime.Progress)) (err error) {
	p, err := r.create(ctx, r.copyPod(id, original, aside))
	if errors.Is(err, errExists) {
		return &runtime.BusyError{Reason: "another call copies volume " + original.Name}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.discard(ctx, p)) }()
	report(progress, runtime.StepCopying)
	opened, err := r.open(ctx, p)
	if err != nil {
		return err
	}
	var last runtime.CopyReport
	said := ""
	_, exit, err := r.follow(ctx, opened, func(line []byte) {
		if json.Unmarshal(line, &last) != nil {
			said = string(line)
		} else if progress != nil && !last.Done {
			progress(runtime.Progress{Step: last.Step, Done: last.Bytes, Entries: last.Entries})
		}
	})
	switch {
	case err != nil:
		return err
	case exit != 0 || !last.Done:
		return fmt.Errorf("copy volume %s: Pod %s ended with code %d: %s", original.Name, p.Name, exit, workspace.Cut(said))
	}
	return r.change(ctx, aside, func(*corev1.PersistentVolumeClaim) (map[string]any, error) {
		return map[string]any{
			noteSince: time.Now().UTC().Format(time.RFC3339), noteBytes: strconv.FormatInt(last.Bytes, 10), noteEntries: strconv.FormatInt(last.Entries, 10),
		}, nil
	})
}

// copyPod returns the Pod that copies a volume. Only of a home is the content in homePath.
func (r *Runtime) copyPod(id workspace.ID, original, aside *corev1.PersistentVolumeClaim) *corev1.Pod {
	p := r.pod(onHome{name: copyName(id), role: roleAside, id: id, home: original, caps: ownerCaps, command: []string{runtime.CopyCommand}})
	from := corev1.VolumeMount{Name: homeVolume, MountPath: runtime.CopyFromDir, ReadOnly: true}
	if r.owns(original.Labels, roleHome) {
		from.SubPath = homePath
	}
	p.Spec.Volumes = append(p.Spec.Volumes, claimVolume("aside", aside.Name))
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{from, {Name: "aside", MountPath: runtime.CopyToDir, SubPath: homePath}}
	return p
}

// Asides implements runtime.Runtime.
func (r *Runtime) Asides(ctx context.Context) ([]runtime.Aside, error) {
	claims, err := r.homeView.list(ctx)
	if err != nil {
		return nil, wrapError(ctx, "list persistent volume claims", err)
	}
	var list []runtime.Aside
	for _, c := range claims {
		if !r.owns(c.Labels, roleAside) {
			continue
		}
		a := runtime.Aside{Name: c.Name, Workspace: workspace.ID(c.Labels[labelWorkspace]), Storage: workspace.StorageKubernetes, Since: c.CreationTimestamp.Time}
		if since, err := time.Parse(time.RFC3339, c.Annotations[noteSince]); err == nil {
			a.Since, a.Complete = since, true
			a.Bytes, _ = strconv.ParseInt(c.Annotations[noteBytes], 10, 64)
			a.Entries, _ = strconv.ParseInt(c.Annotations[noteEntries], 10, 64)
		}
		list = append(list, a)
	}
	return list, nil
}
