package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/runtime/registry"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// Pods name their images by digests, so that the image of a workspace stays the same on every
// node. This server asks the registry for the digest. Where it cannot, because only the nodes
// have a login or a mirror, the name decides, and the digest is known from the node.

// chosenImage is the image of a Pod.
type chosenImage struct {
	ref    string // as given
	name   string // of the Pod's container
	digest string // empty: not known before a node has the image
	note   string
	policy corev1.PullPolicy
	pinned bool // another one may take its place if it is gone
}

// chooseImage returns the image that a Pod is to have.
func (r *Runtime) chooseImage(ctx context.Context, ref string, choice runtime.ImageChoice) (chosenImage, error) {
	pinned := choice.Pinned
	switch {
	case pinned.Digest != "":
		c := byDigest(ref, pinned.Digest)
		c.pinned = true
		return c, nil
	case pinned.ID != "": // from no registry, so a node has it or not
		return chosenImage{ref: ref, name: pinned.ID, policy: corev1.PullNever, pinned: true}, nil
	}
	return r.namedImage(ctx, ref, choice.Pull)
}

// namedImage returns the image that a reference names now.
func (r *Runtime) namedImage(ctx context.Context, ref string, update bool) (chosenImage, error) {
	if !imageref.Valid(ref) {
		return chosenImage{}, &runtime.PullError{Image: ref, Message: "it is not a reference to an image"}
	}
	if imageref.Pinned(ref) || imageref.BuiltHere(ref) {
		return chosenImage{ref: ref, name: ref, digest: digestOf(ref), policy: pullPolicy(ref)}, nil
	}
	digest, err := r.images.resolve(ctx, ref)
	if err == nil {
		return byDigest(ref, digest), nil
	}
	if ctx.Err() != nil {
		return chosenImage{}, wrapError(ctx, "ask the registry for "+ref, ctx.Err())
	}
	r.log.Debug("the registry was asked in vain; the nodes decide", "image", ref, "err", err)
	if update {
		last, err := r.lastKnown(ctx, ref)
		if err != nil {
			return chosenImage{}, err
		}
		if last != "" {
			c := byDigest(ref, last)
			c.note = workspace.ImageNotPulled
			return c, nil
		}
	}
	return chosenImage{ref: ref, name: ref, policy: pullPolicy(ref)}, nil
}

// replacement returns the image that the reference names, in place of a pinned one that is
// gone.
func (r *Runtime) replacement(ctx context.Context, gone chosenImage) (chosenImage, error) {
	r.log.Warn("pinned image gone; the image's name decides", "image", gone.ref, "pinned", gone.name)
	c, err := r.namedImage(ctx, gone.ref, false)
	c.note = workspace.ImageReplaced
	return c, err
}

func byDigest(ref, digest string) chosenImage {
	return chosenImage{ref: ref, name: imageref.WithDigest(ref, digest), digest: digest, policy: corev1.PullIfNotPresent}
}

// digestOf returns the digest in a reference, or "".
func digestOf(ref string) string {
	_, digest, _ := strings.Cut(ref, "@")
	return digest
}

// pullPolicy keeps nodes from downloading an image with a name that codehub gives to those it
// builds: the owner of that name in a public registry would decide what users run.
func pullPolicy(ref string) corev1.PullPolicy {
	if imageref.BuiltHere(ref) && !imageref.Pinned(ref) {
		return corev1.PullNever
	}
	return corev1.PullIfNotPresent
}

