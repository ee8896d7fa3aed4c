package kube

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// user returns a Pod of another program that mounts a claim.
func user(claim, node string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "backup"},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "it"}}, Volumes: []corev1.Volume{claimVolume("home", claim)},
		},
		Status: corev1.PodStatus{Phase: phase},
	}
}

// The cluster keeps a claim that an ended Pod on a node mounts, so that a removal that has begun
// would not end.
func TestRemovalWaitsForEndedPod(t *testing.T) {
	t.Parallel()
	api, r := newStub(t)
	id, home := api.home(r, nil)
	api.put("pods", user(home.Name, "node1", corev1.PodSucceeded))
	calls := map[string]struct {
		call func() error
		want error
	}{
		"RemoveVolume": {func() error { return r.RemoveVolume(t.Context(), id, "home-1", nil) }, runtime.ErrBusy},
		"StartJob": {func() error {
			_, err := r.StartJob(t.Context(), runtime.JobSpec{Workspace: id, Kind: runtime.JobArchive, Storage: workspace.StorageKubernetes, VolumeClaim: "home-1", Claim: "op"}, nil)
			return err
		}, runtime.ErrBusy},
		"SetAside": {func() error { _, err := r.SetAside(t.Context(), id, "home-2", "home-1", nil); return err }, runtime.ErrConflict},
	}
	for name, c := range calls {
		err := c.call()
		if !errors.Is(err, c.want) || err.Error()[:len("volume "+home.Name+" is in use by Pod backup")] != "volume "+home.Name+" is in use by Pod backup" {
			t.Errorf("%s: %v", name, err)
		}
		var used *runtime.BusyError
		if c.want == runtime.ErrBusy && (!errors.As(err, &used) || used.Container != "backup") {
			t.Errorf("%s: %#v", name, err)
		}
	}
	if c := api.claim(home.Name); c == nil || c.DeletionTimestamp != nil || c.Annotations[noteRemoving] != "" || c.Annotations[noteAside] != "" || len(api.deleted) > 0 {
		t.Errorf("the claim is %+v; deleted %q", c, api.deleted)
	}
}

// An ended Pod of another program keeps no task from a home, and one that was never on a node
// keeps nothing.
func TestEndedPodsThatDoNotMatter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		node  string
		phase corev1.PodPhase
		role  string // of the Pod that is to start; empty: the home is to be removed
		busy  bool
	}{
		"removal, ended on a node":         {"node1", corev1.PodFailed, "", true},
		"removal, ended without a node":    {"", corev1.PodFailed, "", false},
		"removal, waits for a node":        {"", corev1.PodPending, "", true},
		"job, ended on a node":             {"node1", corev1.PodSucceeded, roleJob, true},
		"task, ended on a node":            {"node1", corev1.PodSucceeded, roleTask, false},
		"task, runs":                       {"node1", corev1.PodRunning, roleTask, true},
		"a workspace, runs":                {"node1", corev1.PodRunning, roleWorkspace, false},
		"a workspace, ended on a node":     {"node1", corev1.PodSucceeded, roleWorkspace, false},
		"the copy of a home, ended on one": {"node1", corev1.PodSucceeded, roleAside, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, r := newStub(t)
			id, home := api.home(r, nil)
			api.put("pods", user(home.Name, c.node, c.phase))
			var p *corev1.Pod
			if c.role != "" {
				p = r.pod(onHome{name: "starts", role: c.role, id: id, home: home})
				p.UID = "1"
			}
			if err := r.free(t.Context(), id, p); errors.Is(err, runtime.ErrBusy) != c.busy {
				t.Errorf("free: %v", err)
			}
		})
	}
}
