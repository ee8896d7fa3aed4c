package kube

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Workspaces have the agent and the IDE from volumes that are images: nodes keep the images,
// and a start copies nothing. Older clusters, and nodes with an older container runtime,
// cannot mount images. There, an init container copies the programs into a volume of the Pod.

// copyTools reports whether Pods get copies.
func (r *Runtime) copyTools() bool { return r.cfg.CopyTools || r.noImageVolumes.Load() }

// mountsImages reports whether a known Pod on a node has a container that mounts an image and has
// started.
func (r *Runtime) mountsImages(node string) bool {
	return slices.ContainsFunc(r.podView.known(), func(p *corev1.Pod) bool {
		return p.Spec.NodeName == node && mountsImage(p) && (hasRun(p, containerWorkspace) || hasRun(p, containerHelper))
	})
}

// hasRun reports whether the process of a container has started. One that was refused can be
// terminated as well.
func hasRun(p *corev1.Pod, container string) bool {
	s := statusOf(p, container)
	return s != nil && (s.State.Running != nil || s.State.Terminated != nil && s.State.Terminated.StartedAt.Unix() > 0)
}

// cannotMount reports whether a Pod did not start because images cannot be mounted, as far as
// that can be known: the cluster left them out, or a node on which no Pod with mounted images has
// started refused to create a container that mounts one. From then on all Pods get copies, since it is not known
// beforehand which node a Pod runs on. p may be nil.
func (r *Runtime) cannotMount(p *corev1.Pod, err error) bool {
	var refused *startError
	node := ""
	switch {
	case errors.Is(err, errNoImageVolumes):
	case p != nil && errors.As(err, &refused) && mountsImage(p):
		node = p.Spec.NodeName
		if r.mountsImages(node) {
			return false
		}
	default:
		return false
	}
	if !r.noImageVolumes.Swap(true) {
		r.log.Warn("images cannot be mounted, so that programs are copied into each Pod", "node", node, "err", err)
	}
	return true
}

// cannotStart takes that back if the Pod with copies was refused in the same way: then the
// mounted images were not the reason.
func (r *Runtime) cannotStart(err error) {
	var refused *startError
	if errors.As(err, &refused) && r.noImageVolumes.Swap(false) {
		r.log.Warn("copies of programs do not help, so that images are mounted again", "err", err)
	}
}

func mountsImage(p *corev1.Pod) bool {
	for _, v := range p.Spec.Volumes {
		if v.Image != nil {
			return true
		}
	}
	return false
}
