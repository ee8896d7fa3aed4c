package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// A Pod that mounts a home is created with a gate, so that nothing runs yet. Then the home
// and the other Pods of the workspace are read, and only then the gate is removed. Of two
// calls that create Pods for the same home at once, each creates before it reads, so at
// least one of them sees the other's Pod; RemoveVolume notes that it removes a home before
// it reads the Pods. The gate is removed from the Pod as it was read: a server that was
// suspended in between finds it changed or gone, and reads everything again or starts nothing.
// Other programs may have gates of their own, which codehub leaves.

// create creates a Pod with a gate. An existing one with its name is errExists.
func (r *Runtime) create(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	made, err := r.submit(ctx, p, metav1.CreateOptions{})
	if made != nil {
		r.podView.wrote(made)
		if err != nil { // nothing of it has run, because of its gate
			return nil, errors.Join(err, r.discard(ctx, made))
		}
	}
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil, errExists
	case err != nil:
		return nil, wrapError(ctx, "create Pod "+p.Name, err)
	}
	return made, nil
}

// submit gives a Pod with a gate to the cluster, and returns it as the cluster has it. With an
// error it is one that lacks what it must have.
func (r *Runtime) submit(ctx context.Context, p *corev1.Pod, o metav1.CreateOptions) (*corev1.Pod, error) {
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: gate}}
	planned := p.DeepCopy()
	if r.adapt != nil {
		r.adapt(p)
	}
	made, err := r.pods().Create(ctx, p, o)
	if err != nil {
		return nil, err
	}
	return made, dropped(planned, made)
}

var errExists = errors.New("a Pod with this name exists")

// admission agrees to the start of a created Pod on a home as it is now, or records it; nil
// agrees.
type admission func(p *corev1.Pod, home *corev1.PersistentVolumeClaim) error

// admit removes the gate of a created Pod if its home is still the one that it was created
// for, nothing else uses the home, and may agrees. Otherwise it removes the Pod, except a
// workspace's whose gate was removed all the same, by another server or by a request whose
// response was lost: the next start finds that one.
func (r *Runtime) admit(ctx context.Context, p *corev1.Pod, may admission) (*corev1.Pod, error) {
	opened, err := r.tryAdmit(ctx, p, may)
	if err == nil {
		return opened, nil
	}
	if p.Labels[labelRole] != roleWorkspace {
		return nil, errors.Join(err, r.discard(ctx, p))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpWithin)
	defer cancel()
	_, kept := r.removeGated(ctx, p)
	return nil, errors.Join(err, kept)
}

// tryAdmit is admit, but leaves a Pod that it refuses. If another program changes the Pod
// meanwhile, such as the one that queues it, everything is asked again for the Pod as it is then.
func (r *Runtime) tryAdmit(ctx context.Context, p *corev1.Pod, may admission) (*corev1.Pod, error) {
	return r.asItIs(ctx, p, func(p *corev1.Pod) (*corev1.Pod, error) { return r.admitOnce(ctx, p, may) })
}

// asItIs calls try with a Pod, and again after a conflict as long as the Pod has changed since and
// still has its gate.
func (r *Runtime) asItIs(ctx context.Context, p *corev1.Pod, try func(*corev1.Pod) (*corev1.Pod, error)) (*corev1.Pod, error) {
	for {
		opened, err := try(p)
		if !apierrors.IsConflict(err) {
			return opened, err
		}
		now, failed := r.reread(ctx, p)
		if failed != nil || !gated(now) || now.DeletionTimestamp != nil || now.ResourceVersion == p.ResourceVersion {
			return nil, err
		}
		p = now
	}
}

func (r *Runtime) admitOnce(ctx context.Context, p *corev1.Pod, may admission) (*corev1.Pod, error) {
	if kindOf(p) == runtime.JobDrill { // it has no home
		return r.open(ctx, p)
	}
	id := workspace.ID(p.Labels[labelWorkspace])
	home, err := r.home(ctx, id, p.Annotations[noteVolumeClaim])
	if err != nil {
		return nil, err
	}
	if string(home.UID) != p.Annotations[noteVolumeUID] {
		return nil, fmt.Errorf("volume %s was replaced: %w", home.Name, runtime.ErrVolumeMismatch)
	}
	if kindOf(p) == runtime.JobBackup {
		_, err = r.beside(ctx, id, p)
	} else {
		err = r.free(ctx, id, p)
	}
	if err != nil {
		return nil, err
	}
	if may != nil {
		if err := may(p, home); err != nil {
			return nil, err
		}
	}
	return r.open(ctx, p)
}

