package kube

import (
	"errors"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A refusal of a Pod that mounts an image makes all Pods get copies, until one with copies is
// refused as well.
func TestRefusedImageVolumesAreCopied(t *testing.T) {
	t.Parallel()
	r := &Runtime{log: slog.New(slog.DiscardHandler)}
	mounts := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}}}}}
	refused := &startError{pod: "p", message: "failed to mkdir"}
	if r.cannotMount(&corev1.Pod{}, refused) || r.cannotMount(mounts, errors.New("other")) || r.copyTools() {
		t.Error("another refusal counts")
	}
	if !r.cannotMount(mounts, refused) || !r.copyTools() {
		t.Error("the refusal of a mounted image does not count")
	}
	r.cannotStart(nil)
	r.cannotStart(errors.New("other"))
	if !r.copyTools() {
		t.Error("copies ended without a refusal of them")
	}
	if r.cannotStart(refused); r.copyTools() {
		t.Error("copies go on although they do not help")
	}
}
