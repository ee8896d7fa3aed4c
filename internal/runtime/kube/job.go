package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Jobs implements runtime.Runtime. A Pod that was created but not started is not listed:
// StartJob replaces it.
func (r *Runtime) Jobs(ctx context.Context) ([]runtime.Job, error) {
	pods, err := r.podView.list(ctx)
	if err != nil {
		return nil, wrapError(ctx, "list Pods", err)
	}
	var list []runtime.Job
	for _, p := range pods {
		if !r.owns(p.Labels, roleJob) || gated(p) {
			continue
		}
		if job := jobOf(p); p.Name == jobName(job.Kind, job.Workspace) {
			list = append(list, job)
		}
	}
	return list, nil
}

func jobOf(p *corev1.Pod) runtime.Job {
	return runtime.Job{
		ID: idOf(p), Workspace: workspace.ID(p.Labels[labelWorkspace]), Claim: p.Labels[labelClaim],
		Kind: runtime.JobKind(p.Annotations[noteKind]), VolumeClaim: p.Annotations[noteVolumeClaim], Key: p.Annotations[noteKey],
		Running: !ended(p), Waiting: !begun(p, containerHelper), Created: p.CreationTimestamp.Time,
	}
}

// StartJob implements runtime.Runtime. The job reaches the bucket over the network: it takes
// no folders of this machine. A job whose server dies before it has sent the whole input ends
// with an error.
func (r *Runtime) StartJob(ctx context.Context, spec runtime.JobSpec, progress func(runtime.Progress)) (runtime.Job, error) {
	switch {
	case !spec.Kind.Valid():
		return runtime.Job{}, fmt.Errorf("storage job of kind %q: there is none", spec.Kind)
	case hasHome(spec.Kind) && spec.Storage != workspace.StorageKubernetes:
		return runtime.Job{}, fmt.Errorf("storage backend %q is not that of Kubernetes", spec.Storage)
	case spec.ObjectDir != "" || spec.BucketDir != "":
		return runtime.Job{}, errors.New("a storage job in Kubernetes needs a bucket that it can reach over the network")
	}
	if !workspace.ValidID(string(spec.Workspace)) {
		return runtime.Job{}, errNoUUID(spec.Workspace)
	}
	unlock, err := r.locks.lock(ctx, lockOf(spec))
	if err != nil {
		return runtime.Job{}, err
	}
	defer unlock()
	var home *corev1.PersistentVolumeClaim
	if hasHome(spec.Kind) {
		if home, err = r.home(ctx, spec.Workspace, spec.VolumeClaim); err != nil {
			return runtime.Job{}, err
		}
	}
	name := jobName(spec.Kind, spec.Workspace)
	p, err := r.named(ctx, name, roleJob)
	if err != nil {
		return runtime.Job{}, err
	}
	if p != nil && spec.Kind == runtime.JobBackup && p.DeletionTimestamp != nil { // see free
		if err := r.removed(ctx, p); err != nil {
			return runtime.Job{}, err
		}
		p = nil
	}
	if p != nil && !gated(p) {
		if sameJob(jobOf(p), spec) {
			return r.instruct(ctx, p, spec, progress)
		}
		if err := r.replaceable(jobOf(p), home, spec); err != nil {
			return runtime.Job{}, err
		}
	}
	if err := fits(home, spec); err != nil {
		return runtime.Job{}, err
	}
	if p != nil { // without its gate it has restored another archive; with it, its creator has died
		if err := r.remove(ctx, p, 0); err != nil {
			return runtime.Job{}, err
		}
	}
	planned, err := r.plannedJob(ctx, spec, home)
	if err != nil {
		return runtime.Job{}, err
	}
	p, err = r.create(ctx, planned)
	if errors.Is(err, errExists) {
		return runtime.Job{}, &runtime.BusyError{Reason: "another server has just created Pod " + name}
	}
	if err != nil {
		return runtime.Job{}, err
	}
	p, err = r.admit(ctx, p, func(p *corev1.Pod, home *corev1.PersistentVolumeClaim) error {
		return r.change(ctx, home, func(now *corev1.PersistentVolumeClaim) (map[string]any, error) {
			if err := fits(now, spec); err != nil || spec.Kind != runtime.JobRestore {
				return nil, err
			}
			return map[string]any{noteFiller: p.UID, noteSeeded: nil, noteRestored: nil}, nil
		})
	})
	if err != nil {
		return runtime.Job{}, err
	}
	return r.instruct(ctx, p, spec, progress)
}

// hasHome reports whether jobs of this kind work on the workspace's home.
func hasHome(kind runtime.JobKind) bool { return kind != runtime.JobDrill }

