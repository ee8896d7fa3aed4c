package kube

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// A Pod whose gates are gone still has their condition until the scheduler has looked at it.
func TestGatedIsNoRefusal(t *testing.T) {
	t.Parallel()
	p := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
		LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Minute)),
	}}}}
	if err := refusal(p); err != nil {
		t.Errorf("without gates: %v", err)
	}
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/queue"}}
	var busy *runtime.BusyError
	if err := refusal(p); !errors.As(err, &busy) || busy.Step != runtime.StepWaitingRoom {
		t.Errorf("with a gate: %v", err)
	}
}

// testForeignGates gives Pods the gate of another program, as one that queues Pods does.
// codehub leaves it, and waits until that program removes it.
func testForeignGates(t *testing.T, c *cluster) {
	const queue = "example.com/queue"
	queued := func(t *testing.T, role string) *Runtime {
		r := c.runtime(t)
		r.noImageVolumes.Store(true) // otherwise a node that cannot mount images gets a second Pod
		before := r.adapt
		r.adapt = func(p *corev1.Pod) {
			before(p)
			if p.Labels[labelRole] == role {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: queue})
			}
		}
		return r
	}
	release := func(t *testing.T, r *Runtime, pod string) types.UID {
		p, err := r.pods().Get(t.Context(), pod, metav1.GetOptions{})
		check(t, err)
		if len(p.Spec.SchedulingGates) != 1 || p.Spec.SchedulingGates[0].Name != queue {
			t.Errorf("the gates are %v", p.Spec.SchedulingGates)
		}
		must(t)(r.pods().Patch(t.Context(), pod, types.MergePatchType, []byte(`{"spec": {"schedulingGates": []}}`), metav1.PatchOptions{}))
		return p.UID
	}
	t.Run("of a workspace", func(t *testing.T) {
		t.Parallel()
		r := queued(t, roleWorkspace)
		home := newHome(t, r)
		_, err := r.StartContainer(t.Context(), startOf(home), nil)
		var busy *runtime.BusyError
		if !errors.As(err, &busy) || busy.Step != runtime.StepWaitingRoom || !strings.HasSuffix(busy.Reason, ": "+queue) {
			t.Fatalf("StartContainer: %#v", err)
		}
		uid := release(t, r, home.Workspace.ContainerName())
		harness.Eventually(t, "it is started", func() bool {
			_, err := r.StartContainer(t.Context(), startOf(home), nil)
			if err != nil && !errors.Is(err, runtime.ErrBusy) {
				t.Fatal(err)
			}
			return err == nil
		})
		if p, err := r.named(t.Context(), home.Workspace.ContainerName(), roleWorkspace); err != nil || p == nil || p.UID != uid {
			t.Errorf("the Pod that runs is not the one that was queued: %v", err)
		}
	})
	t.Run("of a storage job", func(t *testing.T) {
		t.Parallel()
		r := queued(t, roleJob)
		spec := archiveOf(newHome(t, r))
		spec.Input = []byte("exit 0\n")
		waited := false
		job, err := r.StartJob(t.Context(), spec, func(p runtime.Progress) {
			if p.Step == runtime.StepWaitingRoom && !waited {
				waited = true
				release(t, r, jobName(spec.Kind, spec.Workspace))
			}
		})
		if err != nil || !waited {
			t.Fatalf("StartJob: waited %v, %v", waited, err)
		}
		if exit, err := r.FollowJob(t.Context(), job.ID, func([]byte) {}); err != nil || exit != 0 {
			t.Errorf("the job ended with %d, %v", exit, err)
		}
	})
	t.Run("of a task", func(t *testing.T) {
		t.Parallel()
		r := queued(t, roleTask)
		home := runtime.VolumeSpec{Workspace: workspace.ID(uuid.NewString()), Storage: workspace.StorageKubernetes, Claim: "home-1", Image: harness.TestImage()}
		waited := false
		err := r.CreateVolume(t.Context(), home, func(p runtime.Progress) {
			if p.Step == runtime.StepWaitingRoom && !waited {
				waited = true
				release(t, r, seedName(home.Workspace))
			}
		})
		if err != nil || !waited {
			t.Errorf("CreateVolume: waited %v, %v", waited, err)
		}
	})
}
