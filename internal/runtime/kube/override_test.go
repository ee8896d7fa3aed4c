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
	check(t, err)
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
		`{"spec": {"nodeName": "node1"}}`:                                                                     "nodeName",
		`{"spec": {"schedulingGates": [{"name": "example.org/x"}]}}`:                                          "schedulingGates",
		`{"spec": {"readinessGates": [{"conditionType": "example.org/x"}]}}`:                                  "readinessGates",
		`{"metadata": {"finalizers": ["example.org/x"]}}`:                                                     "finalizers",
		`{"spec": {"hostNetwork": true}}`:                                                                     "hostNetwork",
		`{"spec": {"hostPID": true}}`:                                                                         "hostPID",
		`{"spec": {"hostIPC": true}}`:                                                                         "hostIPC",
		`{"spec": {"serviceAccountName": "admin"}}`:                                                           "serviceAccountName",
		`{"spec": {"automountServiceAccountToken": true}}`:                                                    "automountServiceAccountToken",
		`{"spec": {"automountServiceAccountToken": null}}`:                                                    "automountServiceAccountToken",
		`{"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}`:                           "the Pod's securityContext",
		`{"spec": {"securityContext": {"fsGroup": 5}}}`:                                                       "the Pod's securityContext",
		`{"spec": {"securityContext": null}}`:                                                                 "the Pod's securityContext",
		`{"spec": {"containers": [{"name": "workspace", "securityContext": {"runAsUser": 0}}]}}`:              "securityContext of the container workspace",
		`{"spec": {"containers": [{"name": "workspace", "securityContext": {"runAsNonRoot": false}}]}}`:       "securityContext of the container workspace",
		`{"spec": {"containers": [{"name": "side", "image": "a", "securityContext": {"privileged": true}}]}}`: "privileged of the container side",
		`{"spec": {"containers": [{"name": "workspace", "restartPolicy": "Always"}]}}`:                        "restartPolicy of the container workspace",
		`{"spec": {"containers": [{"name": "workspace", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}]}}`:                       "restartPolicy of the container workspace",
		`{"spec": {"containers": [{"name": "side", "image": "a", "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]}]}}`: "restartPolicyRules of the container side",
		`{"spec": {"containers": [{"name": "workspace", "$patch": "delete"}]}}`:                                                                                                  "removing it",
		`{"spec": {"containers": [{"name": "workspace", "volumeMounts": [{"mountPath": "/opt/codehub", "name": "agent", "readOnly": false}]}]}}`:                                 "mount of the volume agent",
		`{"spec": {"containers": [{"name": "workspace", "volumeMounts": [{"mountPath": "/home/coder", "name": "home", "subPath": "scratch"}]}]}}`:                                "mount of the volume home",
		`{"spec": {"containers": [{"name": "workspace", "volumeMounts": [{"mountPath": "/home/coder", "$patch": "delete"}]}]}}`:                                                  "mount of the volume home",
		`{"spec": {"volumes": [{"name": "home", "$patch": "delete"}]}}`:                                                                                                          "volume home",
		`{"spec": {"volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "ws-other-home"}}]}}`:                                                                     "volume home",
		`{"spec": {"volumes": [{"name": "ide", "image": {"reference": "other:1"}}]}}`:                                                                                            "volume ide",
		`{"spec": 7}`: "apply the Pod template",
	} {
		if _, err := planned(t, patch); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", patch, err, why)
		}
	}
}

// A template may not take the user namespace from a workspace with sudo, and may give it to
// one without.
func TestPodTemplateKeepsUserNamespace(t *testing.T) {
	t.Parallel()
	for _, sudo := range []bool{true, false} {
		for value, want := range map[string]bool{"true": !sudo, "null": !sudo, "false": true} {
			r := &Runtime{cfg: Config{Sudo: sudo, Settings: Settings{ServerImage: "codehub/server:1", Patch: []byte(`{"spec": {"hostUsers": ` + value + `}}`)}, IDEImage: "codehub/ide:1"}}
			_, err := r.workspacePod(runtime.ContainerSpec{Workspace: "w", UID: 20000, Image: "debian"}, r.newClaim("ws-home", nil), chosenImage{name: "debian"}, facts{})
			if (err == nil) != want {
				t.Errorf("sudo %v, hostUsers %s: %v", sudo, value, err)
			}
		}
	}
}

// What clusters need is permitted.
func TestPodTemplateIsAccepted(t *testing.T) {
	t.Parallel()
	for _, patch := range []string{
		`{"spec": {"securityContext": {"seLinuxOptions": {"level": "s0:c1,c2"}}, "runtimeClassName": "gvisor", "terminationGracePeriodSeconds": 60}}`,
		`{"spec": {"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}], "containers": [{"name": "workspace", "resources": {"limits": {"ephemeral-storage": "5Gi"}}}]}}`,
		`{"spec": {"volumes": [{"name": "data", "emptyDir": {}}], "containers": [{"name": "workspace", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}}`,
		`{"spec": {"initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}]}}`,
	} {
		if _, err := planned(t, patch); err != nil {
			t.Errorf("%s: %v", patch, err)
		}
	}
}

// A Pod has ended once its sidecars have as well.
func TestEndedWaitsForSidecars(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	done := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	p := &corev1.Pod{
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: containerWorkspace}}, InitContainers: []corev1.Container{{Name: "first"}, {Name: "proxy", RestartPolicy: &always}}},
		Status: corev1.PodStatus{
			ContainerStatuses:     []corev1.ContainerStatus{{Name: containerWorkspace, State: done}},
			InitContainerStatuses: []corev1.ContainerStatus{{Name: "first", State: done}, {Name: "proxy", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		},
	}
	if ended(p) {
		t.Error("a sidecar runs")
	}
	if p.Status.InitContainerStatuses[1].State = done; !ended(p) {
		t.Error("nothing runs")
	}
}
