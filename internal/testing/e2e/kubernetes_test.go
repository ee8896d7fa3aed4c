package e2e

import (
	"context"
	"log/slog"
	"net"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"codehub/api"
	"codehub/internal/runtime"
	"codehub/internal/runtime/kube"
	buckets "codehub/internal/storage/bucket"
	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/kubetest"
	"codehub/internal/testing/s3test"
	"codehub/internal/workspace"
)

// clusterImages describe a cluster of Kubernetes. Without an IDE, the test server is it.
type clusterImages struct {
	nodes          int
	ide, workspace string
	further        []string // which the nodes have as well
}

// clusterSettings starts a cluster, and returns it and the settings of servers on it. What they
// archive is in the bucket.
func clusterSettings(t *testing.T, b *bucket, of clusterImages) (*kubetest.Cluster, []string) {
	t.Helper()
	server := kubetest.Image(t, "kube-e2e-server", map[string]string{kube.ServerBinary: env.binary, kube.AgentDir + "/codehub": env.binary + "-agent"})
	if of.ide == "" {
		of.ide = kubetest.Image(t, "kube-e2e-ide", map[string]string{"/opt/codehub-ide/start": kubetest.Build(t, "../../../images/testserver")})
	}
	c := kubetest.Start(t, kubetest.Options{Nodes: of.nodes, Images: append([]string{server, of.ide, of.workspace}, of.further...)})
	return c, append(bucketOn(c, b, b.s3.Endpoint),
		"CODEHUB_RUNTIME=kubernetes", "CODEHUB_KUBECONFIG="+c.WriteKubeconfig(c.Account(clusterNamespace, kube.Permissions())),
		"CODEHUB_SERVER_IMAGE="+server, "CODEHUB_IDE_IMAGE="+of.ide, "CODEHUB_DEFAULT_IMAGE="+of.workspace, "CODEHUB_STORAGE_CLASS="+kubetest.StorageClass, "CODEHUB_HOME_SIZE=1Gi",
		"CODEHUB_WORKSPACE_CPUS=0.5", "CODEHUB_WORKSPACE_MEMORY=256m", "CODEHUB_DELETE_GRACE=0s")
}

// clusterNamespace is the default of CODEHUB_KUBERNETES_NAMESPACE.
const clusterNamespace = "codehub-workspaces"

// Servers on a real cluster of three nodes, each an installation of its own: the life of a
// workspace, a project from its template to its code, and controllers that die at every step of
// archives.
func TestKubernetes(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	k, settings := clusterSettings(t, s3Bucket(t), clusterImages{nodes: 3, workspace: env.testImage, further: []string{env.slimImage}})
	tests := map[string]func(*testing.T, *kubetest.Cluster, []string){"a life": lifeOnCluster, "a project": projectOnCluster, "a slow pull": slowPullOnCluster, "killed at every step": killedOnCluster}
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
	// For the creation of the home as well, next to the other two tests on a busy machine: 30 s
	// were not enough. killedOnCluster takes longer than both.
	const deadline = time.Minute
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
	if _, err := s.api.Do(t.Context(), id, "update-image"); err != nil {
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

// killedOnCluster is TestKilledAtEveryStep on a cluster.
func killedOnCluster(t *testing.T, k *kubetest.Cluster, settings []string) {
	b := s3Bucket(t)
	l := newLives(t, b, clusterState{k}, workspace.StorageKubernetes)
	installation, err := l.db.DB.Installation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	of := func(name string) string {
		i := slices.IndexFunc(settings, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
		return settings[i][len(name)+1:]
	}
	cluster := kube.Settings{
		Kubeconfig: of("CODEHUB_KUBECONFIG"), Namespace: clusterNamespace, StorageClass: kubetest.StorageClass, HomeSize: "1Gi",
		Ephemeral: "1Gi", ServerImage: of("CODEHUB_SERVER_IMAGE"),
	}
	if err := cluster.Resolve(); err != nil {
		t.Fatal(err)
	}
	config, err := cluster.Connect()
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	inCluster := &s3test.Server{Endpoint: "http://" + k.Forward(strings.TrimPrefix(b.s3.Endpoint, "http://"))}
	l.open = func(log *slog.Logger) (runtime.Runtime, *buckets.Bucket, []func(context.Context) error, func()) {
		way := newLink(t, "unix", filepath.Join(scratch(t), "k.sock"), func() (net.Conn, error) { return net.Dial("tcp", server.Host) })
		own := rest.CopyConfig(config)
		own.Dial = func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", way.address) }
		rt, err := kube.New(own, kube.Config{Installation: installation, Settings: cluster, IDEImage: of("CODEHUB_IDE_IMAGE"), PullTimeout: time.Hour, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { rt.Close() })
		archives := l.checked(buckets.Config{Store: fixture.OpenS3(t, inCluster, "homes/team"), Installation: installation, Version: "test", Log: log})
		return rt, archives, []func(context.Context) error{rt.Run}, way.cut
	}
	l.killAtEveryStep(2, newRand(t, 21))
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
	if err != nil || failed != nil || !strings.Contains(string(out), "Removed record codehub-mark-") || !strings.Contains(string(out), "Homes and set-aside volumes kept: 0.") || len(left.Items) > 0 {
		t.Errorf("uninstall: %v, %v, %s", err, failed, out)
	}
}
