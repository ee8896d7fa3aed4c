package e2e

import (
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/api"
	"codehub/internal/archive/archivetest"
	"codehub/internal/dockertest"
	"codehub/internal/harness"
	"codehub/internal/kubetest"
	"codehub/internal/runtime/kube"
)

// clusterImages describe a cluster of Kubernetes. Without an IDE, the test server is it.
type clusterImages struct {
	nodes          int
	ide, workspace string
}

// clusterSettings starts a cluster, and returns it and the settings of servers on it. What they
// archive is in the bucket.
func clusterSettings(t *testing.T, b *bucket, of clusterImages) (*kubetest.Cluster, []string) {
	t.Helper()
	server := kubetest.Image(t, "kube-e2e-server", map[string]string{kube.ServerBinary: env.binary, kube.AgentDir + "/codehub": env.binary + "-agent"})
	if of.ide == "" {
		of.ide = kubetest.Image(t, "kube-e2e-ide", map[string]string{"/opt/codehub-ide/start": kubetest.Build(t, "../../images/testserver")})
	}
	c := kubetest.Start(t, kubetest.Options{Nodes: of.nodes, Images: []string{server, of.ide, of.workspace}})
	return c, append(bucketOn(c, b, b.s3.Endpoint),
		"CODEHUB_RUNTIME=kubernetes", "CODEHUB_KUBECONFIG="+c.WriteKubeconfig(c.Account(clusterNamespace, kube.Permissions())),
		"CODEHUB_SERVER_IMAGE="+server, "CODEHUB_IDE_IMAGE="+of.ide, "CODEHUB_DEFAULT_IMAGE="+of.workspace, "CODEHUB_STORAGE_CLASS="+kubetest.StorageClass, "CODEHUB_HOME_SIZE=1Gi",
		"CODEHUB_WORKSPACE_CPUS=0.5", "CODEHUB_WORKSPACE_MEMORY=256m", "CODEHUB_DELETE_GRACE=0s")
}

// clusterNamespace is the default of CODEHUB_KUBERNETES_NAMESPACE.
const clusterNamespace = "codehub-workspaces"

// Servers on a real cluster of three nodes, each an installation of its own: the life of a
// workspace, and a server that is killed at every step of archives. In the soak, SOAK is the
// least number of kills, and of random lives of workspaces.
func TestKubernetes(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	k, settings := clusterSettings(t, s3Bucket(t), clusterImages{nodes: 3, workspace: env.testImage})
	tests := map[string]func(*testing.T, *kubetest.Cluster, []string){"a life": lifeOnCluster, "a slow pull": slowPullOnCluster, "killed at every step": killedOnCluster}
	if soaking {
		tests["random lives"] = randomOnCluster
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, k, settings)
		})
	}
}

// bucketOn returns the settings for a bucket at an endpoint that this machine reaches, and the
// cluster does by way of it.
func bucketOn(k *kubetest.Cluster, b *bucket, endpoint string) []string {
	return b.settingsVia("http://" + k.Forward(strings.TrimPrefix(endpoint, "http://")))
}

