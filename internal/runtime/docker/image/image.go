package image

import (
	"cmp"
	"context"
	"fmt"
	"regexp"

	"github.com/containerd/errdefs"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// Missing reports whether Docker refused to create a container because its
// image is missing. Docker says "not found" in other cases, too.
func (i *Images) Missing(ctx context.Context, refusal error, image string) (bool, error) {
	if errdefs.IsInvalidArgument(refusal) && !errdefs.IsNotFound(refusal) {
		// If the reference is invalid, inspecting the image returns an error that
		// says so.
		if _, err := i.Here(ctx, image); PullRefused(err) {
			return false, err
		}
		return false, nil
	}
	if !errdefs.IsNotFound(refusal) {
		return false, nil
	}
	found, err := i.Here(ctx, image)
	return err == nil && found.ID == "", err
}

// notPulled returns the reason why an image must not be pulled, or "". All users run the
// default image and the IDE: without a digest, the owner of the name in a registry could
// replace them.
func (i *Images) notPulled(image string) string {
	_, built := imageref.BuiltFor(image)
	switch {
	case built:
		return fmt.Sprintf(runtime.MsgBuiltGone, image)
	case imageref.Pinned(image):
		return ""
	case imageref.BuiltHere(image):
		return fmt.Sprintf(runtime.MsgNotBuilt, image)
	case i.cfg.DefaultImage != "" && imageref.Same(image, i.cfg.DefaultImage):
		return fmt.Sprintf(runtime.MsgNoDefault, image)
	case i.cfg.IDEImage != "" && imageref.Same(image, i.cfg.IDEImage):
		return fmt.Sprintf(runtime.MsgNoIDE, image)
	}
	return ""
}

// CheckDefault reports that the default image is missing, and how an administrator brings it.
func (i *Images) CheckDefault(ctx context.Context) {
	if i.cfg.DefaultImage == "" {
		return
	}
	why := cmp.Or(i.notPulled(i.cfg.DefaultImage), fmt.Sprintf(runtime.MsgNotHere, i.cfg.DefaultImage))
	ctx, cancel := context.WithTimeout(ctx, engine.AskTimeout)
	defer cancel()
	_, _, err := i.inspect(ctx, i.cfg.DefaultImage)
	switch {
	case err == nil:
		i.noDefault.Set(nil)
	case errdefs.IsNotFound(err) && i.cfg.Builds.Pending(i.cfg.DefaultImage): // it is not known yet
	case errdefs.IsNotFound(err):
		i.noDefault.Set(&runtime.PullError{Image: i.cfg.DefaultImage, Message: why})
	default: // it is not known; Docker's own condition says why
	}
}

func pullFailed(ctx context.Context, image string, err error) error {
	if ctx.Err() != nil {
		// The end of the context says nothing about Docker.
		return fmt.Errorf("pull %s: %w", image, context.Cause(ctx))
	}
	if engine.Unreachable(err) || fillsDisk(err) {
		return engine.WrapError(ctx, "pull "+image, err)
	}
	return &runtime.PullError{Image: image, Message: workspace.Cut(WithoutResponse(err.Error()))}
}

// WithoutResponse returns a message of Docker without what it repeats of a server that is not a
// registry.
func WithoutResponse(message string) string { return echoedResponse.ReplaceAllString(message, "$1") }

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
