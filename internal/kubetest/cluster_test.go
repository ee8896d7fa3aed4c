package kubetest

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/harness"
)

// A Pod runs on every node and answers on its address; a part that is stopped is missed and
// comes back; Pods of a lost node are given up.
func TestCluster(t *testing.T) {
	t.Parallel()
	harness.NeedsDocker(t)
	c := Start(t, Options{Nodes: 2, Images: []string{harness.TestImage()}})
	pods := c.Client.CoreV1().Pods("default")
	for n := range 2 {
		name := fmt.Sprintf("pod%d", n+1)
		_, err := pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"kubernetes.io/hostname": fmt.Sprintf("node%d", n+1)},
				Containers:   []corev1.Container{{Name: "it", Image: harness.TestImage(), ImagePullPolicy: corev1.PullIfNotPresent}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	for n := range 2 {
		harness.Eventually(t, "the Pods run", func() bool {
			p, err := pods.Get(t.Context(), fmt.Sprintf("pod%d", n+1), metav1.GetOptions{})
			return err == nil && p.Status.Phase == corev1.PodRunning && p.Status.PodIP != ""
		})
	}

	c.Stop(APIServer)
	if _, err := pods.List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a stopped API server answers")
	}
	c.Start(APIServer)
	harness.Eventually(t, "the API server answers again", func() bool {
		_, err := pods.List(t.Context(), metav1.ListOptions{})
		return err == nil
	})

	c.LoseNode(2)
	harness.EventuallyWithin(t, 2*time.Minute, "the cluster notices that a node is lost", func() bool {
		n, err := c.Client.CoreV1().Nodes().Get(t.Context(), "node2", metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return false
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				return condition.Status == corev1.ConditionUnknown
			}
		}
		return false
	})
}
