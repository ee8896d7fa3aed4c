package kube

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/registry"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/kubetest"
	"codehub/internal/testing/runtimetest"
	"codehub/internal/testing/runtimetest/script"
	"codehub/internal/workspace"
)

// The tests share one cluster: first those that leave it as it is, at the same time, then one by one
// those that change its policies, its control plane and its nodes. Its first node has an older
// container runtime, which cannot mount images.
func TestKubernetes(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	c := newCluster(t, 2)
	t.Run("together", func(t *testing.T) { testTogether(t, c) })
	t.Run("isolation is checked", func(t *testing.T) { testIsolationIsChecked(t, c) })
	t.Run("network isolation", func(t *testing.T) { testNetworkIsolation(t, c) })
	t.Run("outages", func(t *testing.T) { testOutages(t, c) })
}

func testTogether(t *testing.T, c *cluster) {
	t.Run("conforms", func(t *testing.T) {
		t.Parallel()
		runtimetest.Conformance(t, c.harness)
	})
	for name, test := range map[string]func(*testing.T, *cluster){
		"archives over the network":              testArchives,
		"servers that act at once":               testRivals,
		"a server that acts late":                testLate,
		"setting aside":                          testAside,
		"settings are tried":                     testTry,
		"settings are tried later":               testTryLater,
		"fields are left out":                    testDropped,
		"labels on other objects":                testLabels,
		"a claim removed by hand":                testRemovedClaim,
		"a check that cannot run":                testUnscheduledProbe,
		"refusals have reasons":                  testRefusals,
		"another program queues Pods":            testForeignGates,
		"a volume that is not attached":          testNotAttached,
		"a home that grows":                      testGrowth,
		"any image":                              testAnyImage,
		"sudo":                                   testSudo,
		"uninstall":                              testUninstall,
		"a private registry":                     testLogins,
		"slow pulls":                             testSlowPulls,
		"a workspace that another server opened": testAdmittedByAnother,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

// cluster is a cluster with a namespace for workspaces, in which codehub has the permissions
// that it needs and no others.
type cluster struct {
	*kubetest.Cluster
	config           *rest.Config // codehub's
	server, ideImage string
	saved            map[string][]byte // the two images, as docker save gives them
	program          string            // path of the executable of agent and server

	registry     *dockertest.Registry
	registryHost string // its name on the nodes

	listenOnMetadata func() // makes the address of clouds' metadata services answer
}

// metadata is the address of clouds' metadata services.
const metadata = "169.254.169.254"

// pullSecret is a Secret that codehub may read.
const pullSecret = "registry"

const namespace = "workspaces"

func newCluster(t *testing.T, nodes int) *cluster {
	t.Helper()
	ide := kubetest.Build(t, "../../../images/testserver")
	c := &cluster{
		ideImage: kubetest.Image(t, "kube-test-ide", map[string]string{account.IDEStart: ide, account.IDEShell: ide}),
	}
	program := kubetest.Build(t, "./testdata/helper")
	c.program = program
	c.server = kubetest.Image(t, "kube-test-server", map[string]string{ServerBinary: program, AgentDir + "/" + account.AgentFile: program})
	c.saved = map[string][]byte{c.ideImage: save(t, c.ideImage), c.server: save(t, c.server)}
	c.Cluster = kubetest.Start(t, kubetest.Options{Nodes: nodes, Images: []string{c.server, c.ideImage, harness.TestImage()}})
	c.config = c.Account(namespace, Permissions(pullSecret))
	c.registry, c.registryHost = c.newRegistry(t)
	c.listenOnMetadata = sync.OnceFunc(func() {
		for node := range nodes {
			c.ListenOn(node+1, metadata, "80")
		}
	})
	return c
}

// newRegistry starts a registry, and returns it and its name on the nodes.
func (c *cluster) newRegistry(t *testing.T) (*dockertest.Registry, string) {
	t.Helper()
	r := dockertest.NewRegistry(t)
	return r, c.Registry(r.Host())
}

// runtime returns a runtime of a new installation that watches the cluster.
func (c *cluster) runtime(t *testing.T) *Runtime {
	t.Helper()
	r, err := New(c.config, Config{
		Installation: uuid.NewString(), IDEImage: c.ideImage, PullTimeout: time.Hour,
		Registries: registry.Settings{Plain: []string{c.registryHost}, Private: []string{c.registryHost}},
		Settings:   Settings{Namespace: namespace, StorageClass: kubetest.StorageClass, Size: resource.MustParse("1Gi"), ServerImage: c.server, EphemeralSize: resource.MustParse("1Gi")},
		Log:        slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	check(t, err)
	r.adapt = func(p *corev1.Pod) {
		if p.Labels[labelRole] == roleJob {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "object", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
			mounts := &p.Spec.Containers[0].VolumeMounts
			*mounts = append(*mounts, corev1.VolumeMount{Name: "object", MountPath: runtime.JobObjectDir})
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-over, r.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (c *cluster) harness(t *testing.T) runtimetest.Harness {
	down, err := New(&rest.Config{Host: "https://127.0.0.1:1"}, Config{Installation: uuid.NewString(), Settings: Settings{Namespace: namespace}})
	check(t, err)
	h := direct{c: c, r: c.runtime(t)}
	return runtimetest.Harness{
		Runtime: h.r, Neighbour: c.runtime(t), Down: down,
		Remote: true, Storage: workspace.StorageKubernetes, Image: harness.TestImage(),
		Homes: runtimetest.Homes{
			Limits: true, Seed: seedOf(t, harness.TestImage()), Content: h.home, Take: h.takeVolume, HalfSeed: h.halfSeed, HalfRemove: h.halfRemove, Use: h.use, Edit: h.edit,
			PutForeign: h.putForeign, FillForeign: h.fillForeign, Aside: h.aside, TakeAside: h.takeAside,
		},
		Containers: runtimetest.Containers{HalfStart: h.halfStart, End: h.endContainer, Take: h.takeContainer, Environment: h.environment, Write: write},
		Jobs:       runtimetest.Jobs{Half: h.halfJob, End: h.endJob, Put: h.put, ReadOnlyCode: script.CodeFailed},
		Images: runtimetest.Images{
			Missing:  c.registryHost + "/codehub/missing:latest",
			Pullable: c.remoteImage, Republish: c.republish, Take: func(_ *testing.T, id string) { c.TakeImage(id) },
		},
		Remains: h.remains,
	}
}

// direct changes the cluster directly, bypassing the runtime. The watches of the runtime
// bring such a change a little later, so each function that makes one refreshes them.
type direct struct {
	c *cluster
	r *Runtime
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must is check for a call that also returns something.
func must(t *testing.T) func(_ any, err error) {
	return func(_ any, err error) {
		t.Helper()
		check(t, err)
	}
}

func (h direct) refresh() {
	h.r.podView.refresh()
	h.r.homeView.refresh()
	h.r.recordView.refresh()
}

// volumePath is the folder of a claim's volume on this machine.
func (h direct) volumePath(t *testing.T, claim string) string {
	t.Helper()
	var name string
	harness.Eventually(t, "the volume is made", func() bool {
		c, err := h.c.Client.CoreV1().PersistentVolumeClaims(namespace).Get(context.Background(), claim, metav1.GetOptions{})
		check(t, err)
		name = c.Spec.VolumeName
		return name != ""
	})
	v, err := h.c.Client.CoreV1().PersistentVolumes().Get(context.Background(), name, metav1.GetOptions{})
	check(t, err)
	return v.Spec.HostPath.Path
}

func (h direct) homePath(t *testing.T, id workspace.ID) string {
	t.Helper()
	return filepath.Join(h.volumePath(t, id.VolumeName()), homePath)
}

func (h direct) home(t *testing.T, id workspace.ID) []runtimetest.File {
	t.Helper()
	return readTree(t, h.homePath(t, id))
}

func readTree(t *testing.T, dir string) []runtimetest.File {
	t.Helper()
	var list []runtimetest.File
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		owner := info.Sys().(*syscall.Stat_t)
		f := runtimetest.File{Path: name, Mode: info.Mode() & kept, UID: int(owner.Uid), GID: int(owner.Gid)}
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			f.Content = string(content)
		}
		list = append(list, f)
		return nil
	})
	check(t, err)
	sortFiles(list)
	return list
}

func write(t *testing.T, _ workspace.ID, up runtime.Upstream, name, content string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+up.Addr+"/file?path="+name, strings.NewReader(content))
	check(t, err)
	req.AddCookie(&http.Cookie{Name: runtime.SecretCookie, Value: up.Secret})
	res, err := http.DefaultClient.Do(req)
	check(t, err)
	defer res.Body.Close()
	if answer, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("write %s: %s %s %v", name, res.Status, answer, err)
	}
}

func (h direct) halfSeed(t *testing.T, spec runtime.VolumeSpec) {
	t.Helper()
	must(t)(h.r.createHome(t.Context(), spec))
	h.putFile(t, h.homePath(t, spec.Workspace), "half", "ha")
}

func (h direct) putFile(t *testing.T, dir, name, content string) {
	t.Helper()
	check(t, os.MkdirAll(dir, 0o755))
	check(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
}

// present returns the home's claim.
func (h direct) present(t *testing.T, id workspace.ID, claim string) *corev1.PersistentVolumeClaim {
	t.Helper()
	home, err := h.r.home(t.Context(), id, claim)
	check(t, err)
	return home
}

func (h direct) halfStart(t *testing.T, spec runtime.ContainerSpec) {
	t.Helper()
	p, err := h.r.workspacePod(spec, h.present(t, spec.Workspace, spec.VolumeClaim), chosenImage{ref: spec.Image, name: spec.Image, policy: pullPolicy(spec.Image)}, facts{})
	check(t, err)
	must(t)(h.r.create(t.Context(), p))
}

func (h direct) halfJob(t *testing.T, spec runtime.JobSpec) string {
	t.Helper()
	if err := h.r.removeNamed(t.Context(), jobName(spec.Kind, spec.Workspace), roleJob); err != nil { // an earlier one
		t.Fatal(err)
	}
	p, err := h.r.create(t.Context(), h.r.jobPod(spec, h.present(t, spec.Workspace, spec.VolumeClaim)))
	check(t, err)
	return idOf(p)
}

func (h direct) halfRemove(t *testing.T, id workspace.ID, claim string) {
	t.Helper()
	err := h.r.change(t.Context(), h.present(t, id, claim), func(*corev1.PersistentVolumeClaim) (map[string]any, error) {
		return map[string]any{noteRemoving: "true"}, nil
	})
	check(t, err)
}

// use mounts the home in a Pod that is not codehub's. One that is not running waits for a
// gate of its own.
func (h direct) use(t *testing.T, id workspace.ID, name string, running bool) func() {
	t.Helper()
	pods := h.c.Client.CoreV1().Pods(namespace)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "it", Image: harness.TestImage(), ImagePullPolicy: corev1.PullIfNotPresent,
				VolumeMounts: []corev1.VolumeMount{{Name: "home", MountPath: "/mnt", ReadOnly: true}},
			}},
			Volumes: []corev1.Volume{claimVolume("home", id.VolumeName())},
		},
	}
	if !running {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.org/waits"}}
	}
	must(t)(pods.Create(t.Context(), p, metav1.CreateOptions{}))
	gone := false
	leave := func() {
		if !gone {
			gone = true
			h.deletePod(t, name)
		}
	}
	t.Cleanup(leave)
	if running {
		harness.Eventually(t, "the Pod runs", func() bool {
			now, err := pods.Get(t.Context(), name, metav1.GetOptions{})
			return err == nil && now.Status.Phase == corev1.PodRunning
		})
	}
	h.refresh()
	return leave
}

