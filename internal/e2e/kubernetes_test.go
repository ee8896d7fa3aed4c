package e2e

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/harness"
	"codehub/internal/kubetest"
	"codehub/internal/runtime/kube"
)

// The life of a workspace on a real cluster: created, used through the proxy, archived in a
// bucket, restored, stopped, started and deleted.
func TestKubernetesJourney(t *testing.T) {
	t.Parallel()
	const namespace = "codehub-workspaces" // the default
	server := kubetest.Image(t, "kube-e2e-server", map[string]string{kube.ServerBinary: env.binary, kube.AgentDir + "/codehub": env.binary + "-agent"})
	ide := kubetest.Image(t, "kube-e2e-ide", map[string]string{"/opt/codehub-ide/start": kubetest.Build(t, "../../images/testserver")})
	c := kubetest.Start(t, kubetest.Options{Nodes: 2, Images: []string{server, ide, env.testImage}})
	b := s3Bucket(t)
	settings := append(b.settingsVia("http://"+c.Forward(b.s3.Endpoint[len("http://"):])),
		"CODEHUB_RUNTIME=kubernetes", "CODEHUB_KUBECONFIG="+c.WriteKubeconfig(c.Account(namespace, kube.Permissions())),
		"CODEHUB_SERVER_IMAGE="+server, "CODEHUB_IDE_IMAGE="+ide, "CODEHUB_STORAGE_CLASS="+kubetest.StorageClass, "CODEHUB_HOME_SIZE=1Gi",
		"CODEHUB_WORKSPACE_CPUS=0.5", "CODEHUB_WORKSPACE_MEMORY=256m", "CODEHUB_DELETE_GRACE=0s")
	s := startQuick(t, settings...)
	id := s.createDesired("demo", "RUNNING")
	s.awaitPhase(id, "RUNNING")
	s.write(id, "kept")
	s.expect(id, "kept")
	s.setDesired(id, "ARCHIVED")
	s.awaitPhase(id, "ARCHIVED")
	s.setDesired(id, "RUNNING")
	s.awaitPhase(id, "RUNNING")
	s.expect(id, "kept")
	s.setDesired(id, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	s.setDesired(id, "RUNNING")
	s.awaitPhase(id, "RUNNING")
	s.expect(id, "kept")
	if _, err := s.api.Delete(t.Context(), id, true); err != nil {
		t.Fatal(err)
	}
	harness.EventuallyWithin(t, time.Minute, "Pod and home are gone", func() bool {
		pods, err := c.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claims, err := c.Client.CoreV1().PersistentVolumeClaims(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(pods.Items)+len(claims.Items) == 0
	})
}
