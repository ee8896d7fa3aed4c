package kube

import (
	"errors"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A refusal of a Pod that mounts an image makes all Pods get copies, until one with copies is
// refused as well. A refusal by a node that has mounted images has another reason.
func TestRefusedImageVolumesAreCopied(t *testing.T) {
	t.Parallel()
	r := &Runtime{log: slog.New(slog.DiscardHandler), podView: newWatched(&behind{}, &corev1.Pod{}, podItems)}
	onNode := func(name string) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{NodeName: name, Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}}}}}
	}
	started := func(name string, p *corev1.Pod) *corev1.Pod {
		p.Name = name
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerWorkspace, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		return p
	}
	refusedThere := started("refused", onNode("old"))
	refusedThere.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: containerWorkspace, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}}},
		{Name: "sidecar", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
	}
	mounts := onNode("")
	refused := &startError{pod: "p", message: "failed to mkdir"}
	if r.cannotMount(&corev1.Pod{}, refused) || r.cannotMount(mounts, errors.New("other")) || r.copyTools() {
		t.Error("another refusal counts")
	}
	if !r.cannotMount(mounts, refused) || !r.copyTools() {
		t.Error("the refusal of a mounted image does not count")
	}
	for _, p := range []*corev1.Pod{started("copies", &corev1.Pod{Spec: corev1.PodSpec{NodeName: "old"}}), onNode("old"), refusedThere} {
		check(t, r.podView.informer.GetStore().Add(p))
	}
	if !r.cannotMount(onNode("old"), refused) {
		t.Error("a node that starts only Pods with copies counts as one that mounts images")
	}
	r.cannotStart(nil)
	r.cannotStart(errors.New("other"))
	if !r.copyTools() {
		t.Error("copies ended without a refusal of them")
	}
	if r.cannotStart(refused); r.copyTools() {
		t.Error("copies go on although they do not help")
	}
	check(t, r.podView.informer.GetStore().Add(started("mounts", onNode("new"))))
	if r.cannotMount(onNode("new"), refused) || r.copyTools() {
		t.Error("a refusal by a node that has mounted images counts")
	}
	if !r.cannotMount(onNode("old"), refused) || !r.copyTools() {
		t.Error("after another node has mounted images, a refusal does not count")
	}
}
