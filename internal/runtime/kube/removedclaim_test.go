package kube

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
)

// A home whose claim was removed by hand is being removed, and is there until its Pod ends: the
// Pod runs on, and no other one starts. Then the home is gone.
func testRemovedClaim(t *testing.T, c *cluster) {
	r := c.runtime(t)
	home := newHome(t, r)
	made, err := r.StartContainer(t.Context(), startOf(home), nil)
	check(t, err)
	check(t, c.Client.CoreV1().PersistentVolumeClaims(namespace).Delete(t.Context(), home.Workspace.VolumeName(), metav1.DeleteOptions{}))
	harness.Eventually(t, "the home is being removed", func() bool {
		list, err := ownVolumes(t, r)
		return err == nil && len(list) == 1 && list[0].Removing
	})
	if list, err := r.Containers(t.Context()); err != nil || len(list) != 1 || list[0].State != runtime.ContainerRunning {
		t.Errorf("the workspace: %+v, %v", list, err)
	}
	if up, err := r.Upstream(t.Context(), home.Workspace); err != nil || up.ContainerID != made.ID {
		t.Errorf("it is not reached: %+v, %v", up, err)
	}
	again := startOf(home)
	again.Claim = "start-2"
	if _, err := r.StartContainer(t.Context(), again, nil); !errors.Is(err, runtime.ErrVolumeMismatch) {
		t.Errorf("another start: %v", err)
	}
	check(t, r.RemoveContainer(t.Context(), made.ID, 0))
	harness.Eventually(t, "the home is gone", func() bool {
		list, err := ownVolumes(t, r)
		return err == nil && len(list) == 0
	})
}
