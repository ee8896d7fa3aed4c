package kube

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/kubetest"
)

// chartPolicies returns the NetworkPolicies of workspaces as the chart renders them for a
// release codehub in the namespace codehub.
func chartPolicies(t *testing.T) string {
	t.Helper()
	out, err := kubetest.Helm(t, "template", "codehub", kubetest.Chart(), "--namespace", "codehub",
		"--set", "url=https://code.example.com,workspaceURL=https://*.ws.example.com,database.url=postgres://db/codehub,archive.url=s3://bucket,image.repository=r.test/server,ideImage=r.test/ide:1,defaultImage=r.test/workspace:1,workspaces.namespace="+namespace,
		"--show-only", "templates/workspace-networkpolicy.yaml")
	check(t, err)
	return out
}

// onNode creates a Pod of the test image on a node and returns it once it has an address.
func (c *cluster) onNode(t *testing.T, namespace, name string, node int, labels map[string]string) *corev1.Pod {
	t.Helper()
	pods := c.Client.CoreV1().Pods(namespace)
	_, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"kubernetes.io/hostname": fmt.Sprintf("node%d", node)},
			Containers:   []corev1.Container{{Name: "it", Image: harness.TestImage(), ImagePullPolicy: corev1.PullIfNotPresent}},
		},
	}, metav1.CreateOptions{})
	check(t, err)
	var p *corev1.Pod
	harness.EventuallyWithin(t, time.Minute, "the Pod runs", func() bool {
		p, err = pods.Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning && p.Status.PodIP != ""
	})
	return p
}

func (c *cluster) newNamespace(t *testing.T, name string) {
	t.Helper()
	_, err := c.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	check(t, err)
	harness.Eventually(t, "the namespace is ready", func() bool {
		_, err := c.Client.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
}

// connection is one that is open or not.
type connection struct{ from, to string }

// Without the chart's policies everything reaches everything. With them a workspace reaches
// DNS and the outside, and is reached by the servers, and there is nothing else. Without them
// again everything is open again.
func testNetworkIsolation(t *testing.T, c *cluster) {
	defer c.EnforcePolicies()()
	r := c.runtime(t)
	home := newHome(t, r)
	must(t)(r.StartContainer(t.Context(), startOf(home), nil))
	p, err := r.named(t.Context(), home.Workspace.ContainerName(), roleWorkspace)
	check(t, err)
	here, there := 1, 2
	if p.Spec.NodeName == "node2" {
		here, there = 2, 1
	}
	c.newNamespace(t, "codehub")
	role := func(name string) map[string]string { return map[string]string{labelRole: name} }
	servers := map[string]string{"app.kubernetes.io/name": "codehub", "app.kubernetes.io/instance": "codehub"}
	pods := map[string]*corev1.Pod{
		"the workspace":               p,
		"a neighbour":                 c.onNode(t, namespace, "neighbour", here, role(roleWorkspace)),
		"a neighbour on another node": c.onNode(t, namespace, "far", there, role(roleWorkspace)),
		"a job":                       c.onNode(t, namespace, "job", there, role(roleJob)),
		"a task":                      c.onNode(t, namespace, "task", here, role(roleTask)),
		"another namespace":           c.onNode(t, "default", "stranger", here, servers),
		"another namespace, far":      c.onNode(t, "default", "stranger-far", there, nil),
		"a server":                    c.onNode(t, "codehub", "server", there, servers),
		"the servers' namespace":      c.onNode(t, "codehub", "other", here, nil),
		"DNS":                         c.onNode(t, "kube-system", "dns", there, map[string]string{"k8s-app": "kube-dns"}),
		"another Pod of kube-system":  c.onNode(t, "kube-system", "system", there, nil),
	}
	c.ListenIn(pods["DNS"], ":53")
	c.ListenIn(pods["another Pod of kube-system"], ":53")
	service, err := c.Client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "stranger"},
		Spec:       corev1.ServiceSpec{Selector: servers, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(runtime.IDEPort)}}},
	}, metav1.CreateOptions{})
	check(t, err)
	c.listenOnMetadata()
	nodeIP := func(n int) string {
		node, err := c.Client.CoreV1().Nodes().Get(t.Context(), fmt.Sprintf("node%d", n), metav1.GetOptions{})
		check(t, err)
		return node.Status.Addresses[0].Address
	}
	addresses := map[string]string{
		"a service":                  service.Spec.ClusterIP + ":80",
		"the API server's service":   "10.96.0.1:443",
		"the API server":             strings.TrimPrefix(c.Config.Host, "https://"),
		"its node's kubelet":         net.JoinHostPort(nodeIP(here), "10250"),
		"the other node's kubelet":   net.JoinHostPort(nodeIP(there), "10250"),
		"the metadata service":       metadata + ":80",
		"the outside":                c.Outside(),
		"DNS":                        pods["DNS"].Status.PodIP + ":53",
		"another Pod of kube-system": pods["another Pod of kube-system"].Status.PodIP + ":53",
	}
	for name, p := range pods {
		if addresses[name] == "" {
			addresses[name] = address(p, runtime.IDEPort)
		}
	}

	// All connections from and to the workspace, and some of the other Pods of codehub's.
	want := map[connection]bool{}
	for to := range addresses {
		if to != "the workspace" {
			want[connection{"the workspace", to}] = to == "DNS" || to == "the outside"
		}
	}
	for from := range pods {
		if from != "the workspace" {
			want[connection{from, "the workspace"}] = from == "a server"
		}
	}
	want[connection{"the workspace", "the workspace"}] = true
	for _, to := range []string{"the outside", "the API server", "a service"} {
		want[connection{"a job", to}], want[connection{"a task", to}] = true, false
	}
	want[connection{"a server", "a job"}] = false
	// Others are as they were.
	want[connection{"another namespace", "a service"}] = true
	want[connection{"another namespace", "the API server"}] = true
	want[connection{"a server", "another namespace"}] = true

	check := func(when string, expected func(connection) bool) {
		t.Helper()
		var wrong []string
		harness.EventuallyWithin(t, time.Minute, when, func() bool {
			wrong = nil
			var mu sync.Mutex
			var group sync.WaitGroup
			for one := range want {
				group.Go(func() {
					if open := c.Reaches(pods[one.from], addresses[one.to]); open != expected(one) {
						mu.Lock()
						defer mu.Unlock()
						wrong = append(wrong, fmt.Sprintf("from %s to %s: %v", one.from, one.to, open))
					}
				})
			}
			group.Wait()
			if len(wrong) > 0 {
				t.Logf("%s: open are not as wanted:\n%s", when, strings.Join(wrong, "\n"))
			}
			return len(wrong) == 0
		})
	}
	policies := chartPolicies(t)
	all := func(connection) bool { return true }
	check("without policies everything is open", all)
	c.Apply(policies)
	check("the policies are enforced", func(one connection) bool { return want[one] })
	c.Delete(policies)
	check("without policies everything is open again", all)
}
