package kube

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
)

// fullQuota makes a priority class for whose Pods the namespace has no room, by a quota of the same name.
func (c *cluster) fullQuota(t *testing.T, name string) {
	t.Helper()
	must(t)(c.Client.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: 1}, metav1.CreateOptions{}))
	must(t)(c.Client.CoreV1().ResourceQuotas(namespace).Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")},
		ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{
			ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{name},
		}}},
	}}, metav1.CreateOptions{}))
}

// testRefusals shows that each reason why a workspace does not start is known, with the
// cluster's words.
func testRefusals(t *testing.T, c *cluster) {
	c.fullQuota(t, "limited")
	for name, one := range map[string]struct {
		change      func(*Config, *runtime.ContainerSpec)
		step, words string
	}{
		"no node has the memory": {func(c *Config, s *runtime.ContainerSpec) { c.MemoryShare, s.Size.Memory = 25, 1<<40 }, runtime.StepWaitingRoom, "Insufficient memory"},
		"a quota is exceeded": {func(c *Config, _ *runtime.ContainerSpec) {
			c.Patch = []byte(`{"spec": {"priorityClassName": "limited"}}`)
		}, runtime.StepWaitingQuota, "exceeded quota: limited"},
		"a volume cannot be mounted": {func(c *Config, _ *runtime.ContainerSpec) {
			c.Patch = []byte(`{"spec": {"volumes": [{"name": "x", "secret": {"secretName": "missing"}}], "containers": [{"name": "workspace", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}]}}`)
		}, runtime.StepWaitingVolume, `secret "missing" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := c.runtime(t)
			home := newHome(t, r)
			spec := startOf(home)
			one.change(&r.cfg, &spec)
			_, err := r.StartContainer(t.Context(), spec, nil)
			var busy *runtime.BusyError
			if !errors.As(err, &busy) || busy.Step != one.step || !strings.Contains(busy.Reason, one.words) {
				t.Errorf("StartContainer: %#v, want the step %s and %q", err, one.step, one.words)
			}
		})
	}
	t.Run("it is evicted", func(t *testing.T) {
		t.Parallel()
		r := c.runtime(t)
		home := newHome(t, r)
		must(t)(r.StartContainer(t.Context(), startOf(home), nil))
		err := c.Client.PolicyV1().Evictions(namespace).Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: home.Workspace.ContainerName()}})
		check(t, err)
		detail := ""
		harness.Eventually(t, "the container has ended", func() bool {
			list, err := r.Containers(t.Context())
			if err != nil || len(list) == 0 {
				return err == nil
			}
			if list[0].State == runtime.ContainerExited {
				detail = list[0].Detail
			}
			return detail != ""
		})
		if !strings.Contains(detail, "EvictionByEvictionAPI") {
			t.Errorf("the detail is %q", detail)
		}
	})
}

// What the cluster says about a Pod that has ended.
func TestExitWords(t *testing.T) {
	t.Parallel()
	end := func(code int32, reason string) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: containerWorkspace, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}},
		}}}
	}
	evicted, preempted := end(137, "Error"), end(143, "Error")
	evicted.Phase, evicted.Reason, evicted.Message = corev1.PodFailed, "Evicted", "The node was low on resource: memory."
	preempted.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "PreemptionByScheduler", Message: "default-scheduler: preempting to accommodate a higher priority pod"}}
	for _, c := range []struct {
		status corev1.PodStatus
		want   string
	}{
		{end(1, "Error"), "Exited (1) Error"},
		{end(137, "OOMKilled"), "Exited (137) OOMKilled. The workspace used more memory than its limit of 256Mi."},
		{evicted, "Exited (137) Evicted: The node was low on resource: memory."},
		{preempted, "Exited (143) PreemptionByScheduler: default-scheduler: preempting to accommodate a higher priority pod"},
	} {
		p := &corev1.Pod{Status: c.status, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: containerWorkspace, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")}},
		}}}}
		if got := container(p); got.State != runtime.ContainerExited || got.Detail != c.want {
			t.Errorf("%s %q, want %q", got.State, got.Detail, c.want)
		}
	}
}

// A node counts as lost only by signs that a healthy one does not give.
func TestLost(t *testing.T) {
	t.Parallel()
	now := time.Now()
	conditions := func(ready, containers corev1.ConditionStatus) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}, {Type: corev1.ContainersReady, Status: containers}}}
	}
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	evicted := func(reason string) corev1.PodStatus {
		status := conditions(yes, yes)
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: yes, Reason: reason})
		return status
	}
	for _, c := range []struct {
		name    string
		status  corev1.PodStatus
		deleted time.Duration // since the end of its grace period; 0: it is not
		node    string
		want    bool
	}{
		{"healthy", conditions(yes, yes), 0, "node1", false},
		{"starting", conditions(no, no), 0, "node1", false},
		{"marked by the cluster", conditions(no, yes), 0, "node1", true},
		{"marked without a node", conditions(no, yes), 0, "", false},
		{"being deleted", conditions(yes, yes), -time.Second, "node1", false},
		{"deleted a moment ago", conditions(yes, yes), time.Second, "node1", false},
		{"slow to end", conditions(yes, yes), time.Minute, "node1", false},
		{"slow to end after an eviction", evicted("EvictionByEvictionAPI"), time.Minute, "node1", false},
		{"deleted because of its node", evicted("DeletionByTaintManager"), time.Minute, "node1", true},
		{"deleted because of its node a moment ago", evicted("DeletionByTaintManager"), time.Second, "node1", false},
		{"deleted and marked by the cluster", conditions(no, yes), -time.Second, "node1", true},
		{"ended", corev1.PodStatus{Phase: corev1.PodFailed}, time.Minute, "node1", false},
	} {
		p := &corev1.Pod{Status: c.status, Spec: corev1.PodSpec{NodeName: c.node, Containers: []corev1.Container{{}}}}
		if c.deleted != 0 {
			p.DeletionTimestamp = &metav1.Time{Time: now.Add(-c.deleted)}
		}
		if got := lost(p, now); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
