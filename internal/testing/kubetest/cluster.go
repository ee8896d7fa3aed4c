// Package kubetest starts a real Kubernetes cluster on this machine for tests: one control
// plane, and nodes with a network namespace, a containerd and a kubelet of their own. The
// work is done by scripts/kube.sh, which says what the cluster is made of.
package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"codehub/internal/testing/harness"
)

// Part is a process of the cluster's control plane.
type Part string

// APIServer is the cluster's API server.
const APIServer Part = "apiserver"

// Kubelet is the kubelet of a node.
func Kubelet(node int) Part { return Part(fmt.Sprintf("node%d-kubelet", node)) }

// Options are what a cluster starts with.
type Options struct {
	Nodes int // at least 1, at most 9; node n is named "node" + n
	// Images of the machine's Docker that every node gets. A Pod that uses one with the tag
	// latest has to ask for PullIfNotPresent.
	Images []string
}

// Cluster is a running cluster. Its methods fail the test that started it.
type Cluster struct {
	Kubeconfig string // path of the administrator's
	Config     *rest.Config
	Client     kubernetes.Interface
	Address    string // of this machine, as Pods and nodes see it

	tb     testing.TB
	number int
	images string // file of `docker save`; empty: none
}

// clusters is how many can run on the machine at the same time; see scripts/kube.sh.
const clusters = 10

// Start starts a cluster that ends with the test. It takes root. The first call on a
// machine builds Kubernetes, which takes minutes.
func Start(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Fatal("this test runs a Kubernetes cluster, which takes root")
	}
	c := &Cluster{tb: tb, number: -1}
	for n := range clusters {
		if c.take(n) {
			c.number = n
			break
		}
	}
	if c.number < 0 {
		tb.Fatalf("%d clusters run on this machine already", clusters)
	}
	if len(o.Images) > 0 {
		c.images = filepath.Join(tb.TempDir(), "images.tar")
		if out, err := exec.Command("docker", append([]string{"save", "--output", c.images}, o.Images...)...).CombinedOutput(); err != nil {
			tb.Fatalf("docker save: %v: %s", err, out)
		}
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			c.logTails()
		}
		c.run("down")
	})
	c.Kubeconfig = lastLine(c.run("up", strconv.Itoa(o.Nodes)))
	c.Address = fmt.Sprintf("10.%d.0.1", 200+c.number)
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		tb.Fatal(err)
	}
	config.QPS, config.Burst = -1, 0 // no limit of the client's own
	c.Config = config
	if c.Client, err = kubernetes.NewForConfig(config); err != nil {
		tb.Fatal(err)
	}
	return c
}

// take locks a cluster's number until the test ends.
func (c *Cluster) take(n int) bool {
	f, err := os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf("codehub-kube-%d.lock", n)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		c.tb.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return false
	}
	c.tb.Cleanup(func() { f.Close() })
	return true
}

// Stop kills a part of the control plane, or a kubelet.
func (c *Cluster) Stop(p Part) { c.tb.Helper(); c.run("part", string(p), "stop") }

// Start starts it again.
func (c *Cluster) Start(p Part) { c.tb.Helper(); c.run("part", string(p), "start") }

// CutNode cuts a node off the network; its containers go on. Nothing tells the cluster.
func (c *Cluster) CutNode(node int) { c.tb.Helper(); c.link(node, "down") }

// HealNode connects a cut node again.
func (c *Cluster) HealNode(node int) { c.tb.Helper(); c.link(node, "up") }

// LoseNode removes a node with everything that runs on it, as a machine that burnt down.
// Nothing tells the cluster.
func (c *Cluster) LoseNode(node int) { c.tb.Helper(); c.run("nodedown", strconv.Itoa(node)) }

func (c *Cluster) link(node int, state string) {
	c.tb.Helper()
	name := fmt.Sprintf("ck%d-%d", c.number, node)
	if out, err := exec.Command("ip", "link", "set", name, state).CombinedOutput(); err != nil {
		c.tb.Fatalf("ip link set %s %s: %v: %s", name, state, err, out)
	}
}

// run runs the script and returns what it prints.
func (c *Cluster) run(args ...string) string {
	c.tb.Helper()
	cmd := exec.Command(script(), args...)
	cmd.Env = append(os.Environ(), "KUBE_NUMBER="+strconv.Itoa(c.number), "KUBE_IMAGES="+c.images)
	var out, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failed
	if err := cmd.Run(); err != nil {
		c.tb.Fatalf("kube.sh %s: %v: %s", strings.Join(args, " "), err, failed.String())
	}
	return out.String()
}

