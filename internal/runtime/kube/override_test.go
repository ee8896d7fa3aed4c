package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"codehub/internal/runtime"
)

func planned(t *testing.T, patch string) (*corev1.Pod, error) {
	t.Helper()
	r := &Runtime{cfg: Config{Settings: Settings{ServerImage: "codehub/server:1", Patch: []byte(patch)}, IDEImage: "codehub/ide:1"}}
	home := r.newClaim("ws-home", nil)
	return r.workspacePod(runtime.ContainerSpec{Workspace: "w", UID: 1500000, Claim: "start-1", Image: "debian"}, home, chosenImage{ref: "debian", name: "debian"}, facts{})
}

func TestPodTemplateChangesPod(t *testing.T) {
	t.Parallel()
	p, err := planned(t, `{"metadata": {"name": "mine", "labels": {"team": "a", "codehub.dev/role": "none"}}, "spec": {"priorityClassName": "low", "restartPolicy": "Always",
		"containers": [{"name": "sidecar", "image": "proxy:1"}, {"name": "workspace", "env": [{"name": "EXTRA", "value": "1"}]}]}}`)
	if err != nil {
		t.Fatal(err)
	}
	first := p.Spec.Containers[0]
	extra := false
	for _, e := range first.Env {
		extra = extra || e.Name == "EXTRA"
	}
	if p.Name != "codehub-ws-w" || p.Labels["team"] != "a" || p.Labels[labelRole] != roleWorkspace || p.Spec.PriorityClassName != "low" ||
		p.Spec.RestartPolicy != corev1.RestartPolicyNever || len(p.Spec.Containers) != 2 || first.Name != containerWorkspace || first.Image != "debian" || !extra {
		t.Errorf("Pod = %+v", p)
	}
}

func TestPodTemplateIsRefused(t *testing.T) {
	t.Parallel()
	for patch, why := range map[string]string{
		`{"spec": {"nodeName": "node1"}}`:                                                                    "nodeName",
		`{"spec": {"schedulingGates": [{"name": "example.org/x"}]}}`:                                         "schedulingGates",
		`{"spec": {"containers": [{"name": "workspace", "$patch": "delete"}]}}`:                              "removes the container",
		`{"spec": {"volumes": [{"name": "home", "$patch": "delete"}]}}`:                                      "volume of the home",
		`{"spec": {"volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "ws-other-home"}}]}}`: "volume of the home",
		`{"spec": 7}`: "apply the Pod template",
	} {
		if _, err := planned(t, patch); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", patch, err, why)
		}
	}
}
