package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
)

// testLabels puts codehub's labels on objects with other names, as a copy of a home from a
// backup has them. They count as no home and no workspace.
func testLabels(t *testing.T, c *cluster) {
	r := c.runtime(t)
	home := newHome(t, r)
	claim, err := r.home(t.Context(), home.Workspace, home.Claim)
	check(t, err)
	for _, name := range []string{"a-restored-copy", "zz-restored-copy"} {
		other := r.newClaim(name+"-"+string(home.Workspace), claim.Labels)
		other.Annotations = map[string]string{noteSettled: "true", noteRestored: "other"}
		must(t)(r.claims().Create(t.Context(), other, metav1.CreateOptions{}))
		for _, role := range []string{roleWorkspace, roleJob} {
			_, err := c.Client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name + "-" + role + "-" + string(home.Workspace), Labels: r.labels(role, home.Workspace, "start-1"), Annotations: map[string]string{noteKind: string(runtime.JobArchive)}},
				Spec:       corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.org/waits"}}, Containers: []corev1.Container{{Name: "it", Image: harness.TestImage()}}},
			}, metav1.CreateOptions{})
			check(t, err)
		}
	}
	r.podView.refresh()
	r.homeView.refresh()
	volumes, err := ownVolumes(t, r)
	if err != nil || len(volumes) != 1 || volumes[0] != volume(claim) {
		t.Errorf("Volumes: %+v, %v", volumes, err)
	}
	containers, err := r.Containers(t.Context())
	if err != nil || len(containers) > 0 {
		t.Errorf("Containers: %+v, %v", containers, err)
	}
	jobs, err := r.Jobs(t.Context())
	if err != nil || len(jobs) > 0 {
		t.Errorf("Jobs: %+v, %v", jobs, err)
	}
}
