package kube

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

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
