package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// place applies the settings that say where Pods run and how their images are pulled.
func (r *Runtime) place(p *corev1.Pod) {
	p.Spec.NodeSelector, p.Spec.Tolerations = r.cfg.Nodes, r.cfg.Tolerated
	for _, name := range r.cfg.SecretNames {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
}

// patched returns the Pod of a workspace with the administrator's changes. What codehub
// relies on stays as it is: the name, its labels and annotations, and the first container. A
// template that changes what unsafe lists is refused.
func patched(p *corev1.Pod, patch []byte) (*corev1.Pod, error) {
	if len(patch) == 0 {
		return p, nil
	}
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	if raw, err = strategicpatch.StrategicMergePatch(raw, patch, corev1.Pod{}); err != nil {
		return nil, fmt.Errorf("apply the Pod template: %w", err)
	}
	changed := &corev1.Pod{}
	if err := json.Unmarshal(raw, changed); err != nil {
		return nil, fmt.Errorf("apply the Pod template: %w", err)
	}
	if what := unsafe(p, changed); what != "" {
		return nil, fmt.Errorf("the Pod template changes %s, which codehub relies on", what)
	}
	changed.Name, changed.Namespace, changed.GenerateName = p.Name, p.Namespace, ""
	changed.Spec.RestartPolicy = p.Spec.RestartPolicy
	changed.Labels, changed.Annotations = merged(changed.Labels, p.Labels), merged(changed.Annotations, p.Annotations)
	for i, c := range changed.Spec.Containers {
		if c.Name == containerWorkspace {
			changed.Spec.Containers[0], changed.Spec.Containers[i] = c, changed.Spec.Containers[0]
			return changed, nil
		}
	}
	return nil, errors.New("the Pod template removes the container " + containerWorkspace)
}

// unsafe returns the first field of the Pod p that changed must not have changed, or "": those
// by which two Pods could have one home, a Pod would be less confined, or what codehub reads of
// it would no longer be true.
func unsafe(p, changed *corev1.Pod) string {
	spec, ours := &changed.Spec, &p.Spec
	for _, c := range []struct {
		changed bool
		what    string
	}{
		{spec.NodeName != "", "nodeName (a node selector or an affinity can take its place)"},
		{len(spec.SchedulingGates) > 0, "schedulingGates"},
		{len(spec.ReadinessGates) > 0, "readinessGates"},
		{len(changed.Finalizers) > 0, "finalizers"},
		{spec.HostNetwork, "hostNetwork"},
		{spec.HostPID, "hostPID"},
		{spec.HostIPC, "hostIPC"},
		{ours.HostUsers != nil && !same(ours.HostUsers, spec.HostUsers), "hostUsers"},
		{spec.ServiceAccountName != "" || spec.DeprecatedServiceAccount != "", "serviceAccountName"},
		{!same(ours.AutomountServiceAccountToken, spec.AutomountServiceAccountToken), "automountServiceAccountToken"},
		{!same(podRights(ours.SecurityContext), podRights(spec.SecurityContext)), "the Pod's securityContext"},
	} {
		if c.changed {
			return c.what
		}
	}
	for _, v := range ours.Volumes {
		if v.Name == tmpVolume {
			continue // it may have a limit or be memory
		}
		if i := slices.IndexFunc(spec.Volumes, func(o corev1.Volume) bool { return o.Name == v.Name }); i < 0 || !same(v, spec.Volumes[i]) {
			return "the volume " + v.Name
		}
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if slices.ContainsFunc(c.RestartPolicyRules, func(rule corev1.ContainerRestartRule) bool {
			return rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		}) {
			return "restartPolicyRules of the container " + c.Name
		}
		if s := c.SecurityContext; s != nil && s.Privileged != nil && *s.Privileged {
			return "privileged of the container " + c.Name
		}
	}
	theirs := slices.Concat(spec.InitContainers, spec.Containers)
	for _, c := range slices.Concat(ours.InitContainers, ours.Containers) {
		i := slices.IndexFunc(theirs, func(o corev1.Container) bool { return o.Name == c.Name })
		if i < 0 {
			return "the container " + c.Name + " by removing it"
		}
		if !same(rights(c.SecurityContext), rights(theirs[i].SecurityContext)) {
			return "securityContext of the container " + c.Name
		}
		if !same(c.RestartPolicy, theirs[i].RestartPolicy) || !same(c.RestartPolicyRules, theirs[i].RestartPolicyRules) {
			return "restartPolicy of the container " + c.Name
		}
		for _, m := range c.VolumeMounts {
			if m.Name != tmpVolume && !slices.ContainsFunc(theirs[i].VolumeMounts, func(o corev1.VolumeMount) bool { return same(m, o) }) {
				return "the mount of the volume " + m.Name
			}
		}
	}
	return ""
}

func same(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }

// podRights and rights return the part of a security context that a template leaves alone. It
// may choose labels of SELinux and profiles of AppArmor, which clusters have of their own.
func podRights(s *corev1.PodSecurityContext) *corev1.PodSecurityContext {
	if s = s.DeepCopy(); s != nil {
		s.SELinuxOptions, s.SELinuxChangePolicy, s.AppArmorProfile, s.Sysctls = nil, nil, nil, nil
	}
	return s
}

func rights(s *corev1.SecurityContext) *corev1.SecurityContext {
	if s = s.DeepCopy(); s != nil {
		s.SELinuxOptions, s.AppArmorProfile, s.ReadOnlyRootFilesystem = nil, nil, nil
	}
	return s
}

// merged returns the entries of both maps; those of ours replace others.
func merged(theirs, ours map[string]string) map[string]string {
	out := maps.Clone(theirs)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, ours)
	return out
}