// onNode returns the image as a node that has it reports it.
func (c chosenImage) onNode(reported string) chosenImage {
	if _, digest := imageDigest(reported); c.digest == "" && digest != "" && !imageref.BuiltHere(c.ref) {
		note := c.note
		c = byDigest(c.ref, digest)
		c.note = note
	}
	return c
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

// imageOn returns the image of a Pod's container: by the digest that the Pod names, or else
// as its node reports it.
func imageOn(p *corev1.Pod, container string) runtime.Image {
	if digest := p.Annotations[noteImageDigest]; digest != "" {
		return runtime.Image{ID: digest, Digest: digest}
	}
	s := statusOf(p, container)
	if s == nil {
		return runtime.Image{}
	}
	id, digest := imageDigest(s.ImageID)
	return runtime.Image{ID: id, Digest: digest}
}

// Newest implements runtime.Runtime. What the cluster has is known from the Pods of this
// installation, since nodes are no objects of a namespace.
func (r *Runtime) Newest(ctx context.Context, ref string, ask bool) (runtime.Image, error) {
	pods, err := r.podView.list(ctx)
	if err != nil {
		return runtime.Image{}, wrapError(ctx, "list Pods", err)
	}
	var here runtime.Image
	var since time.Time
	had := map[string]bool{}
	for _, p := range pods {
		if p.Labels[labelInstallation] != r.cfg.Installation || p.Annotations[noteImage] != ref {
			continue
		}
		for _, name := range []string{containerWorkspace, containerHelper} {
			image := imageOn(p, name)
			if s := statusOf(p, name); image.ID == "" || s == nil || s.ImageID == "" {
				continue // no node has it yet
			}
			had[image.Digest] = true
			if at := p.CreationTimestamp.Time; here.ID == "" || at.After(since) {
				here, since = image, at
			}
		}
	}
	if !ask || imageref.Pinned(ref) || imageref.BuiltHere(ref) {
		return here, nil
	}
	digest, err := r.images.resolve(ctx, ref)
	if err != nil {
		return runtime.Image{}, wrapPull(ref, err)
	}
	newest := runtime.Image{Digest: digest}
	if had[digest] {
		newest.ID = digest
	}
	return newest, nil
}

func wrapPull(ref string, err error) error {
	if registry.KindOf(err) == registry.Unreachable {
		return fmt.Errorf("ask for the newest image %s: %w", ref, err)
	}
	return &runtime.PullError{Image: ref, Message: err.Error()}
}

// withImage calls use with the image of a choice. If that is pinned and gone, it calls use
// again with the one that the reference names.
func (r *Runtime) withImage(ctx context.Context, ref string, choice runtime.ImageChoice, use func(chosenImage) error) error {
	c, err := r.chooseImage(ctx, ref, choice)
	if err != nil {
		return err
	}
	err = use(c)
	if c.pinned && r.imageGone(ctx, c, err) {
		if c, err = r.replacement(ctx, c); err == nil {
			err = use(c)
		}
	}
	return inPlainWords(err)
}

// imageGone reports whether an image can no longer be had: no node has it, or the registry
// responds that it does not. Any other error may pass, and must not replace a pinned image.
func (r *Runtime) imageGone(ctx context.Context, c chosenImage, err error) bool {
	var refused *runtime.PullError
	switch {
	case !errors.As(err, &refused):
		return false
	case c.policy == corev1.PullNever:
		return true
	case registry.OfMessage(refused.Message) == registry.Missing:
		return true
	}
	_, err = r.images.resolve(ctx, c.name)
	return registry.KindOf(err) == registry.Missing
}

// inPlainWords replaces a node's message about a pull by one that says what to do.
func inPlainWords(err error) error {
	var pull *runtime.PullError
	if !errors.As(err, &pull) {
		return err
	}
	host, text := imageref.Registry(pull.Image), pull.Message
	switch {
	case imageref.BuiltHere(pull.Image) && !imageref.Pinned(pull.Image):
		text = fmt.Sprintf(runtime.MsgNotDownloaded, pull.Image)
	case registry.OfMessage(text) == registry.LoginNeeded:
		text = fmt.Sprintf(runtime.MsgNodeLogin, host)
	case registry.OfMessage(text) == registry.Unreachable:
		text = fmt.Sprintf(runtime.MsgNodeUnreachable, host)
	case registry.OfMessage(text) == registry.Missing:
		text = fmt.Sprintf(runtime.MsgNoImage, host)
	case strings.Contains(text, "no match for platform"):
		text = runtime.MsgNoPlatform
	}
	return &runtime.PullError{Image: pull.Image, Message: workspace.Cut(text)}
}

// secretData returns the logins in a Secret for pulling images.
func (r *Runtime) secretData(ctx context.Context, name string) ([]byte, error) {
	s, err := r.secrets().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, wrapError(ctx, "read Secret "+name, err)
	}
	data, ok := s.Data[corev1.DockerConfigJsonKey]
	if !ok {
		return nil, fmt.Errorf("the Secret %s has no %s", name, corev1.DockerConfigJsonKey)
	}
	return data, nil
}
