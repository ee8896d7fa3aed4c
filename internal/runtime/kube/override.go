package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
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
// relies on stays as it is: the name, its labels and annotations, the home, and the first
// container.
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
	if changed.Spec.NodeName != "" {
		return nil, errors.New("the Pod template sets nodeName, by which two Pods could have one home; use a node selector or an affinity")
	}
	if len(changed.Spec.SchedulingGates) > 0 {
		return nil, errors.New("the Pod template sets schedulingGates, which codehub uses")
	}
	changed.Name, changed.Namespace, changed.GenerateName = p.Name, p.Namespace, ""
	changed.Spec.RestartPolicy = p.Spec.RestartPolicy
	changed.Labels, changed.Annotations = merged(changed.Labels, p.Labels), merged(changed.Annotations, p.Annotations)
	if i := slices.IndexFunc(changed.Spec.Volumes, isHome); i < 0 || changed.Spec.Volumes[i].PersistentVolumeClaim == nil || *changed.Spec.Volumes[i].PersistentVolumeClaim != *p.Spec.Volumes[0].PersistentVolumeClaim {
		return nil, errors.New("the Pod template changes the volume of the home")
	}
	for i, c := range changed.Spec.Containers {
		if c.Name == containerWorkspace {
			changed.Spec.Containers[0], changed.Spec.Containers[i] = c, changed.Spec.Containers[0]
			return changed, nil
		}
	}
	return nil, errors.New("the Pod template removes the container " + containerWorkspace)
}

func isHome(v corev1.Volume) bool { return v.Name == homeVolume }

// merged returns the entries of both maps; those of ours replace others.
func merged(theirs, ours map[string]string) map[string]string {
	out := maps.Clone(theirs)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, ours)
	return out
}
