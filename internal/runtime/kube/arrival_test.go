package kube

import (
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"codehub/internal/harness"
)

// counted counts the requests to a cluster by method and kind of object.
type counted struct {
	next http.RoundTripper

	mu   sync.Mutex
	seen map[string]int
}

func (c *counted) RoundTrip(req *http.Request) (*http.Response, error) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/") // api/v1/namespaces/{namespace}/{kind}/…
	what := req.Method
	if req.URL.Query().Get("watch") != "" {
		what = "WATCH"
	}
	if len(parts) > 4 {
		what += " " + parts[4]
	}
	c.mu.Lock()
	c.seen[what]++
	c.mu.Unlock()
	return c.next.RoundTrip(req)
}

func (c *counted) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := c.seen
	c.seen = map[string]int{}
	return seen
}

// testRequests holds what a start of a workspace whose image is known costs the cluster: requests,
// and no managed fields.
func testRequests(t *testing.T, c *cluster) {
	count := &counted{seen: map[string]int{}}
	config := rest.CopyConfig(c.config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		count.next = next
		return count
	})
	own := *c
	own.config = config
	r := own.runtime(t)
	r.noImageVolumes.Store(true) // the second Pod may be on the node that cannot mount images
	first, second := newHome(t, r), newHome(t, r)
	if _, err := r.StartContainer(t.Context(), startOf(first), nil); err != nil { // reads what is to be known of the image
		t.Fatal(err)
	}
	harness.Eventually(t, "the watches are open", func() bool {
		return r.podView.follows() && r.homeView.follows() && r.recordView.follows() && r.policyView.follows()
	})
	count.take()
	began := time.Now()
	if _, err := r.StartContainer(t.Context(), startOf(second), nil); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	want := map[string]int{"POST pods": 1, "GET persistentvolumeclaims": 1, "PATCH pods": 1}
	seen := count.take()
	if took > explainAfter { // a slow node: the events were listed as well
		delete(seen, "GET events")
		delete(seen, "GET pods")
	}
	if !maps.Equal(seen, want) {
		t.Errorf("a start of %s made the requests %v, want %v", took, seen, want)
	}
	now, err := c.Client.CoreV1().Pods(namespace).Get(t.Context(), second.Workspace.ContainerName(), metav1.GetOptions{})
	if err != nil || len(now.ManagedFields) > 0 {
		t.Errorf("the Pod has managed fields: %v, %v", now.ManagedFields, err)
	}
}

// testOpened removes Pods that had a gate when they were read, and have none any more. They
// are not removed as if nothing of them ran.
func testOpened(t *testing.T, c *cluster) {
	r := c.runtime(t)
	home := newHome(t, r)
	volume, err := r.home(t.Context(), home.Workspace, home.Claim)
	if err != nil {
		t.Fatal(err)
	}
	before, err := r.create(t.Context(), r.jobPod(archiveOf(home), volume))
	if err != nil {
		t.Fatal(err)
	}
	opened, err := r.open(t.Context(), before)
	if err != nil {
		t.Fatal(err)
	}
	now, err := r.removeGated(t.Context(), before)
	if err != nil || now == nil || now.UID != before.UID || gated(now) {
		t.Fatalf("the Pod that was opened: %v, %v", now, err)
	}
	if there, err := r.pods().Get(t.Context(), opened.Name, metav1.GetOptions{}); err != nil || there.DeletionTimestamp != nil {
		t.Fatalf("the Pod that was opened is being removed: %v", err)
	}
	if err := r.remove(t.Context(), before, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.StartContainer(t.Context(), startOf(home), nil); err != nil {
		t.Errorf("start after the removal: %v", err)
	}
}

// testAdmittedByAnother lets a server be suspended before it opens its workspace's Pod, which
// another server opens meanwhile. The first leaves it alone.
func testAdmittedByAnother(t *testing.T, c *cluster) {
	a := c.runtime(t)
	b := c.twin(t, a)
	home := newHome(t, a)
	if _, err := a.StartContainer(t.Context(), startOf(newHome(t, a)), nil); err != nil { // reads what is to be known of the image
		t.Fatal(err)
	}
	volume, err := a.home(t.Context(), home.Workspace, home.Claim)
	if err != nil {
		t.Fatal(err)
	}
	late, err := a.createWorkspace(t.Context(), startOf(home), volume, chosenImage{name: home.Image, policy: corev1.PullIfNotPresent}, nil)
	if err != nil {
		t.Fatal(err)
	}
	started, err := b.StartContainer(t.Context(), startOf(home), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.admit(t.Context(), late, nil); err == nil {
		t.Error("a Pod was opened twice")
	}
	if now, err := a.pods().Get(t.Context(), late.Name, metav1.GetOptions{}); err != nil || idOf(now) != started.ID || now.DeletionTimestamp != nil {
		t.Errorf("the workspace that another server started is gone: %v", err)
	}
}
