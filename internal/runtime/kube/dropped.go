package kube

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// A cluster without a feature accepts a Pod that uses it and leaves the fields out. Without
// its image volumes a Pod would run programs of the image in place of codehub's, as root in
// some; without its user namespace, a workspace's root would be that of the node.

var (
	errNoImageVolumes    = errors.New("the cluster leaves out volumes that are images")
	errNoUserNamespaces  = errors.New("the cluster leaves out hostUsers, so that root in a workspace would be root of the node; sudo takes user namespaces, which Kubernetes has from 1.33 on (feature gate UserNamespacesSupport)")
	errNoSchedulingGates = errors.New("the cluster leaves out scheduling gates, or something in it removes them")
	errNoVolumes         = errors.New("something in the cluster removes volumes from Pods")
)

// dropped returns why a Pod that the cluster has made must not run: it lacks something that
// was planned. What the cluster has added does not matter.
func dropped(planned, made *corev1.Pod) error {
	if !gated(made) {
		return errNoSchedulingGates
	}
	if off := planned.Spec.HostUsers; off != nil && !*off && (made.Spec.HostUsers == nil || *made.Spec.HostUsers) {
		return errNoUserNamespaces
	}
	images := map[string]bool{} // by the name of a volume
	for _, v := range planned.Spec.Volumes {
		images[v.Name] = v.Image != nil
		i := slices.IndexFunc(made.Spec.Volumes, func(m corev1.Volume) bool { return m.Name == v.Name })
		if i < 0 || v.Image != nil && made.Spec.Volumes[i].Image == nil {
			return missingVolume(v.Image != nil)
		}
	}
	theirs := slices.Concat(made.Spec.InitContainers, made.Spec.Containers)
	for _, c := range slices.Concat(planned.Spec.InitContainers, planned.Spec.Containers) {
		i := slices.IndexFunc(theirs, func(m corev1.Container) bool { return m.Name == c.Name })
		for _, mount := range c.VolumeMounts {
			if i < 0 || !slices.ContainsFunc(theirs[i].VolumeMounts, func(m corev1.VolumeMount) bool {
				return m.Name == mount.Name && m.MountPath == mount.MountPath && m.SubPath == mount.SubPath && (m.ReadOnly || !mount.ReadOnly)
			}) {
				return missingVolume(images[mount.Name])
			}
		}
	}
	return nil
}

func missingVolume(image bool) error {
	if image {
		return errNoImageVolumes
	}
	return errNoVolumes
}
