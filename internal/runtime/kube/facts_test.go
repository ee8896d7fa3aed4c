package kube

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
)

// An image that brings its IDE runs its own program in its own folder, and only on nodes that
// it is for. The user's lists are within the Pod.
func TestPodFollowsImage(t *testing.T) {
	t.Parallel()
	r := &Runtime{cfg: Config{Settings: Settings{ServerImage: "codehub/server:1"}, IDEImage: "codehub/ide:1", Variables: []string{"EXTENSIONS_GALLERY={}"}}}
	spec := runtime.ContainerSpec{Workspace: "w", UID: 1500000, Claim: "start-1", Image: "lab:1", Secret: "s"}
	f := facts{Accounts: account.Accounts{Passwd: "root:x:0:0::/root:/bin/sh\n", Shell: "/bin/sh", Tmp: true}, Command: []string{"/lab", "serve"}, Included: true, Processors: []string{"arm64"}}
	image := byDigest("lab:1", "sha256:"+strings.Repeat("1", 64))
	p, err := r.workspacePod(spec, r.newClaim("ws-home", nil), image, f)
	if err != nil {
		t.Fatal(err)
	}
	c := p.Spec.Containers[0]
	if !slices.Equal(c.Command, []string{agentPath, "agent", "--", "/lab", "serve"}) || c.WorkingDir != "" || c.Image != image.name {
		t.Errorf("container = %+v", c)
	}
	if slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "ide" || v.Name == tmpVolume }) {
		t.Errorf("volumes = %+v", p.Spec.Volumes)
	}
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "EXTENSIONS_GALLERY" && e.Value == "{}" }) {
		t.Errorf("variables = %+v", c.Env)
	}
	if got := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Values; !slices.Equal(got, f.Processors) {
		t.Errorf("processors = %q", got)
	}
	if !strings.HasPrefix(p.Annotations[notePasswd], "coder:x:1500000:1500000:coder:/home/coder:/bin/sh\n") || p.Annotations[noteGroup] != "coder:x:1500000:\n" {
		t.Errorf("annotations = %q", p.Annotations)
	}
	f.Included, f.Tmp = false, false
	if p, err = r.workspacePod(spec, r.newClaim("ws-home", nil), image, f); err != nil {
		t.Fatal(err)
	}
	if c := p.Spec.Containers[0]; c.Command[3] != account.IDEStart || c.WorkingDir != "/" || !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/tmp" }) {
		t.Errorf("container = %+v", c)
	}
}