// lockOf returns what serializes this process's calls on a job. Calls on the home do not wait for
// a backup, which may wait for a node, nor for a drill.
func lockOf(spec runtime.JobSpec) workspace.ID {
	if spec.Kind == runtime.JobBackup || spec.Kind == runtime.JobDrill {
		return workspace.ID(jobName(spec.Kind, spec.Workspace))
	}
	return spec.Workspace
}

// kindOf returns the kind of a job's Pod; empty for others.
func kindOf(p *corev1.Pod) runtime.JobKind {
	if p.Labels[labelRole] != roleJob {
		return ""
	}
	return runtime.JobKind(p.Annotations[noteKind])
}

// plannedJob returns the Pod of a job that may start now, as far as a first look shows. A backup
// runs on the node of the workspace's Pod, where alone a volume that one node mounts can be read.
func (r *Runtime) plannedJob(ctx context.Context, spec runtime.JobSpec, home *corev1.PersistentVolumeClaim) (*corev1.Pod, error) {
	p := r.jobPod(spec, home)
	switch spec.Kind {
	case runtime.JobDrill:
		return p, nil
	case runtime.JobBackup:
		user, err := r.beside(ctx, spec.Workspace, nil)
		if user != nil {
			if slices.Contains(home.Spec.AccessModes, corev1.ReadWriteOncePod) {
				return nil, errUsed(home.Name, user.Name)
			}
			p.Spec.Affinity = onNode(user.Spec.NodeName)
			p.Spec.NodeSelector, p.Spec.Tolerations = user.Spec.NodeSelector, user.Spec.Tolerations
			p.Annotations[noteNode] = user.Spec.NodeName
		}
		return p, err
	}
	return p, r.free(ctx, spec.Workspace, nil)
}

func (r *Runtime) jobPod(spec runtime.JobSpec, home *corev1.PersistentVolumeClaim) *corev1.Pod {
	reads := spec.Kind == runtime.JobArchive || spec.Kind == runtime.JobBackup
	return r.pod(onHome{
		name: jobName(spec.Kind, spec.Workspace), role: roleJob, id: spec.Workspace, claim: spec.Claim, home: home, caps: ownerCaps,
		notes:   map[string]string{noteKind: string(spec.Kind), noteKey: spec.Key},
		command: []string{runtime.JobCommand}, stdin: true,
		readOnly: reads, scratch: reads,
	})
}

// jobStep is the first step of a job that runs.
func jobStep(kind runtime.JobKind) string {
	if kind == runtime.JobRestore || kind == runtime.JobDrill {
		return runtime.StepUnpacking
	}
	return runtime.StepPacking
}

func sameJob(job runtime.Job, spec runtime.JobSpec) bool {
	return job.Claim == spec.Claim && job.VolumeClaim == spec.VolumeClaim && job.Key == spec.Key
}

// replaceable returns nil if the job restored an archive into a home that is to get the
// content of another one now.
func (r *Runtime) replaceable(job runtime.Job, home *corev1.PersistentVolumeClaim, spec runtime.JobSpec) error {
	if spec.Kind == runtime.JobRestore && !job.Running && job.VolumeClaim == spec.VolumeClaim && job.Key != spec.Key {
		if v := volume(home); v.Marker == job.Key && !v.Held {
			return nil
		}
	}
	return fmt.Errorf("a storage job of claim %s exists: %w", job.Claim, runtime.ErrConflict)
}

// fits returns nil if the home is in a state for such a job: live for a backup, and for a restore
// neither live nor restored already.
func fits(home *corev1.PersistentVolumeClaim, spec runtime.JobSpec) error {
	if spec.Kind == runtime.JobBackup && home.Annotations[noteSettled] == "" {
		return fmt.Errorf("volume %s is not live and cannot be backed up: %w", home.Name, runtime.ErrVolumeMismatch)
	}
	if spec.Kind != runtime.JobRestore {
		return nil
	}
	if home.Annotations[noteSettled] != "" {
		return fmt.Errorf("volume %s is live: %w", home.Name, runtime.ErrConflict)
	}
	if home.Annotations[noteRestored] != "" && home.Annotations[noteRestored] == spec.Key {
		return fmt.Errorf("volume %s has the content of this archive: %w", home.Name, runtime.ErrConflict)
	}
	return nil
}

// RemoveJob implements runtime.Runtime.
func (r *Runtime) RemoveJob(ctx context.Context, jobID string) error {
	p, err := r.identified(ctx, jobID, roleJob)
	if p == nil || err != nil {
		return err
	}
	keeps, err := r.keeps(ctx, jobOf(p))
	if err != nil || keeps {
		return err
	}
	return r.remove(ctx, p, 0)
}
