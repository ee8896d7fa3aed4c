package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/kube"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/kubetest"
	"codehub/internal/testing/s3test"
	"codehub/internal/workspace"
)

// kubeMore is how much longer a start may take in Kubernetes than a Pod with the same image
// and volume.
const kubeMore = 300 * time.Millisecond

// kubeNode is a node that mounts images; the first one of a test cluster cannot.
const kubeNode = "node2"

// kubeNamespace has the workspaces of a benchmark.
const kubeNamespace = "codehub-workspaces"

// kubeSettings returns the settings of a server on a cluster, whose account and bucket it makes.
func kubeSettings(tb *standIn, c *kubetest.Cluster, server, ide string) []string {
	store := s3test.Start(tb, "bench")
	return append(store.Env(),
		"CODEHUB_ARCHIVE_URL=s3://bench/homes?endpoint=http://"+c.Forward(strings.TrimPrefix(store.Endpoint, "http://"))+"&region=us-east-1&path-style=true",
		"CODEHUB_RUNTIME=kubernetes", "CODEHUB_KUBECONFIG="+c.WriteKubeconfig(c.Account(kubeNamespace, kube.Permissions())),
		"CODEHUB_SERVER_IMAGE="+server, "CODEHUB_IDE_IMAGE="+ide, "CODEHUB_STORAGE_CLASS="+kubetest.StorageClass, "CODEHUB_HOME_SIZE=1Gi", "CODEHUB_DELETE_GRACE=0s")
}

// kubeImages builds the images of the server and of an IDE that only answers.
func kubeImages(tb *standIn, binary string) (server, ide string) {
	server = kubetest.Image(tb, "kube-bench-server", map[string]string{kube.ServerBinary: binary, kube.AgentDir + "/" + account.AgentFile: binary + "-agent"})
	return server, kubetest.Image(tb, "kube-bench-ide", map[string]string{account.IDEStart: kubetest.Build(tb, "./images/testserver")})
}

// onCluster calls f with what stands in for a test, whose failures are its error.
func onCluster(ctx context.Context, f func(tb *standIn) error) (err error) {
	tb := &standIn{ctx: ctx}
	defer tb.end()
	defer func() {
		if why, ok := recover().(fatal); ok {
			err = errors.New(string(why))
		}
	}()
	return f(tb)
}

// kubeStart measures in turns, on a cluster of its own: a workspace from the request for its
// start until it is RUNNING, and a Pod with the same image and home from its creation until
// /healthz answers.
func kubeStart(ctx context.Context, o options) error {
	return onCluster(ctx, func(tb *standIn) error { return measureKubeStart(ctx, tb, o.binary, o.n) })
}

func measureKubeStart(ctx context.Context, tb *standIn, binary string, n int) error {
	image := env("CODEHUB_TEST_IMAGE", "codehub/testserver:latest")
	server, ide := kubeImages(tb, binary)
	c := kubetest.Start(tb, kubetest.Options{Nodes: 2, Images: []string{server, ide, image}})
	settings := append(kubeSettings(tb, c, server, ide), "CODEHUB_NODE_SELECTOR=kubernetes.io/hostname="+kubeNode)
	dir := tb.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil { // the database runs as a different user
		return err
	}
	s, err := proc.New(proc.Options{Binary: binary, DataDir: filepath.Join(dir, "data"), Env: settings})
	if err != nil {
		return err
	}
	defer s.Close()
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := s.Start(starting); err != nil {
		return err
	}
	api, err := login(ctx, s.URL)
	if err != nil {
		return err
	}
	id, err := api.create(ctx, "bench", image)
	if err != nil {
		return err
	}
	if err := api.stop(ctx, id); err != nil {
		return err
	}
	bare := barePod{client: c.Client, namespace: kubeNamespace, image: image, home: workspace.ID(id).VolumeName()}
	runs := 0
	took, err := timesInTurns(n, func() (time.Duration, error) {
		begun := time.Now()
		if err := api.setDesired(ctx, id, "RUNNING"); err != nil {
			return 0, err
		}
		if err := api.await(ctx, id, "RUNNING"); err != nil {
			return 0, err
		}
		took := time.Since(begun)
		if runs++; runs == n {
			if memory, err := c.Memory(ctx, kubeNamespace, workspace.ID(id).ContainerName()); err == nil {
				fmt.Printf("kubestart: memory of the agent (the first process): %v\n", memory)
			}
		}
		return took, api.stop(ctx, id)
	}, func() (time.Duration, error) { return bare.start(ctx) })
	if err != nil {
		return fmt.Errorf("%w\n%s", err, lastLines(s.Log(), 30))
	}
	ours, theirs := median(took[0]), median(took[1])
	fmt.Printf("kubestart: a workspace in Kubernetes %s from the request until RUNNING, a Pod with its image and home %s: %.2f times, %s more (at most %s): %s\n",
		ms(ours), ms(theirs), float64(ours)/float64(theirs), ms(ours-theirs), ms(kubeMore), verdict(ours-theirs <= kubeMore))
	return nil
}

// barePod is a Pod with a workspace's image and home, and nothing of codehub's.
type barePod struct {
	client      kubernetes.Interface
	namespace   string
	image, home string
}

// start returns the time until the Pod's program answers, and removes it.
func (b barePod) start(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	uid, no, grace, name := int64(workspace.ArchivedUID), false, int64(1), "bench-bare"
	pods := b.client.CoreV1().Pods(b.namespace)
	begun := time.Now()
	p, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"kubernetes.io/hostname": kubeNode}, RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{
				Name: "it", Image: b.image, ImagePullPolicy: corev1.PullNever, Command: []string{"/testserver"},
				SecurityContext: &corev1.SecurityContext{RunAsUser: &uid, RunAsGroup: &uid},
				VolumeMounts:    []corev1.VolumeMount{{Name: "home", MountPath: runtime.HomeDir, SubPath: "home"}},
			}},
			Volumes: []corev1.Volume{{Name: "home", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: b.home}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	events, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String(), ResourceVersion: p.ResourceVersion})
	if err != nil {
		return 0, err
	}
	defer events.Stop()
	for e := range events.ResultChan() {
		now, ok := e.Object.(*corev1.Pod)
		if !ok {
			return 0, fmt.Errorf("the watch of the Pod ended: %v", e.Object)
		}
		if now.Status.Phase == corev1.PodRunning && now.Status.PodIP != "" {
			p = now
			break
		}
	}
	if err := awaitHealth(ctx, "http://"+net.JoinHostPort(p.Status.PodIP, strconv.Itoa(runtime.IDEPort))+"/healthz"); err != nil {
		return 0, err
	}
	took := time.Since(begun)
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		return 0, err
	}
	for {
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return took, nil
		}
		if err != nil {
			return 0, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
