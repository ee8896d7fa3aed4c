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

// imageMissing reports whether a refusal to create a container was for want of
// its image. The engine says "not found" of other things, too.
func (r *Runtime) imageMissing(ctx context.Context, refusal error, image string) (bool, error) {
	if errdefs.IsInvalidArgument(refusal) && !errdefs.IsNotFound(refusal) {
		// Not a reference at all, perhaps: the engine's word on the image tells.
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
	return false, failed(ctx, "inspect image", err)
}

// pull fetches the image. That it cannot be had is a *runtime.PullError with
// the engine's words.
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
		if sum.note(m.ID, m.Status == "Extracting", m.Progress.Current, m.Progress.Total) && progress != nil {
			progress(runtime.Progress{Step: runtime.StepPulling, Done: sum.done, Total: sum.total})
		}
	}
	// A stream that was cut short ends like one that is complete.
	if _, err := r.api.ImageInspect(ctx, image); err != nil {
		if errdefs.IsNotFound(err) {
			return &runtime.PullError{Image: image, Message: "the pull ended without an image"}
		}
		return failed(ctx, "inspect image", err)
	}
	return nil
}

func pullFailed(ctx context.Context, image string, err error) error {
	if ctx.Err() != nil {
		// The caller's bound on a pull says nothing about the engine.
		return fmt.Errorf("pull %s: %w", image, context.Cause(ctx))
	}
	if unreachable(err) || fillsDisk(err) {
		return failed(ctx, "pull "+image, err)
	}
	return &runtime.PullError{Image: image, Message: workspace.Cut(echoed.ReplaceAllString(err.Error(), "$1"))}
}

// echoed is where the engine repeats what a server that is no registry has
// answered. An image's name chooses the server, and the engine reaches this
// host's own: whoever names an image must not read their answers.
var echoed = regexp.MustCompile(`(?s)(error parsing HTTP \d+ response body): .*`)

// layers adds up the bytes of a pull.
type layers struct {
	done, total int64
	layer       map[string]layer
}

type layer struct{ done, total int64 }

// note takes what was said of one layer and reports whether the sum changed. A
// layer that is being unpacked was wholly downloaded.
func (l *layers) note(id string, unpacking bool, done, total int64) bool {
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
