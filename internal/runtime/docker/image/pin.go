package image

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// Chosen is the image that a container is created from.
type Chosen struct {
	ID, digest, Note string
	generation       int
}

// Into makes the container one of this image, and records which one it is.
func (i Chosen) Into(opts client.ContainerCreateOptions) client.ContainerCreateOptions {
	opts.Config.Image = i.ID // a tag may be moved at any time
	// Also the empty ones: the container would get those that the image has.
	opts.Config.Labels[engine.LabelImageDigest], opts.Config.Labels[engine.LabelImageNote] = i.digest, i.Note
	opts.Config.Labels[engine.LabelImageGeneration] = strconv.Itoa(i.generation)
	return opts
}

// Describe adds the image to a container that was created from it.
func (i Chosen) Describe(c runtime.Container) runtime.Container {
	c.ImageID, c.ImageDigest, c.ImageNote, c.ImageGeneration = i.ID, i.digest, i.Note, i.generation
	return c
}

// Labelled adds what the container's labels say of its image.
func Labelled(c runtime.Container, id string, labels map[string]string) runtime.Container {
	c.ImageID, c.ImageDigest, c.ImageNote = id, labels[engine.LabelImageDigest], labels[engine.LabelImageNote]
	c.ImageGeneration, _ = strconv.Atoi(labels[engine.LabelImageGeneration]) // 0: of an earlier version
	return c
}

// Choose returns the image to create a container from. It pulls the image for the
// user if that is needed.
func (i *Images) Choose(ctx context.Context, ref, user string, choice runtime.ImageChoice, progress func(runtime.Progress)) (Chosen, error) {
	out := Chosen{generation: choice.Generation}
	if choice.Pinned != (runtime.Image{}) {
		id, err := i.pinned(ctx, ref, user, choice.Pinned, progress)
		if err != nil {
			return out, err
		}
		if id != "" {
			out.ID, out.digest = id, choice.Pinned.Digest
			return out, nil
		}
		i.Log.Warn("pinned image gone; the image's name decides", "image", ref, "id", choice.Pinned.ID, "digest", choice.Pinned.Digest)
		out.Note = workspace.ImageReplaced
	}
	found, interim, err := i.built(ctx, ref, progress)
	if err != nil {
		return out, err
	}
	if interim {
		out.Note = workspace.ImageInterim
	}
	switch {
	case found.ID == "":
		if err := i.pull(ctx, ref, user, progress); err != nil {
			return out, err
		}
	case choice.Pull && choice.Pinned == (runtime.Image{}) && found.Digest != "" && !imageref.Pinned(ref) && i.notPulled(ref) == "":
		err := i.pull(ctx, ref, user, progress)
		if err != nil && !PullRefused(err) {
			return out, err
		}
		if err != nil {
			i.Log.Warn("image not updated", "image", ref, "err", err)
			out.Note = workspace.ImageNotPulled
		}
	default:
		out.ID, out.digest = found.ID, found.Digest
		return out, nil
	}
	if found, err = i.Here(ctx, ref); err == nil && found.ID == "" {
		err = engine.ErrConcurrent("image %s is removed as soon as it is pulled", ref)
	}
	out.ID, out.digest = found.ID, found.Digest
	return out, err
}

// pinned returns the ID of the pinned image, "" if it cannot be had any more.
func (i *Images) pinned(ctx context.Context, ref, user string, pinned runtime.Image, progress func(runtime.Progress)) (string, error) {
	if pinned.ID != "" {
		if found, err := i.Here(ctx, pinned.ID); err != nil || found.ID != "" {
			return found.ID, err
		}
	}
	if pinned.Digest == "" {
		return "", nil
	}
	name := imageref.WithDigest(ref, pinned.Digest)
	found, err := i.Here(ctx, name)
	if err != nil || found.ID != "" {
		return found.ID, err
	}
	if err := i.pull(ctx, name, user, progress); err != nil {
		if gone(err) {
			i.Log.Warn("pinned image not pulled", "image", name, "err", err)
			return "", nil
		}
		return "", err
	}
	found, err = i.Here(ctx, name)
	return found.ID, err
}

// PullRefused reports whether the registry did not provide the image, or too slowly.
func PullRefused(err error) bool {
	var refused *runtime.PullError
	var slow *runtime.SlowPullError
	return errors.As(err, &refused) || errors.As(err, &slow)
}

// gone reports whether the registry answered that it does not have the image any
// more. Any other error may pass, and must not replace a pinned image.
func gone(err error) bool {
	var refused *runtime.PullError
	if !errors.As(err, &refused) {
		return false
	}
	message := strings.ToLower(refused.Message)
	return strings.Contains(message, "manifest unknown") || strings.Contains(message, "not found")
}

// Here returns the image that a reference or an ID names on this machine; the zero
// Image if there is none.
func (i *Images) Here(ctx context.Context, ref string) (runtime.Image, error) {
	info, digest, err := i.inspect(ctx, ref)
	switch {
	case errdefs.IsNotFound(err):
		return runtime.Image{}, nil
	case err != nil && errdefs.IsInvalidArgument(err):
		return runtime.Image{}, &runtime.PullError{Image: ref, Message: workspace.Cut(err.Error())}
	case err != nil:
		return runtime.Image{}, engine.WrapError(ctx, "inspect image", err)
	}
	return runtime.Image{ID: info.ID, Digest: digest}, nil
}

// inspect returns Docker's description of an image, and the digest by which it can be pulled
// again. A name with a digest also finds an image that was loaded from a file: Docker knows no
// digest of it, but codehub images load has checked it and named the image by it.
func (i *Images) inspect(ctx context.Context, ref string) (info client.ImageInspectResult, digest string, err error) {
	info, err = i.API.ImageInspect(ctx, ref)
	if loaded := imageref.Loaded(ref); loaded != "" && errdefs.IsNotFound(err) {
		if info, err = i.API.ImageInspect(ctx, loaded); err == nil {
			return info, imageref.Digest(ref), nil
		}
	}
	return info, registryDigest(info.RepoDigests, ref), err
}

// registryDigest returns the digest by which an image can be pulled again; "" for one
// that was built here.
func registryDigest(digests []string, ref string) string {
	if imageref.BuiltHere(ref) {
		return ""
	}
	return imageref.DigestIn(digests, ref)
}

// Newest implements runtime.Runtime.
func (i *Images) Newest(ctx context.Context, ref string, ask bool) (runtime.Image, error) {
	info, digest, err := i.inspect(ctx, ref)
	if err != nil && !errdefs.IsNotFound(err) {
		return runtime.Image{}, engine.WrapError(ctx, "inspect image", err)
	}
	here := runtime.Image{ID: info.ID, Digest: digest}
	if !ask || i.notPulled(ref) != "" || imageref.Pinned(ref) {
		return here, nil
	}
	login := i.credentials(ref)
	// Without the breaker: a slow registry says nothing about Docker.
	found, err := i.Plain.DistributionInspect(ctx, ref, client.DistributionInspectOptions{EncodedRegistryAuth: login.encoded})
	if err != nil {
		return runtime.Image{}, login.refusal(ref, pullFailed(ctx, ref, err))
	}
	digest = found.Descriptor.Digest.String()
	for _, d := range info.RepoDigests {
		if d == imageref.WithDigest(ref, digest) {
			return runtime.Image{ID: info.ID, Digest: digest}, nil
		}
	}
	return runtime.Image{Digest: digest}, nil
}