func (h direct) deletePod(t *testing.T, name string) {
	t.Helper()
	pods, ctx, second := h.c.Client.CoreV1().Pods(namespace), context.Background(), int64(1)
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &second}); err != nil && !isNotFound(err) {
		t.Fatal(err)
	}
	harness.Eventually(t, "the Pod is gone", func() bool {
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		return isNotFound(err)
	})
	h.refresh()
}

func (h direct) edit(t *testing.T, id workspace.ID, lines ...string) {
	t.Helper()
	input := strings.Join(append(lines, "exit 0"), "\n") + "\n"
	if code := script.Run(t.Context(), []byte(input), h.homePath(t, id), "/none", t.Output(), t.Output()); code != 0 {
		t.Fatalf("the script ended with %d", code)
	}
}

func (h direct) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	p, err := h.c.Client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
	check(t, err)
	return p
}

func (h direct) environment(t *testing.T, id workspace.ID) (string, map[string]string) {
	t.Helper()
	p := h.pod(t, id.ContainerName())
	return p.Spec.Hostname, h.c.Environ(p)
}

func (h direct) endContainer(t *testing.T, id workspace.ID) {
	t.Helper()
	h.end(t, id.ContainerName(), syscall.SIGTERM)
}

func (h direct) endJob(t *testing.T, jobID string) {
	t.Helper()
	name, _, _ := strings.Cut(jobID, "/")
	h.end(t, name, syscall.SIGKILL)
}

