package kube

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"codehub/internal/runtime"
)

// testDropped starts workspaces where the cluster leaves out fields that it does not know.
func testDropped(t *testing.T, c *cluster) {
	t.Run("image volumes", func(t *testing.T) {
		t.Parallel()
		r := c.runtime(t)
		r.adapt = withoutImageVolumes
		if err := r.Try(t.Context()); err != nil || !r.copyTools() {
			t.Fatalf("Try: %v; programs are copied: %v", err, r.copyTools())
		}
		r.noImageVolumes.Store(false) // another API server of the cluster may have said so
		home := newHome(t, r)         // seeded, with codehub's program and not one of the image
		if !r.copyTools() {
			t.Error("a Pod without its volumes was used")
		}
		r.noImageVolumes.Store(false)
		if _, err := r.StartContainer(t.Context(), startOf(home), nil); err != nil || !r.copyTools() {
			t.Errorf("StartContainer: %v; programs are copied: %v", err, r.copyTools())
		}
	})
	t.Run("user namespaces", func(t *testing.T) {
		t.Parallel()
		r := c.runtime(t)
		home := newHome(t, r)
		r.cfg.Sudo = true
		r.adapt = func(p *corev1.Pod) { p.Spec.HostUsers = nil }
		if err := r.Try(t.Context()); !errors.Is(err, errNoUserNamespaces) {
			t.Errorf("Try: %v", err)
		}
		if _, err := r.StartContainer(t.Context(), startOf(home), nil); !errors.Is(err, errNoUserNamespaces) {
			t.Errorf("StartContainer: %v", err)
		}
		if p, err := r.named(t.Context(), home.Workspace.ContainerName(), roleWorkspace); err != nil || p != nil {
			t.Errorf("the Pod exists: %v, %v", p, err)
		}
	})
}

func withoutImageVolumes(p *corev1.Pod) {
	var kept []corev1.Volume
	gone := map[string]bool{}
	for _, v := range p.Spec.Volumes {
		if gone[v.Name] = v.Image != nil; v.Image == nil {
			kept = append(kept, v)
		}
	}
	p.Spec.Volumes = kept
	for i := range p.Spec.Containers {
		var mounts []corev1.VolumeMount
		for _, m := range p.Spec.Containers[i].VolumeMounts {
			if !gone[m.Name] {
				mounts = append(mounts, m)
			}
		}
		p.Spec.Containers[i].VolumeMounts = mounts
	}
}

func TestDropped(t *testing.T) {
	t.Parallel()
	r := &Runtime{cfg: Config{Sudo: true, Settings: Settings{ServerImage: "codehub/server:1"}, IDEImage: "codehub/ide:1"}}
	p, err := r.workspacePod(runtime.ContainerSpec{Workspace: "w", UID: 20000, Image: "debian"}, r.newClaim("ws-home", nil), chosenImage{name: "debian"}, facts{})
	check(t, err)
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: gate}}
	yes := true
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   error
	}{
		"nothing":        {func(*corev1.Pod) {}, nil},
		"more":           {func(p *corev1.Pod) { p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "token"}) }, nil},
		"gate":           {func(p *corev1.Pod) { p.Spec.SchedulingGates = nil }, errNoSchedulingGates},
		"user namespace": {func(p *corev1.Pod) { p.Spec.HostUsers = nil }, errNoUserNamespaces},
		"host's users":   {func(p *corev1.Pod) { p.Spec.HostUsers = &yes }, errNoUserNamespaces},
		"image volumes":  {withoutImageVolumes, errNoImageVolumes},
		"sources of image volumes": {func(p *corev1.Pod) {
			for i := range p.Spec.Volumes {
				p.Spec.Volumes[i].Image = nil
			}
		}, errNoImageVolumes},
		"mounts of images": {func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = p.Spec.Containers[0].VolumeMounts[:1] }, errNoImageVolumes},
		"home":             {func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts[0].SubPath = "" }, errNoVolumes},
	} {
		made := p.DeepCopy()
		c.change(made)
		if err := dropped(p, made); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
