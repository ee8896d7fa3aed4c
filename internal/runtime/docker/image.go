package docker

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// imageMissing reports whether Docker refused to create a container because its
// image is missing. Docker says "not found" in other cases, too.
func (r *Runtime) imageMissing(ctx context.Context, refusal error, image string) (bool, error) {
	if errdefs.IsInvalidArgument(refusal) && !errdefs.IsNotFound(refusal) {
		// If the reference is invalid, inspecting the image returns an error that
		// says so.
		_, err := r.api.ImageInspect(ctx, image)
		if err != nil && errdefs.IsInvalidArgument(err) {
			return false, &runtime.PullError{Image: image, Message: workspace.Cut(err.Error())}
		}
		return false, nil
	}
	if !errdefs.IsNotFound(refusal) {
		return false, nil
	}
	_, err := r.api.ImageInspect(ctx, image)
	if errdefs.IsNotFound(err) {
		return true, nil
	}
	return false, wrapError(ctx, "inspect image", err)
}

// pull fetches the image. If the image is not available, the error is a
// *runtime.PullError with Docker's message.
func (r *Runtime) pull(ctx context.Context, image string, progress func(runtime.Progress)) error {
	report(progress, runtime.StepPulling)
	stream, err := r.api.ImagePull(ctx, image, client.ImagePullOptions{})
	if err != nil {
		return pullFailed(ctx, image, err)
	}
	var sum layers
	for m, err := range stream.JSONMessages(ctx) {
		if err != nil {
			return pullFailed(ctx, image, err)
		}
		if m.Error != nil {
			return pullFailed(ctx, image, errors.New(m.Error.Message))
		}
		if m.ID == "" || m.Progress == nil || m.Status != "Downloading" && m.Status != "Extracting" {
			continue
		}
		if sum.update(m.ID, m.Status == "Extracting", m.Progress.Current, m.Progress.Total) && progress != nil {
			progress(runtime.Progress{Step: runtime.StepPulling, Done: sum.done, Total: sum.total})
		}
	}
	// A truncated stream ends like a complete one.
	if _, err := r.api.ImageInspect(ctx, image); err != nil {
		if errdefs.IsNotFound(err) {
			return &runtime.PullError{Image: image, Message: "the pull ended without an image"}
		}
		return wrapError(ctx, "inspect image", err)
	}
	return nil
}

func pullFailed(ctx context.Context, image string, err error) error {
	if ctx.Err() != nil {
		// The caller's time limit says nothing about Docker.
		return fmt.Errorf("pull %s: %w", image, context.Cause(ctx))
	}
	if unreachable(err) || fillsDisk(err) {
		return wrapError(ctx, "pull "+image, err)
	}
	return &runtime.PullError{Image: image, Message: workspace.Cut(echoedResponse.ReplaceAllString(err.Error(), "$1"))}
}

// echoedResponse matches the part of a message in which Docker repeats the response
// of a server that is not a registry. Users choose the server by the image's name,
// and Docker can reach servers on its own host, so the response must not be shown.
var echoedResponse = regexp.MustCompile(`(?s)(error parsing HTTP \d+ response body): .*`)

// layers sums up the bytes of a pull.
type layers struct {
	done, total int64
	layer       map[string]layer
}

type layer struct{ done, total int64 }

// update records the progress of a layer and reports whether the sum changed. A
// layer that is being unpacked is completely downloaded.
func (l *layers) update(id string, unpacking bool, done, total int64) bool {
	if l.layer == nil {
		l.layer = map[string]layer{}
	}
	old := l.layer[id]
	now := layer{done: done, total: max(total, old.total)}
	if unpacking {
		now.done = now.total
	}
	now.done = min(max(now.done, old.done), now.total)
	if now == old {
		return false
	}
	l.layer[id] = now
	l.done += now.done - old.done
	l.total += now.total - old.total
	return true
}