func (h direct) end(t *testing.T, name string, s syscall.Signal) {
	t.Helper()
	h.c.Kill(h.pod(t, name), s)
	harness.Eventually(t, "the Pod has ended", func() bool { return ended(h.pod(t, name)) })
	h.refresh()
}

func (h direct) put(t *testing.T, spec runtime.JobSpec, name string) {
	t.Helper()
	p := h.pod(t, jobName(spec.Kind, spec.Workspace))
	h.putFile(t, h.c.EmptyDir(p, "object"), name, "")
}

func (h direct) takeContainer(t *testing.T, id workspace.ID) {
	t.Helper()
	h.deletePod(t, id.ContainerName())
}

func (h direct) takeVolume(t *testing.T, id workspace.ID) {
	t.Helper()
	h.takeClaim(t, id.VolumeName())
}

func (h direct) takeAside(t *testing.T, name string) {
	t.Helper()
	h.takeClaim(t, name)
}

func (h direct) takeClaim(t *testing.T, name string) {
	t.Helper()
	claims, ctx := h.c.Client.CoreV1().PersistentVolumeClaims(namespace), context.Background()
	check(t, claims.Delete(ctx, name, metav1.DeleteOptions{}))
	harness.Eventually(t, "the volume is gone", func() bool {
		_, err := claims.Get(ctx, name, metav1.GetOptions{})
		return isNotFound(err)
	})
	h.refresh()
}

