package kubetest

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FakeLabel is the label, with the value "true", of the nodes of FakeNodes, and the key of their
// taint.
const FakeLabel = "codehub.test/fake"

//go:embed kwok.yaml
var kwokConfig string

// FakeNodes adds nodes that do not exist, with room for any number of Pods. A Pod there runs at
// once as far as the cluster knows, and has the address podIP, so that many Pods cost this
// machine no processes. The first call on a machine builds kwok, which takes two minutes.
func (c *Cluster) FakeNodes(ctx context.Context, n int, podIP string) {
	c.tb.Helper()
	file := filepath.Join(c.dir(), "kwok.yaml")
	if err := os.WriteFile(file, []byte(strings.NewReplacer("ADDRESS", podIP, "ARCHITECTURE", runtime.GOARCH).Replace(kwokConfig)), 0o600); err != nil {
		c.tb.Fatal(err)
	}
	c.run("kwok", file)
	for i := range n {
		_, err := c.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:        fmt.Sprintf("fake%d", i),
				Labels:      map[string]string{FakeLabel: "true", corev1.LabelHostname: fmt.Sprintf("fake%d", i), corev1.LabelArchStable: runtime.GOARCH},
				Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
			},
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: FakeLabel, Value: "true", Effect: corev1.TaintEffectNoSchedule}}},
		}, metav1.CreateOptions{})
		if err != nil {
			c.tb.Fatal(err)
		}
	}
}

// Requests counts the requests of a namespace's service accounts to the API server since a
// time, by verb and resource, such as "list pods". A watch counts when it begins.
func (c *Cluster) Requests(namespace string, since time.Time) map[string]int {
	c.tb.Helper()
	f, err := os.Open(filepath.Join(c.dir(), "log", "audit.json"))
	if err != nil {
		c.tb.Fatal(err)
	}
	defer f.Close()
	count := map[string]int{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Stage, Verb string
			User        struct{ Username string }
			ObjectRef   struct{ Resource, Subresource string }
			Received    time.Time `json:"requestReceivedTimestamp"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // the last line may be incomplete
		}
		// A watch has one event when it begins and one when it ends.
		if e.Received.Before(since) || e.Verb == "watch" && e.Stage != "ResponseStarted" || e.Verb != "watch" && e.Stage != "ResponseComplete" ||
			!strings.HasPrefix(e.User.Username, "system:serviceaccount:"+namespace+":") {
			continue
		}
		what := e.Verb + " " + e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			what += "/" + e.ObjectRef.Subresource
		}
		count[what]++
	}
	if err := lines.Err(); err != nil {
		c.tb.Fatal(err)
	}
	return count
}