// open removes codehub's gate of a Pod, and leaves the gates of other programs. It also removes
// the Pod's managed fields, by a list with one empty entry. After that the API server keeps none,
// so that it does not compute them for each later change of the status, and watches do not carry
// them.
func (r *Runtime) open(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.UID, "resourceVersion": p.ResourceVersion, "managedFields": []any{struct{}{}}},
		"spec":     map[string]any{"schedulingGates": slices.DeleteFunc(slices.Clone(p.Spec.SchedulingGates), ownGate)},
	})
	if err != nil {
		return nil, err
	}
	opened, err := r.pods().Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, wrapError(ctx, "start Pod "+p.Name, err)
	}
	r.podView.wrote(opened)
	return opened, nil
}

// free returns runtime.ErrBusy if a Pod other than p uses the home. Pods of tasks and jobs
// that were not started are removed, which leaves them without a chance to start, and so are
// those of tasks that no node has yet: another server may have left them. Backups are ended. A
// workspace does not wait for the end of one: on another node the volume is not attached before
// that, and on the same one both can mount it. A workspace shares its home with the Pods of other
// programs.
func (r *Runtime) free(ctx context.Context, id workspace.ID, p *corev1.Pod) error {
	own, err := r.podsBefore(ctx, id, p)
	if err != nil {
		return err
	}
	starts := p != nil && p.Labels[labelRole] == roleWorkspace
	for _, other := range own {
		if p != nil && other.UID == p.UID || ended(other) || kindOf(other) == runtime.JobDrill {
			continue
		}
		if other.Labels[labelRole] != roleWorkspace && unstarted(other) {
			if gone, err := r.removeSoon(ctx, other); gone {
				continue
			} else if err != nil {
				return err
			}
		}
		if kindOf(other) != runtime.JobBackup {
			return errUsed(id.VolumeName(), other.Name)
		}
		end := r.remove
		if starts {
			end = r.beginRemoval
		}
		if err := end(ctx, other, 0); err != nil {
			return err
		}
	}
	if starts {
		return nil
	}
	task := p != nil && p.Labels[labelRole] == roleTask
	return r.unusedByOthers(ctx, id, !task)
}

// gateKept is after how long a Pod that still has its gate was left by a server that has died.
const gateKept = time.Minute

// beside returns the workspace's Pod, on whose node a backup runs, or nil. p is the backup's own Pod
// if it exists. It is runtime.ErrBusy while a task or another job works on the home, or is about to,
// while the workspace's Pod has no node yet, and if that has another one than p was made for.
func (r *Runtime) beside(ctx context.Context, id workspace.ID, p *corev1.Pod) (*corev1.Pod, error) {
	own, err := r.podsBefore(ctx, id, p)
	if err != nil {
		return nil, err
	}
	var user *corev1.Pod
	for _, other := range own {
		kind := kindOf(other)
		switch {
		case ended(other) || kind == runtime.JobBackup || kind == runtime.JobDrill:
		case other.Labels[labelRole] == roleWorkspace && other.Spec.NodeName != "":
			user = other
		case other.Labels[labelRole] != roleWorkspace && gated(other) && time.Since(other.CreationTimestamp.Time) > gateKept:
		default:
			return nil, errUsed(id.VolumeName(), other.Name)
		}
	}
	if p != nil && user != nil && user.Spec.NodeName != p.Annotations[noteNode] {
		return nil, errUsed(id.VolumeName(), user.Name)
	}
	return user, nil
}

// removeSoon removes a Pod while it is unstarted, and reports whether it is gone. Something else, such
// as a finalizer, may keep it.
func (r *Runtime) removeSoon(ctx context.Context, p *corev1.Pod) (gone bool, err error) {
	soon, cancel := context.WithTimeout(ctx, cleanUpWithin)
	defer cancel()
	now, err := r.removeIf(soon, p, unstarted)
	if err != nil && soon.Err() != nil && ctx.Err() == nil {
		return false, nil
	}
	return now == nil && err == nil, err
}

// unusedByOthers returns runtime.ErrBusy if a Pod that is not codehub's uses the home, or
// may begin to. With withEnded, it also counts a Pod that has ended on a node: the cluster does not
// remove a claim while there is one. It matters to removals, and to jobs and copies, which a
// removal follows.
func (r *Runtime) unusedByOthers(ctx context.Context, id workspace.ID, withEnded bool) error {
	all, err := r.podView.list(ctx)
	if err != nil {
		return wrapError(ctx, "list Pods", err)
	}
	for _, p := range all {
		counts := !ended(p) || withEnded && p.Spec.NodeName != ""
		if p.Labels[labelInstallation] != r.cfg.Installation && counts && mounts(p, id.VolumeName()) {
			return errUsed(id.VolumeName(), p.Name)
		}
	}
	return nil
}