func (h direct) putForeign(t *testing.T, id workspace.ID) {
	t.Helper()
	must(t)(h.c.Client.CoreV1().PersistentVolumeClaims(namespace).Create(t.Context(), h.r.newClaim(id.VolumeName(), nil), metav1.CreateOptions{}))
	h.refresh()
}

func (h direct) fillForeign(t *testing.T, id workspace.ID, path, content string) {
	t.Helper()
	h.putFile(t, h.volumePath(t, id.VolumeName()), path, content)
}

func (h direct) aside(t *testing.T, name string) []runtimetest.File {
	t.Helper()
	return readTree(t, filepath.Join(h.volumePath(t, name), homePath))
}

func (h direct) remains(t *testing.T, id workspace.ID) []string {
	t.Helper()
	var names []string
	pods, err := h.c.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	check(t, err)
	for _, p := range pods.Items {
		names = append(names, p.Name)
	}
	claims, err := h.c.Client.CoreV1().PersistentVolumeClaims(namespace).List(t.Context(), metav1.ListOptions{})
	check(t, err)
	for _, c := range claims.Items {
		names = append(names, c.Name)
	}
	var left []string
	for _, name := range names {
		if strings.Contains(name, string(id)) {
			left = append(left, name)
		}
	}
	return left
}

// ownVolumes lists the homes of an installation without claims that have the name of a home and
// belong to none: other tests make those at the same time.
func ownVolumes(t *testing.T, r *Runtime) ([]runtime.Volume, error) {
	t.Helper()
	list, err := r.Volumes(t.Context())
	return slices.DeleteFunc(list, func(v runtime.Volume) bool { return v.Foreign }), err
}