// logTails logs the end of every log of the cluster.
func (c *Cluster) logTails() {
	files, _ := filepath.Glob(filepath.Join(c.dir(), "log", "*.log"))
	for _, name := range files {
		b, err := os.ReadFile(name)
		c.tb.Logf("the end of %s (%v):\n%s", filepath.Base(name), err, b[max(0, len(b)-3000):])
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// script is the path of scripts/kube.sh.
func script() string {
	root, err := harness.Root()
	if err != nil {
		panic(err)
	}
	return filepath.Join(root, "scripts", "kube.sh")
}

// Reaches says whether an HTTP server at host:port answers a process in the Pod's network,
// within 2 s.
func (c *Cluster) Reaches(pod *corev1.Pod, address string) bool {
	c.tb.Helper()
	pid := c.pid(pod)
	return exec.Command("nsenter", "--target", pid, "--net", "curl", "--silent", "--insecure", "--max-time", "2", "--output", "/dev/null", "http://"+address+"/").Run() == nil
}

// Kill sends a signal to the first process of the Pod's first container.
func (c *Cluster) Kill(pod *corev1.Pod, s syscall.Signal) {
	c.tb.Helper()
	if err := c.TryKill(pod, s); err != nil {
		c.tb.Fatalf("send a signal to Pod %s: %v", pod.Name, err)
	}
}

// ErrNoProcess: the Pod has not begun, or has ended.
var ErrNoProcess = errors.New("the Pod has no process")

// TryKill is Kill for a Pod that may have no process, which is ErrNoProcess.
func (c *Cluster) TryKill(pod *corev1.Pod, s syscall.Signal) error {
	text, err := c.process(pod)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, s); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return ErrNoProcess
}

// Memory returns figures of the memory of a Pod's first container, by the names of the kernel.
func (c *Cluster) Memory(ctx context.Context, namespace, name string) (map[string]string, error) {
	pod, err := c.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	status, err := os.ReadFile("/proc/" + c.pid(pod) + "/status")
	if err != nil {
		return nil, err
	}
	figures := map[string]string{}
	for line := range strings.Lines(string(status)) {
		if name, value, _ := strings.Cut(line, ":"); strings.HasPrefix(name, "Rss") {
			figures[name] = strings.TrimSpace(value)
		}
	}
	return figures, nil
}

// Environ returns the variables with which the first process of a Pod's first container was
// started.
func (c *Cluster) Environ(pod *corev1.Pod) map[string]string {
	c.tb.Helper()
	text, err := os.ReadFile("/proc/" + c.pid(pod) + "/environ")
	if err != nil {
		c.tb.Fatalf("read the environment of Pod %s: %v", pod.Name, err)
	}
	env := map[string]string{}
	for variable := range strings.SplitSeq(strings.TrimSuffix(string(text), "\x00"), "\x00") {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	return env
}

// EmptyDir is the path on this machine of a Pod's volume of that kind.
func (c *Cluster) EmptyDir(pod *corev1.Pod, volume string) string {
	return filepath.Join(c.dir(), pod.Spec.NodeName, "kubelet", "pods", string(pod.UID), "volumes", "kubernetes.io~empty-dir", volume)
}

// pid returns the process id of the Pod's first container.
func (c *Cluster) pid(pod *corev1.Pod) string {
	c.tb.Helper()
	pid, err := c.process(pod)
	if err != nil {
		c.tb.Fatal(err)
	}
	return pid
}

// process returns the process id of the Pod's first container.
func (c *Cluster) process(pod *corev1.Pod) (pid string, err error) {
	if len(pod.Status.ContainerStatuses) == 0 {
		return "", fmt.Errorf("%s: %w: it has no container", pod.Name, ErrNoProcess)
	}
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	socket := filepath.Join(c.dir(), pod.Spec.NodeName, "containerd.sock")
	out, err := exec.Command("ctr", "-a", socket, "-n", "k8s.io", "tasks", "ls").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ctr tasks ls: %w: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == id && fields[2] == "RUNNING" {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("%s: %w: %s", pod.Name, ErrNoProcess, out)
}

// dir is where the cluster keeps its state; see scripts/kube.sh.
func (c *Cluster) dir() string { return filepath.Join("/var/lib/codehub-kube", strconv.Itoa(c.number)) }