// lifeOnCluster creates a workspace, uses it through the proxy, archives it in a bucket, and
// restores, stops, starts and deletes it.
func lifeOnCluster(t *testing.T, k *kubetest.Cluster, settings []string) {
	s := startQuick(t, slices.Clip(settings)...)
	s.runtime = clusterState{k}
	id := s.createDesired("demo", "RUNNING")
	s.awaitPhase(id, "RUNNING")
	s.write(id, "kept")
	s.expect(id, "kept")
	s.setDesired(id, "ARCHIVED")
	s.awaitPhase(id, "ARCHIVED")
	s.expectNoHome(id)
	s.setDesired(id, "RUNNING")
	s.awaitPhase(id, "RUNNING")
	s.expect(id, "kept")
	s.setDesired(id, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	s.setDesired(id, "RUNNING")
	s.awaitPhase(id, "RUNNING")
	s.expect(id, "kept")
	s.discard(id)
	s.expectNothingLeft()
}

// slowPullOnCluster starts a workspace whose image a node pulls for longer than the deadline of
// a start.
func slowPullOnCluster(t *testing.T, k *kubetest.Cluster, settings []string) {
	const deadline = 30 * time.Second // for the creation of the home as well
	registry := dockertest.NewRegistry(t)
	host := k.Registry(registry.Host())
	saved, err := exec.Command("docker", "save", env.testImage).Output()
	if err != nil {
		t.Fatal(err)
	}
	publish := func() string {
		ref, _ := registry.AddSaved("slow", saved, uuid.NewString())
		return host + strings.TrimPrefix(ref, registry.Host())
	}
	s := startQuick(t, append(slices.Clip(settings), "CODEHUB_PLAIN_REGISTRIES="+host, "CODEHUB_START_TIMEOUT="+deadline.String())...)
	s.runtime = clusterState{k}
	standby := "STANDBY"
	id := s.create(api.CreateWorkspace{Name: "slow", ImageRef: publish(), DesiredState: &standby})
	s.awaitPhase(id, "STANDBY")
	release := registry.Hold(false)
	publish()
	if _, err := s.api.UpdateImage(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s.setDesired(id, "RUNNING")
	s.await(id, "the step pulling", func(w api.Workspace) bool { return w.Progress != nil && w.Progress.Step == "pulling" })
	time.Sleep(time.Until(began.Add(deadline + 3*time.Second)))
	w, err := s.api.Get(t.Context(), id)
	if err != nil || w.Operation != "STARTING" || w.Progress == nil || w.Progress.Step != "pulling" {
		t.Fatalf("after the deadline: %+v, %v", w, err)
	}
	release()
	s.awaitPhase(id, "RUNNING")
	s.discard(id)
}

// killedOnCluster is TestKilledAtEveryStep on a cluster. The soak goes on with
// TestKilledAtEveryStepAgain.
func killedOnCluster(t *testing.T, k *kubetest.Cluster, settings []string) {
	b, rng := s3Bucket(t), newRand(t, 21)
	f := startWithFailpoints(t, slices.Concat(settings, bucketOn(k, b, b.s3.Endpoint), []string{"MAX_RUNNING_PER_USER=0"})...)
	f.runtime = clusterState{k}
	kills := f.killAtEveryStep(b, allSteps(), parallelJobs, rng)
	f.expectNothingLeft()
	for kills < soakRounds(t, 1) {
		f.stopIfFailed()
		kills += f.killAgainAtEveryStep(b, allSteps(), rng)
		f.expectNothingLeft()
		t.Logf("%d kills of the server", kills)
	}
}

// randomOnCluster is TestRandomLives on a cluster.
func randomOnCluster(t *testing.T, k *kubetest.Cluster, settings []string) {
	lives, rng := soakRounds(t, 1), newRand(t, 22)
	seed := rng.Uint64()
	b := s3Bucket(t)
	w := newWorld(t, b, clusterState{k}, func(endpoint string) []string {
		return slices.Concat(settings, bucketOn(k, b, endpoint))
	}, rng)
	var next atomic.Int64
	w.runLives(t, &next, int64(lives), seed)
}

// A home with every kind of entry that is hard to preserve moves from Docker to a cluster and
// back, and is the same there. The cluster restores and archives it meanwhile, and its archive
// has the digest of Docker's.
func TestMoveToKubernetesAndBack(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	source, back, shared := startMovable(t, folderBucket(t)), startMovable(t, folderBucket(t)), s3Bucket(t)
	c, settings := clusterSettings(t, shared, clusterImages{nodes: 2, workspace: env.testImage})
	onCluster := &bucket{dir: shared.dir, s3: shared.s3, settings: settings}
	cluster := startMovable(t, onCluster)

	id := source.create(api.CreateWorkspace{Name: "odd"})
	source.awaitPhase(id, "RUNNING")
	source.setDesired(id, "STANDBY") // what belongs to others from now on stays theirs
	source.awaitPhase(id, "STANDBY")
	archivetest.Corpus(t, source.homeFolder(id))
	home := source.readHome(id)
	source.allowMoves()
	there, code := cluster.move(source, "--workspace", id, "--join-users", "--remove")
	if code != 0 || len(there.Workspaces) != 1 {
		t.Fatalf("move: exit code %d, %+v", code, there)
	}
	cluster.awaitArchived(onCluster, id, home)

	cluster.setDesired(id, "STANDBY")
	cluster.awaitPhase(id, "STANDBY")
	cluster.setDesired(id, "ARCHIVED")
	w := cluster.awaitArchived(onCluster, id, home)
	_, meta, err := onCluster.unpack(t, *w.ArchiveKey)
	if err != nil || *w.ArchiveKey == there.Workspaces[0].Home.Key || meta.SHA256 != there.Workspaces[0].Home.SHA256 {
		t.Errorf("the cluster's archive %s: %+v, %v; Docker's: %+v", *w.ArchiveKey, meta, err, there.Workspaces[0].Home)
	}

	cluster.allowMoves()
	again, code := back.move(cluster, "--workspace", id, "--join-users", "--remove")
	if code != 0 || len(again.Workspaces) != 1 || again.Workspaces[0].Home.SHA256 != meta.SHA256 {
		t.Fatalf("move back: exit code %d, %+v", code, again)
	}
	back.awaitArchived(back.bucket, id, home)
	back.setDesired(id, "STANDBY")
	back.awaitRestored(id, home)

	cluster.Kill()
	out, err := cluster.command(t.Context(), env.binary, "uninstall", "--yes").CombinedOutput()
	left, failed := c.Client.CoreV1().ConfigMaps(clusterNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: "codehub.dev/installation"})
	if err != nil || failed != nil || !strings.Contains(string(out), "Removed record codehub-mark-") || !strings.Contains(string(out), "0 homes and set-aside volumes kept") || len(left.Items) > 0 {
		t.Errorf("uninstall: %v, %v, %s", err, failed, out)
	}
}
