package kube

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
)

// fromHere is a policy that lets the test's own process, which is no Pod, reach workspaces.
const fromHere = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: from-here, namespace: ` + namespace + `}
spec:
  podSelector: {matchLabels: {codehub.dev/role: workspace}}
  policyTypes: [Ingress]
  ingress: [{from: [{ipBlock: {cidr: ADDRESS/32}}]}]
`

// The check tells apart a cluster without policies, one that ignores them, policies that leave
// something open, servers that do not reach workspaces, and isolation. It repeats itself when
// the policies change, and leaves nothing.
func testIsolationIsChecked(t *testing.T, c *cluster) {
	a := c.runtime(t)
	finds := func(r *Runtime, unknown bool, texts ...string) {
		t.Helper()
		r.policyView.refresh() // the watch brings the test's changes a moment later
		err := r.Prepare(t.Context())
		var open *runtime.IsolationError
		if !errors.As(err, &open) || open.Unknown != unknown {
			t.Fatalf("Prepare: %v, want an IsolationError, unknown %v", err, unknown)
		}
		for _, text := range texts {
			if !strings.Contains(open.Reason, text) {
				t.Errorf("the reason is %q, without %q", open.Reason, text)
			}
		}
	}
	all := []string{runtime.ReachedWorkspace, runtime.ReachedAPI, runtime.ReachedNode}
	finds(a, false, append(all, "has no NetworkPolicy")...)

	policies := chartPolicies(t)
	c.Apply(policies)
	finds(a, false, append(all, runtime.MsgPoliciesIgnored)...)
	a.isolation.checkedAt = time.Now().Add(-time.Hour) // without a change of the policies
	stopped := c.EnforcePolicies()
	finds(a, true, runtime.MsgUnreached)

	reach := strings.ReplaceAll(fromHere, "ADDRESS", c.Address)
	c.Apply(reach)
	if err := a.Prepare(t.Context()); err != nil {
		t.Fatalf("Prepare with policies that are enforced: %v", err)
	}
	checked := a.isolation.checkedAt
	if err := a.Prepare(t.Context()); err != nil || !a.isolation.checkedAt.Equal(checked) {
		t.Errorf("the next call checks again: %v", err)
	}

	c.listenOnMetadata()
	c.Apply(strings.Replace(reach, "policyTypes: [Ingress]", "policyTypes: [Ingress, Egress]\n  egress: [{to: [{ipBlock: {cidr: 169.254.0.0/16}}]}]", 1))
	finds(a, false, runtime.MsgPoliciesOpen, runtime.ReachedMetadata)

	stopped()
	b := c.twin(t, a) // the next leader
	finds(b, false, append(all, runtime.MsgPoliciesIgnored)...)
	harness.Eventually(t, "no Pod of a check is left", func() bool {
		pods, err := c.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: labelProbe})
		return err == nil && len(pods.Items) == 0
	})
	c.Delete(policies)
	c.Delete(reach)
}

// Policies that cut this server off only after the probe has answered it are the reason, too.
func TestProbeIsUnreachedLater(t *testing.T) {
	t.Parallel()
	for answers := range 4 {
		synctest.Test(t, func(t *testing.T) {
			left := answers
			r := &Runtime{probe: &http.Client{Transport: transport(func(*http.Request) (*http.Response, error) {
				if left--; left < 0 {
					return nil, os.ErrDeadlineExceeded
				}
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"open": []}`))}, nil
			})}}
			_, err := r.ask(t.Context(), &corev1.Pod{}, &corev1.Pod{}, "token", []target{{runtime.ReachedAPI, "10.0.0.1:443"}})
			var open *runtime.IsolationError
			if !errors.As(err, &open) || !open.Unknown || !strings.HasPrefix(open.Reason, runtime.MsgUnreached) {
				t.Errorf("after %d answers: %v", answers, err)
			}
		})
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A Pod of a check that does not start is a reason why the isolation is not known.
func testUnscheduledProbe(t *testing.T, c *cluster) {
	r := c.runtime(t)
	r.cfg.Nodes = map[string]string{"no": "node"}
	var open *runtime.IsolationError
	if err := r.Prepare(t.Context()); !errors.As(err, &open) || !open.Unknown || !strings.Contains(open.Reason, "node") {
		t.Errorf("Prepare: %v", err)
	}
	harness.Eventually(t, "the Pods are removed", func() bool {
		pods, err := c.Client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: labelProbe + "=" + r.cfg.Installation})
		return err == nil && len(pods.Items) == 0
	})
}

func TestCovered(t *testing.T) {
	t.Parallel()
	policy := func(value string, types ...networkingv1.PolicyType) *networkingv1.NetworkPolicy {
		return &networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{labelRole: value}}, PolicyTypes: types}}
	}
	in, out := networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress
	for _, c := range []struct {
		name     string
		policies []*networkingv1.NetworkPolicy
		want     bool
	}{
		{"none", nil, false},
		{"both", []*networkingv1.NetworkPolicy{policy(roleWorkspace, in, out)}, true},
		{"one each", []*networkingv1.NetworkPolicy{policy(roleWorkspace, in), policy(roleWorkspace, out)}, true},
		{"ingress alone", []*networkingv1.NetworkPolicy{policy(roleWorkspace, in)}, false},
		{"of other Pods", []*networkingv1.NetworkPolicy{policy(roleJob, in, out)}, false},
	} {
		if got := covered(c.policies, map[string]string{labelRole: roleWorkspace}); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// The Pod of a check has what the administrator's template says about Pods, and none of its
// containers and volumes.
func TestProbePodFollowsTemplate(t *testing.T) {
	t.Parallel()
	r := &Runtime{cfg: Config{Settings: Settings{Patch: []byte(`{"metadata": {"labels": {"team": "a"}}, "spec": {"priorityClassName": "low", "containers": [{"name": "sidecar", "image": "x"}]}}`)}}}
	p := r.probePod("a", "token")
	if p.Labels["team"] != "a" || p.Labels[labelRole] != roleWorkspace || p.Spec.PriorityClassName != "low" || len(p.Spec.Containers) != 1 || len(p.Spec.Volumes) != 0 || r.owns(p.Labels, roleWorkspace) && r.cfg.Installation != "" {
		t.Errorf("%+v", p)
	}
	if p.Spec.Containers[0].Name != containerWorkspace || p.Spec.Containers[0].Env[0].Value != "token" {
		t.Errorf("%+v", p.Spec.Containers[0])
	}
}