// podsBefore returns codehub's Pods of a workspace with all that were created before p. That
// is enough for the rule above: of two that create before they read, the later one sees both.
// A watch that has p has them all. Its version alone does not show that: that of the cluster is
// lower after a restore from a backup.
func (r *Runtime) podsBefore(ctx context.Context, id workspace.ID, p *corev1.Pod) ([]*corev1.Pod, error) {
	if p != nil {
		own, ok := r.podView.of(ctx, id, p)
		if ok && slices.ContainsFunc(own, func(o *corev1.Pod) bool { return o.UID == p.UID }) {
			return slices.DeleteFunc(own, func(p *corev1.Pod) bool { return p.Labels[labelInstallation] != r.cfg.Installation }), nil
		}
	}
	return r.podsOf(ctx, id)
}

// podsOf returns codehub's Pods of a workspace as the cluster has them now.
func (r *Runtime) podsOf(ctx context.Context, id workspace.ID) ([]*corev1.Pod, error) {
	selector := labels.Set{labelInstallation: r.cfg.Installation, labelWorkspace: string(id)}.String()
	list, err := r.pods().List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, wrapError(ctx, "list Pods", err)
	}
	out := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out, nil
}

func mounts(p *corev1.Pod, claim string) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}

// remove deletes exactly this Pod and waits until its processes have ended, as far as the
// cluster knows. A Pod on a node that does not respond stays until the cluster, or an
// administrator, has confirmed that the node is gone.
func (r *Runtime) remove(ctx context.Context, p *corev1.Pod, grace time.Duration) error {
	p, err := r.removeIf(ctx, p, func(p *corev1.Pod) bool { return gated(p) || p.Spec.NodeName == "" })
	if p == nil || err != nil {
		return err
	}
	if err := r.beginRemoval(ctx, p, grace); err != nil {
		return err
	}
	return r.removed(ctx, p)
}

// beginRemoval deletes exactly this Pod. The cluster ends its processes after the call.
func (r *Runtime) beginRemoval(ctx context.Context, p *corev1.Pod, grace time.Duration) error {
	// Zero would remove the Pod from the cluster before its processes have ended.
	seconds := max(int64(grace.Seconds()), 1)
	err := r.pods().Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &seconds, Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // a conflict: another Pod has its name
		return wrapError(ctx, "delete Pod "+p.Name, err)
	}
	return nil
}

// removed waits until exactly this Pod is gone, and until lists know it.
func (r *Runtime) removed(ctx context.Context, p *corev1.Pod) error {
	if err := r.awaitRemoval(ctx, p); err != nil {
		return err
	}
	r.podView.awaitGone(ctx, p)
	return nil
}

// removeGated removes exactly this Pod if it still has its gate, and so no processes. If it
// has none, it returns the Pod as it is now.
func (r *Runtime) removeGated(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	return r.removeIf(ctx, p, gated)
}

// unstarted reports whether a Pod of a task or a job has no processes yet: it has its gate, or it is
// a task's, and no node has it.
func unstarted(p *corev1.Pod) bool {
	role := p.Labels[labelRole]
	return gated(p) || (role == roleTask || role == roleAside) && p.Spec.NodeName == ""
}

// removeIf removes exactly this Pod while the function accepts it, which may accept only a Pod
// without processes. Otherwise it returns the Pod as it is now.
func (r *Runtime) removeIf(ctx context.Context, p *corev1.Pod, is func(*corev1.Pod) bool) (*corev1.Pod, error) {
	for is(p) {
		at := int64(0)
		// In this version it has no processes: whatever lets a Pod start changes its version before.
		only := &metav1.Preconditions{UID: &p.UID, ResourceVersion: &p.ResourceVersion}
		refused := r.pods().Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &at, Preconditions: only})
		if refused == nil || apierrors.IsNotFound(refused) {
			return nil, r.removed(ctx, p)
		}
		if !apierrors.IsConflict(refused) {
			return nil, wrapError(ctx, "delete Pod "+p.Name, refused)
		}
		now, err := r.reread(ctx, p)
		if errors.Is(err, errGone) {
			return nil, r.removed(ctx, p)
		}
		if err != nil {
			return nil, err
		}
		if now.ResourceVersion == p.ResourceVersion {
			return nil, wrapError(ctx, "delete Pod "+p.Name, refused)
		}
		p = now
	}
	return p, nil
}

// cleanUpWithin bounds the removal of a Pod that is of no use, also after a cancellation.
const cleanUpWithin = 15 * time.Second

// discard removes a Pod that is of no use. The next call on its home removes what stays.
func (r *Runtime) discard(ctx context.Context, p *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpWithin)
	defer cancel()
	return r.remove(ctx, p, 0)
}
