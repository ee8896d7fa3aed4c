package docker

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

// chosenImage is the image that a container is created from.
type chosenImage struct {
	id, digest, note string
	generation       int
}

// into makes the container one of this image, and records which one it is.
func (i chosenImage) into(opts client.ContainerCreateOptions) client.ContainerCreateOptions {
	opts.Config.Image = i.id // a tag may be moved at any time
	// Also the empty ones: the container would get those that the image has.
	opts.Config.Labels[engine.LabelImageDigest], opts.Config.Labels[engine.LabelImageNote] = i.digest, i.note
	opts.Config.Labels[engine.LabelImageGeneration] = strconv.Itoa(i.generation)
	return opts
}

// describe adds the image to a container that was created from it.
func (i chosenImage) describe(c runtime.Container) runtime.Container {
	c.ImageID, c.ImageDigest, c.ImageNote, c.ImageGeneration = i.id, i.digest, i.note, i.generation
	return c
}

// labelledImage adds what the container's labels say of its image.
func labelledImage(c runtime.Container, id string, labels map[string]string) runtime.Container {
	c.ImageID, c.ImageDigest, c.ImageNote = id, labels[engine.LabelImageDigest], labels[engine.LabelImageNote]
	c.ImageGeneration, _ = strconv.Atoi(labels[engine.LabelImageGeneration]) // 0: of an earlier version
	return c
}

// chooseImage returns the image to create a container from. It pulls the image for the
// user if that is needed.
func (r *Runtime) chooseImage(ctx context.Context, ref, user string, choice runtime.ImageChoice, progress func(runtime.Progress)) (chosenImage, error) {
	out := chosenImage{generation: choice.Generation}
	if choice.Pinned != (runtime.Image{}) {
		id, err := r.pinnedImage(ctx, ref, user, choice.Pinned, progress)
		if err != nil {
			return out, err
		}
		if id != "" {
			out.id, out.digest = id, choice.Pinned.Digest
			return out, nil
		}
		r.engine.Log.Warn("pinned image gone; the image's name decides", "image", ref, "id", choice.Pinned.ID, "digest", choice.Pinned.Digest)
		out.note = workspace.ImageReplaced
	}
	found, interim, err := r.built(ctx, ref, progress)
	if err != nil {
		return out, err
	}
	if interim {
		out.note = workspace.ImageInterim
	}
	switch {
	case found.ID == "":
		if err := r.pull(ctx, ref, user, progress); err != nil {
			return out, err
		}
	case choice.Pull && choice.Pinned == (runtime.Image{}) && found.Digest != "" && !imageref.Pinned(ref) && r.notPulled(ref) == "":
		err := r.pull(ctx, ref, user, progress)
		if err != nil && !pullRefused(err) {
			return out, err
		}
		if err != nil {
			r.engine.Log.Warn("image not updated", "image", ref, "err", err)
			out.note = workspace.ImageNotPulled
		}
	default:
		out.id, out.digest = found.ID, found.Digest
		return out, nil
	}
	if found, err = r.imageHere(ctx, ref); err == nil && found.ID == "" {
		err = engine.ErrConcurrent("image %s is removed as soon as it is pulled", ref)
	}
	out.id, out.digest = found.ID, found.Digest
	return out, err
}

// pinnedImage returns the ID of the pinned image, "" if it cannot be had any more.
func (r *Runtime) pinnedImage(ctx context.Context, ref, user string, pinned runtime.Image, progress func(runtime.Progress)) (string, error) {
	if pinned.ID != "" {
		if found, err := r.imageHere(ctx, pinned.ID); err != nil || found.ID != "" {
			return found.ID, err
		}
	}
	if pinned.Digest == "" {
		return "", nil
	}
	name := imageref.WithDigest(ref, pinned.Digest)
	found, err := r.imageHere(ctx, name)
	if err != nil || found.ID != "" {
		return found.ID, err
	}
	if err := r.pull(ctx, name, user, progress); err != nil {
		if imageGone(err) {
			r.engine.Log.Warn("pinned image not pulled", "image", name, "err", err)
			return "", nil
		}
		return "", err
	}
	found, err = r.imageHere(ctx, name)
	return found.ID, err
}

// pullRefused reports whether the registry did not provide the image, or too slowly.
func pullRefused(err error) bool {
	var refused *runtime.PullError
	var slow *runtime.SlowPullError
	return errors.As(err, &refused) || errors.As(err, &slow)
}

// imageGone reports whether the registry answered that it does not have the image any
// more. Any other error may pass, and must not replace a pinned image.
func imageGone(err error) bool {
	var refused *runtime.PullError
	if !errors.As(err, &refused) {
		return false
	}
	message := strings.ToLower(refused.Message)
	return strings.Contains(message, "manifest unknown") || strings.Contains(message, "not found")
}

// imageHere returns the image that a reference or an ID names on this machine; the zero
// Image if there is none.
func (r *Runtime) imageHere(ctx context.Context, ref string) (runtime.Image, error) {
	info, err := r.engine.API.ImageInspect(ctx, ref)
	switch {
	case errdefs.IsNotFound(err):
		return runtime.Image{}, nil
	case err != nil && errdefs.IsInvalidArgument(err):
		return runtime.Image{}, &runtime.PullError{Image: ref, Message: workspace.Cut(err.Error())}
	case err != nil:
		return runtime.Image{}, engine.WrapError(ctx, "inspect image", err)
	}
	return runtime.Image{ID: info.ID, Digest: registryDigest(info.RepoDigests, ref)}, nil
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
func (r *Runtime) Newest(ctx context.Context, ref string, ask bool) (runtime.Image, error) {
	info, err := r.engine.API.ImageInspect(ctx, ref)
	if err != nil && !errdefs.IsNotFound(err) {
		return runtime.Image{}, engine.WrapError(ctx, "inspect image", err)
	}
	here := runtime.Image{ID: info.ID, Digest: registryDigest(info.RepoDigests, ref)}
	if !ask || r.notPulled(ref) != "" || imageref.Pinned(ref) {
		return here, nil
	}
	login := r.credentials(ref)
	// Without the breaker: a slow registry says nothing about Docker.
	found, err := r.engine.Plain.DistributionInspect(ctx, ref, client.DistributionInspectOptions{EncodedRegistryAuth: login.encoded})
	if err != nil {
		return runtime.Image{}, login.refusal(ref, pullFailed(ctx, ref, err))
	}
	digest := found.Descriptor.Digest.String()
	for _, d := range info.RepoDigests {
		if d == imageref.WithDigest(ref, digest) {
			return runtime.Image{ID: info.ID, Digest: digest}, nil
		}
	}
	return runtime.Image{Digest: digest}, nil
}
