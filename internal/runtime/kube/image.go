package kube

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"codehub/internal/runtime"
)

// imageRef returns the image of a Pod: the pinned one by its digest, or the one that the
// reference names.
func imageRef(ref string, choice runtime.ImageChoice) string {
	digest := choice.Pinned.Digest
	if digest == "" {
		return ref
	}
	name, _, _ := strings.Cut(ref, "@")
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		name = name[:colon]
	}
	return name + "@" + digest
}

// imageDigest returns the digest in the image ID that a node reports, such as
// "docker.io/library/debian@sha256:…". An image that a node has from no registry has none,
// and its ID is that of its configuration.
func imageDigest(reported string) (id, digest string) {
	if _, digest, ok := strings.Cut(reported, "@"); ok {
		return digest, digest
	}
	return reported, ""
}

// Newest implements runtime.Runtime. What the cluster has is known from the Pods of this
// installation, since nodes are no objects of a namespace.
func (r *Runtime) Newest(ctx context.Context, ref string, ask bool) (runtime.Image, error) {
	pods, err := r.podView.list(ctx)
	if err != nil {
		return runtime.Image{}, wrapError(ctx, "list Pods", err)
	}
	known := newestOf(pods, ref, func(p *corev1.Pod) bool { return p.Labels[labelInstallation] == r.cfg.Installation })
	if !ask {
		return known, nil
	}
	return runtime.Image{}, errors.New("registries are not asked for the newest images of workspaces in Kubernetes")
}

// newestOf returns the image that the latest of the Pods has for a reference.
func newestOf(pods []*corev1.Pod, ref string, ours func(*corev1.Pod) bool) runtime.Image {
	var found runtime.Image
	var since time.Time
	for _, p := range pods {
		if !ours(p) || p.Annotations[noteImage] != ref || p.CreationTimestamp.Time.Before(since) {
			continue
		}
		for _, name := range []string{containerWorkspace, containerHelper} {
			if s := statusOf(p, name); s != nil && s.ImageID != "" {
				found.ID, found.Digest = imageDigest(s.ImageID)
				since = p.CreationTimestamp.Time
			}
		}
	}
	return found
}
