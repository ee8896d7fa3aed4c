package kube

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"codehub/internal/base/health"
	"codehub/internal/testing/harness"
)

// testTry asks the cluster about settings that it accepts, and about some that it refuses.
func testTry(t *testing.T, c *cluster) {
	r := c.runtime(t)
	if err := r.Try(t.Context()); err != nil {
		t.Error(err)
	}
	r.cfg.Patch = []byte(`{"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}}`)
	if err := r.Try(t.Context()); err == nil || !strings.Contains(err.Error(), "PodSecurity") {
		t.Errorf("a Pod that the namespace forbids: %v", err)
	}
	r.cfg.Patch, r.cfg.Namespace = nil, "elsewhere"
	if err := r.Try(t.Context()); err == nil || !strings.Contains(err.Error(), "elsewhere") {
		t.Errorf("a namespace without permissions: %v", err)
	}
}

// testTryLater asks while a quota is full. That is no refusal of the settings: the runtime is
// opened, and asks again until the cluster answers.
func testTryLater(t *testing.T, c *cluster) {
	const name = "limited-try"
	c.fullQuota(t, name)
	r := c.runtime(t)
	r.cfg.Patch = []byte(`{"spec": {"priorityClassName": "` + name + `"}}`)
	harness.Eventually(t, "the quota counts", func() bool {
		if err := r.Try(t.Context()); err != nil {
			t.Fatalf("a full quota refuses the settings: %v", err)
		}
		return r.untried.Err() != nil
	})
	if !strings.Contains(r.untried.Text(), "exceeded quota: "+name) {
		t.Errorf("the condition is %q", r.untried.Text())
	}
	check(t, c.Client.CoreV1().ResourceQuotas(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
	harness.Eventually(t, "the settings were tried again", func() bool { return r.untried.Err() == nil })
}

// A cluster that does not respond refuses nothing.
func TestTryWithoutCluster(t *testing.T) {
	t.Parallel()
	conditions := &health.Monitor{}
	r, err := New(&rest.Config{Host: "https://127.0.0.1:1"}, Config{
		Installation: uuid.NewString(), Settings: Settings{Namespace: namespace, ServerImage: "codehub/server:1"}, Conditions: conditions, Log: slog.New(slog.DiscardHandler),
	})
	check(t, err)
	t.Cleanup(func() { _ = r.Close() })
	if err := r.Try(t.Context()); err != nil {
		t.Error(err)
	}
	if err := conditions.Err("settings-check"); err == nil {
		t.Error("the condition does not say that the settings were not tried")
	}
}
