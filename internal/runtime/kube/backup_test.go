package kube

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

func backupOf(id workspace.ID) runtime.JobSpec {
	return runtime.JobSpec{
		Workspace: id, Claim: "backup-1", Kind: runtime.JobBackup, Storage: workspace.StorageKubernetes, VolumeClaim: "home-1", Key: "manifest-1",
	}
}

// running stores a Pod of a workspace without its gate, on a node unless that is empty.
func (a *stubAPI) running(r *Runtime, name, role string, id workspace.ID, node string) *corev1.Pod {
	a.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: r.labels(role, id, "start-1")},
		Spec:       corev1.PodSpec{NodeName: node, NodeSelector: map[string]string{"pool": "a"}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	a.put("pods", p)
	return p
}

// A backup runs on the node of the workspace, and not while that is on its way to another one.
func TestBackupIsBesideWorkspace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, after string // node of the workspace's Pod when the backup is planned and admitted
		busy          bool
	}{
		"on a node":            {"node1", "node1", false},
		"stopped meanwhile":    {"node1", "", false},
		"moved meanwhile":      {"node1", "node2", true},
		"started meanwhile":    {"", "node1", true},
		"stopped":              {"", "", false},
		"waits for a node":     {"none", "none", true},
		"waits for one by now": {"", "none", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, r := newStub(t)
			id, home := api.home(r, nil)
			start := func(node string) {
				api.finish("pods", id.ContainerName())
				switch node {
				case "":
				case "none":
					api.running(r, id.ContainerName(), roleWorkspace, id, "")
				default:
					api.running(r, id.ContainerName(), roleWorkspace, id, node)
				}
			}
			start(c.before)
			planned, err := r.plannedJob(t.Context(), backupOf(id), home)
			if err == nil {
				if on := planned.Spec.Affinity; (on != nil) != (c.before != "") || on != nil && (!same(on, onNode(c.before)) || planned.Spec.NodeSelector["pool"] != "a") {
					t.Errorf("the backup goes to %+v, %v", on, planned.Spec.NodeSelector)
				}
				made, createErr := r.create(t.Context(), planned)
				check(t, createErr)
				start(c.after)
				_, err = r.admit(t.Context(), made, nil)
			}
			if errors.Is(err, runtime.ErrBusy) != c.busy || !c.busy && err != nil {
				t.Fatalf("the backup: %v", err)
			}
			p, err := r.named(t.Context(), jobName(runtime.JobBackup, id), roleJob)
			if err != nil || (p == nil) != c.busy || p != nil && gated(p) {
				t.Errorf("the Pod: %+v, %v", p, err)
			}
		})
	}
}

// Of a volume that one Pod mounts at a time, there is no backup while the workspace runs.
func TestBackupOfVolumeForOnePod(t *testing.T) {
	t.Parallel()
	api, r := newStub(t)
	id, home := api.home(r, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	})
	if _, err := r.plannedJob(t.Context(), backupOf(id), home); err != nil {
		t.Errorf("while it is stopped: %v", err)
	}
	api.running(r, id.ContainerName(), roleWorkspace, id, "node1")
	if _, err := r.plannedJob(t.Context(), backupOf(id), home); !errors.Is(err, runtime.ErrBusy) {
		t.Errorf("while it runs: %v", err)
	}
}

// A backup gives way to what needs the home alone, except to what a dead server has left.
func TestBackupIsBusy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		gated bool
		age   time.Duration
		busy  bool
	}{
		"a job runs":              {false, 0, true},
		"a job is being admitted": {true, 0, true},
		"a job was left":          {true, 2 * gateKept, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, r := newStub(t)
			id, home := api.home(r, nil)
			other := r.jobPod(runtime.JobSpec{Kind: runtime.JobArchive, Workspace: id, Claim: "op-1", VolumeClaim: "home-1"}, home)
			if c.gated {
				other.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: gate}}
			}
			api.put("pods", other)
			api.mu.Lock()
			api.objects["pods/"+other.Name]["metadata"].(map[string]any)["creationTimestamp"] = time.Now().Add(-c.age).UTC().Format(time.RFC3339)
			api.mu.Unlock()
			if _, err := r.plannedJob(t.Context(), backupOf(id), home); errors.Is(err, runtime.ErrBusy) != c.busy {
				t.Errorf("the backup: %v", err)
			}
			if p, err := r.named(t.Context(), other.Name, roleJob); err != nil || p == nil {
				t.Errorf("the other job is gone: %v", err)
			}
		})
	}
}

// A start deletes a backup and does not wait for its end, which a node that does not respond never
// reports. Other calls wait.
func TestStartDoesNotWaitForBackup(t *testing.T) {
	t.Parallel()
	api, r := newStub(t)
	id, home := api.home(r, nil)
	backup := r.jobPod(backupOf(id), home)
	backup.Spec.NodeName, backup.Finalizers = "node2", []string{"example.com/stays"}
	backup.Status.Phase = corev1.PodRunning
	api.put("pods", backup)
	start := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1", Labels: r.labels(roleWorkspace, id, "start-1")}}
	check(t, r.free(t.Context(), id, start))
	p, err := r.named(t.Context(), backup.Name, roleJob)
	if err != nil || p == nil || p.DeletionTimestamp == nil {
		t.Fatalf("the backup after a start: %+v, %v", p, err)
	}
	api.finish("pods", backup.Name)

	backup.Finalizers = nil
	api.put("pods", backup)
	check(t, r.free(t.Context(), id, r.pod(onHome{name: checkName(id), role: roleTask, id: id, home: home})))
	if p, err := r.named(t.Context(), backup.Name, roleJob); err != nil || p != nil {
		t.Errorf("the backup after a task: %+v, %v", p, err)
	}
}

func TestBackupNeedsLiveHome(t *testing.T) {
	t.Parallel()
	api, r := newStub(t)
	id, home := api.home(r, func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, noteSettled) })
	if err := fits(home, backupOf(id)); !errors.Is(err, runtime.ErrVolumeMismatch) {
		t.Errorf("a backup of a home that is not live: %v", err)
	}
}

// A drill has an empty folder in place of a home, starts in any case, and keeps nothing waiting.
func TestDrillHasNoHome(t *testing.T) {
	t.Parallel()
	api, r := newStub(t)
	id := workspace.ID(uuid.NewString())
	planned, err := r.plannedJob(t.Context(), runtime.JobSpec{Workspace: id, Claim: "drill-1", Kind: runtime.JobDrill, Key: "manifest-1"}, nil)
	check(t, err)
	made, err := r.create(t.Context(), planned)
	check(t, err)
	opened, err := r.admit(t.Context(), made, nil)
	check(t, err)
	mount := opened.Spec.Containers[0].VolumeMounts[0]
	if gated(opened) || len(opened.Spec.Volumes) != 1 || opened.Spec.Volumes[0].EmptyDir == nil || mount.MountPath != runtime.JobHomeDir || mount.ReadOnly || mount.SubPath != "" {
		t.Errorf("the Pod is %+v", opened.Spec)
	}
	job := jobOf(opened)
	if job.Kind != runtime.JobDrill || job.VolumeClaim != "" || job.Key != "manifest-1" || !job.Running {
		t.Errorf("the job is %+v", job)
	}
	check(t, r.free(t.Context(), id, nil))
	opened.Status.Phase = corev1.PodSucceeded
	api.put("pods", opened)
	check(t, r.RemoveVolume(t.Context(), id, "home-1", nil))
	if len(api.deleted) > 0 {
		t.Errorf("deleted %q", api.deleted)
	}
}
