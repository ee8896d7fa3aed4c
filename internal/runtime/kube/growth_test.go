package kube

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// testGrowth starts a workspace with a larger size than its home has, where the storage class
// permits that. The test resizes the volume as the storage's external-resizer does. Until then
// the home has its old limit, and the workspace runs all the same. A smaller size changes nothing.
func testGrowth(t *testing.T, c *cluster) {
	class, allowed := "growing-"+uuid.NewString()[:8], true
	if _, err := c.Client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "kubernetes.io/host-path", AllowVolumeExpansion: &allowed,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r := c.runtime(t)
	r.cfg.StorageClass = class
	home := runtime.VolumeSpec{Workspace: workspace.ID(uuid.NewString()), Storage: workspace.StorageKubernetes, Claim: "home-1", Image: harness.TestImage(), Disk: 1 << 30}
	check(t, r.CreateVolume(t.Context(), home, nil))
	claims := c.Client.CoreV1().PersistentVolumeClaims(namespace)
	asked := func() int64 {
		t.Helper()
		claim, err := claims.Get(t.Context(), home.Workspace.VolumeName(), metav1.GetOptions{})
		check(t, err)
		size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		return size.Value()
	}
	limit := func() int64 {
		t.Helper()
		list, err := ownVolumes(t, r)
		if err != nil || len(list) != 1 {
			t.Fatalf("volumes: %+v, %v, want one", list, err)
		}
		return list[0].Limit
	}
	start := func(claim string, disk int64) runtime.Container {
		t.Helper()
		spec := startOf(home)
		spec.Claim, spec.Size.Disk = claim, disk
		made, err := r.StartContainer(t.Context(), spec, nil)
		check(t, err)
		return made
	}

	made := start("start-1", 2<<30)
	if asked() != 2<<30 || limit() != 1<<30 {
		t.Errorf("before the volume is resized: %d bytes are requested, the limit is %d", asked(), limit())
	}
	claim, err := claims.Get(t.Context(), home.Workspace.VolumeName(), metav1.GetOptions{})
	check(t, err)
	size := resource.NewQuantity(2<<30, resource.BinarySI).String()
	must(t)(c.Client.CoreV1().PersistentVolumes().Patch(t.Context(), claim.Spec.VolumeName, types.MergePatchType, fmt.Appendf(nil, `{"spec": {"capacity": {"storage": %q}}}`, size), metav1.PatchOptions{}))
	must(t)(claims.Patch(t.Context(), claim.Name, types.MergePatchType, fmt.Appendf(nil, `{"status": {"capacity": {"storage": %q}}}`, size), metav1.PatchOptions{}, "status"))
	harness.Eventually(t, "the home has the larger limit", func() bool { return limit() == 2<<30 })
	if list, err := r.Containers(t.Context()); err != nil || len(list) != 1 || list[0].ID != made.ID || list[0].State != runtime.ContainerRunning {
		t.Errorf("the workspace: %+v, %v", list, err)
	}

	check(t, r.RemoveContainer(t.Context(), made.ID, 0))
	start("start-2", 1<<30)
	if asked() != 2<<30 || limit() != 2<<30 {
		t.Errorf("with a smaller size: %d bytes are requested, the limit is %d", asked(), limit())
	}
}
