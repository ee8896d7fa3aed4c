package kube

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
)

// A home whose persistent volume is gone cannot be used, and is complete again if that comes back.
func TestLostClaim(t *testing.T) {
	t.Parallel()
	for phase, lost := range map[corev1.PersistentVolumeClaimPhase]bool{corev1.ClaimBound: false, corev1.ClaimPending: false, corev1.ClaimLost: true} {
		api, r := newStub(t)
		id, _ := api.home(r, func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = phase })
		list, err := r.Volumes(t.Context())
		if err != nil || len(list) != 1 || list[0].Lost != lost || list[0].Removing != lost || list[0].Seeded == lost {
			t.Errorf("%s: %+v, %v", phase, list, err)
		}
		if _, err := r.home(t.Context(), id, "home-1"); errors.Is(err, runtime.ErrVolumeMismatch) != lost {
			t.Errorf("%s: %v", phase, err)
		}
		if len(api.deleted) > 0 {
			t.Errorf("%s: deleted %q", phase, api.deleted)
		}
	}
}

// A Pod of an earlier network check that stays on a lost node keeps the isolation from being
// checked, and nothing else: workspaces start. It is removed with the others once an administrator
// has confirmed that the node is dead.
func TestProbeOnLostNode(t *testing.T) {
	t.Parallel()
	api, r := newStub(t)
	ago := metav1.NewTime(time.Now().Add(-time.Hour))
	p := r.probePod("a", "token")
	p.Namespace, p.UID, p.Finalizers, p.DeletionTimestamp, p.CreationTimestamp = namespace, "1", []string{"test/stays"}, &ago, ago
	p.Spec.NodeName = "node1"
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager", LastTransitionTime: ago}}
	api.put("pods", p)
	_, err := r.probeNetwork(t.Context())
	var isolation *runtime.IsolationError
	if !errors.As(err, &isolation) || !isolation.Unknown || !strings.Contains(isolation.Reason, p.Name) || !strings.Contains(isolation.Reason, "node1") {
		t.Errorf("the check: %v", err)
	}
	p.Finalizers = nil // the cluster removes it without its kubelet's word
	api.put("pods", p)
	r.confirmAfter = 0
	if n, err := r.NodeIsDead(t.Context(), "node2"); n != 0 || !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("another node is dead: %d, %v", n, err)
	}
	if n, err := r.NodeIsDead(t.Context(), "node1"); n != 1 || err != nil {
		t.Errorf("its node is dead: %d, %v", n, err)
	}
	if left, err := r.pods().Get(t.Context(), p.Name, metav1.GetOptions{}); err == nil {
		t.Errorf("the Pod is there: %+v", left)
	}
}

// A claim that another program keeps is looked at less and less often.
func TestClaimThatStays(t *testing.T) {
	t.Parallel()
	api, r := newStub(t)
	id, c := api.home(r, func(c *corev1.PersistentVolumeClaim) { c.Finalizers = []string{"example.org/backup"} })
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	if err := r.RemoveVolume(ctx, id, "home-1", nil); err == nil {
		t.Error("the home is removed")
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	if n := api.reads["persistentvolumeclaims/"+c.Name]; n < 2 || n > 25 {
		t.Errorf("its claim was read %d times in 6 s", n)
	}
}
