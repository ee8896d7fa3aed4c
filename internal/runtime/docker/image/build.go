package image

import (
	"context"
	"fmt"
	"strings"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/runtime/imagebuild"
	"codehub/internal/workspace/imageref"
)

// buildReport is how often a start that waits for the build of an image reports that it
// waits. Only the build, or an administrator who tries again, ends the wait.
const buildReport = 5 * time.Second

// built returns the image that a reference names on this machine; the zero Image if there is
// none, and the server does not make it either. It waits for one that the server makes. In
// place of the default image it returns the slim one while the default image is not ready.
func (i *Images) built(ctx context.Context, ref string, progress func(runtime.Progress)) (found runtime.Image, interim bool, err error) {
	if i.cfg.Builds == nil {
		found, err = i.Here(ctx, ref)
		return found, false, err
	}
	var again *time.Ticker
	for {
		changed := i.cfg.Builds.Changed()
		if found, err = i.Here(ctx, ref); err != nil || found.ID != "" {
			return found, false, err
		}
		refs := []string{ref}
		if other := i.interim(ref); other != "" {
			if found, err = i.Here(ctx, other); err != nil || found.ID != "" {
				return found, true, err
			}
			refs = append(refs, other)
		}
		waits, ok := i.waitsForBuild(refs)
		if !ok {
			return runtime.Image{}, false, nil
		}
		if progress != nil {
			progress(waits)
		}
		if again == nil {
			again = time.NewTicker(buildReport)
			defer again.Stop()
		}
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
			return runtime.Image{}, false, fmt.Errorf("wait for the build of %s: %w", ref, context.Cause(ctx))
		}
	}
}

// AwaitIDE waits for the IDE's image if it is missing and the server makes it.
func (i *Images) AwaitIDE(ctx context.Context, progress func(runtime.Progress)) error {
	if i.cfg.Builds == nil || i.cfg.IDEImage == "" {
		return nil
	}
	_, _, err := i.built(ctx, i.cfg.IDEImage, progress)
	return err
}

// interim returns the image that is used in place of the default image while that is not
// ready; "" for none, and for every other image.
func (i *Images) interim(ref string) string {
	if i.cfg.DefaultImage == "" || !imageref.Same(ref, i.cfg.DefaultImage) {
		return ""
	}
	return i.cfg.Builds.Interim(ref)
}

// waitsForBuild returns what a start shows that waits for one of the images; false if the
// server makes none of them, or has made them.
func (i *Images) waitsForBuild(refs []string) (runtime.Progress, bool) {
	var failed []string
	for _, ref := range refs {
		image, found := i.cfg.Builds.Find(ref)
		switch {
		case !found:
		case image.State == imagebuild.Waiting, image.State == imagebuild.Making:
			detail := ref
			if now, ok := i.cfg.Builds.Current(); ok { // the images before it, too
				detail = now.Ref
				if now.Steps > 0 {
					detail = fmt.Sprintf("%s, "+runtime.MsgBuildStep+" %s", now.Ref, now.Step, now.Steps, now.Text)
				}
			}
			return runtime.Progress{Step: runtime.StepWaitingBuild, Detail: detail, Uncounted: true}, true
		case image.State == imagebuild.Failed:
			failed = append(failed, image.Ref)
		}
	}
	return runtime.Progress{Step: runtime.StepBuildFailed, Detail: strings.Join(failed, ", "), Uncounted: true}, len(failed) > 0
}

// IsBuilt reports whether the server need not make an image before it can be used.
func (i *Images) IsBuilt(ctx context.Context, ref string) (bool, error) {
	image, found := i.cfg.Builds.Find(ref)
	if !found || image.State == imagebuild.Ready {
		return true, nil
	}
	here, err := i.Here(ctx, ref)
	return here.ID != "", err
}
