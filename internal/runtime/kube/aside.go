package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// A claim cannot be renamed, so that a claim which blocks a home is copied to one with
// another name, compared and removed. A note on the original, with a value of its own for
// each call, keeps codehub's Pods from it while it is copied: a Pod that was admitted before
// the note is seen in the list of Pods that follows, and one that is created after it sees the
// note. The original is deleted in the version that has the note, so that a server that was
// suspended deletes none that has been used since. The copy of an earlier call is not trusted,
// since the original may have changed: it is replaced. But once the original is being removed,
// its complete copy is all that will be left: it stays, and nothing is copied.

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
		return "", r.keep(ctx, original, "")
	case original.Labels[labelClaim] != found:
		return "", fmt.Errorf("volume %s appeared later: %w", original.Name, runtime.ErrVolumeMismatch)
	}
	// The Pod of an earlier copy would count as a user of the volume, for ever if no node takes
	// it. A call of another server that is still copying fails without it, and deletes nothing.
	if err := r.removeNamed(ctx, copyName(id), roleAside); err != nil {
		return "", err
	}
	if err := r.notMounted(ctx, id, nil); err != nil { // a volume in use stays as it is
		return "", err
	}
	if original.DeletionTimestamp != nil {
		return r.awaitMoved(ctx, id, original)
	}
	call := uuid.NewString()
	err = r.change(ctx, original, func(*corev1.PersistentVolumeClaim) (map[string]any, error) {
		return map[string]any{noteAside: call}, nil
	})
	if err != nil {
		return "", err
	}
	name, err := r.move(ctx, id, original, call, progress)
	if err != nil {
		cleanUp, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpWithin)
		defer cancel()
		err = errors.Join(err, r.keep(cleanUp, original, call))
	}
	return name, err
}

// keep removes the note of a call from a claim that stays, or that of any call.
func (r *Runtime) keep(ctx context.Context, original *corev1.PersistentVolumeClaim, call string) error {
	now, err := r.claims().Get(ctx, original.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != original.UID {
		return nil
	}
	if err != nil {
		return wrapError(ctx, "read persistent volume claim", err)
	}
	err = r.change(ctx, now, func(now *corev1.PersistentVolumeClaim) (map[string]any, error) {
		if by := now.Annotations[noteAside]; by == "" || call != "" && by != call {
			return nil, nil
		}
		return map[string]any{noteAside: nil}, nil
	})
	if errors.Is(err, runtime.ErrVolumeMismatch) {
		return nil // it is gone
	}
	return err
}

// move copies a claim that has the note of this call, and deletes it.
func (r *Runtime) move(ctx context.Context, id workspace.ID, original *corev1.PersistentVolumeClaim, call string, progress func(runtime.Progress)) (string, error) {
	now, err := r.noted(ctx, id, original, call, nil)
	if err != nil {
		return "", err
	}
	if now.DeletionTimestamp != nil { // by a call that deleted it before the note
		return r.awaitMoved(ctx, id, now)
	}
	aside, err := r.newAside(ctx, id, original)
	if err != nil {
		return "", err
	}
	if err := r.copyAside(ctx, id, original, aside, call, progress); err != nil {
		return "", err
	}
	if err := r.removeEnded(ctx, id); err != nil {
		return "", err
	}
	for {
		now, err := r.noted(ctx, id, original, call, nil)
		if err != nil {
			return "", err
		}
		err = r.deleteClaim(ctx, now, &now.ResourceVersion)
		if !apierrors.IsConflict(err) {
			return aside.Name, wrapError(ctx, "delete persistent volume claim", err)
		}
	}
}

// awaitMoved waits until a claim that is being removed is gone, and returns the name of its
// complete copy. Without one it is runtime.ErrBusy: nothing can be copied from such a claim any
// more.
func (r *Runtime) awaitMoved(ctx context.Context, id workspace.ID, original *corev1.PersistentVolumeClaim) (string, error) {
	aside, err := r.claims().Get(ctx, asideName(id, original), metav1.GetOptions{})
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return "", wrapError(ctx, "read persistent volume claim", err)
	case err != nil || !r.owns(aside.Labels, roleAside) || aside.DeletionTimestamp != nil ||
		aside.Annotations[noteOrigin] != string(original.UID) || aside.Annotations[noteSince] == "":
		return "", &runtime.BusyError{Reason: "volume " + original.Name + " is being removed"}
	}
	return aside.Name, wrapError(ctx, "delete persistent volume claim", r.deleteClaim(ctx, original, nil))
}

// noted returns the claim as it is now if it has the note of this call and no Pod other than
// p uses it.
func (r *Runtime) noted(ctx context.Context, id workspace.ID, original *corev1.PersistentVolumeClaim, call string, p *corev1.Pod) (*corev1.PersistentVolumeClaim, error) {
	now, err := r.claims().Get(ctx, original.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && now.UID != original.UID:
		return nil, fmt.Errorf("volume %s was replaced: %w", original.Name, runtime.ErrVolumeMismatch)
	case err != nil:
		return nil, wrapError(ctx, "read persistent volume claim", err)
	case now.Annotations[noteAside] != call:
		return nil, errFilled(now)
	}
	return now, r.notMounted(ctx, id, p)
}

// notMounted returns runtime.ErrConflict if a Pod other than p uses the volume with the name of
// a home. It asks the cluster, since Pods of others heed no note.
func (r *Runtime) notMounted(ctx context.Context, id workspace.ID, p *corev1.Pod) error {
	r.podView.refresh()
	var used *runtime.BusyError
	if err := r.free(ctx, id, p); errors.As(err, &used) {
		return fmt.Errorf("%s: %w", used.Reason, runtime.ErrConflict)
	} else if err != nil {
		return err
	}
	return nil
}

// newAside returns an empty claim for the copy, in place of that of an earlier call.
func (r *Runtime) newAside(ctx context.Context, id workspace.ID, original *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
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
	default:
		if err := r.deleteClaim(ctx, earlier, nil); err != nil {
			return nil, wrapError(ctx, "delete persistent volume claim", err)
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
func (r *Runtime) copyAside(ctx context.Context, id workspace.ID, original, aside *corev1.PersistentVolumeClaim, call string, progress func(runtime.Progress)) (err error) {
	p, err := r.create(ctx, r.copyPod(id, original, aside))
	if errors.Is(err, errExists) {
		return &runtime.BusyError{Reason: "another call copies volume " + original.Name}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.discard(ctx, p)) }()
	opened, err := r.asItIs(ctx, p, func(p *corev1.Pod) (*corev1.Pod, error) {
		if _, err := r.noted(ctx, id, original, call, p); err != nil {
			return nil, err
		}
		return r.open(ctx, p)
	})
	if err != nil {
		return err
	}
	report(progress, runtime.StepCopying)
	var last runtime.CopyReport
	said := ""
	_, exit, err := r.follow(ctx, opened, runtime.StepCopying, progress, func(line []byte) {
		if json.Unmarshal(line, &last) != nil {
			said = string(line)
		} else if progress != nil && !last.Done {
			progress(runtime.Progress{Step: last.Step, Done: last.Bytes, Entries: last.Entries})
		}
	})
	switch {
	case errors.Is(err, errGone):
		return &runtime.BusyError{Reason: "another call copies volume " + original.Name}
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
