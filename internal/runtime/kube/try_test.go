package kube

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"codehub/internal/harness"
	"codehub/internal/health"
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
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: 1}
	if _, err := c.Client.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	quotas := c.Client.CoreV1().ResourceQuotas(namespace)
	_, err := quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")},
		ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{
			ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{name},
		}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
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
	if err := quotas.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the settings were tried again", func() bool { return r.untried.Err() == nil })
}

// A cluster that does not respond refuses nothing.
func TestTryWithoutCluster(t *testing.T) {
	t.Parallel()
	conditions := &health.Monitor{}
	r, err := New(&rest.Config{Host: "https://127.0.0.1:1"}, Config{
		Installation: uuid.NewString(), Settings: Settings{Namespace: namespace, ServerImage: "codehub/server:1"}, Conditions: conditions, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if err := r.Try(t.Context()); err != nil {
		t.Error(err)
	}
	if err := conditions.Err("settings-check"); err == nil {
		t.Error("the condition does not say that the settings were not tried")
	}
}
