package docker

import (
	"context"
	"fmt"
	"strings"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/image"
)

// Workspaces get the IDE from a volume, so that their images need none. Its content is
// the tree at ideDir of the IDE's image, which Docker's administrators choose
// (CODEHUB_IDE_IMAGE); it brings its own libraries and needs nothing of the workspace's
// image. There is a volume for each ID of that image and each content of the folder with
// extensions; see toolVolume and extensions.

const ideDir = account.IDEDir

// hasIDE reports whether the volume with the IDE in a container that was created is filled:
// it may have been removed just before, and then Docker has made an empty one. The
// container holds it, so it stays as it is.
func (r *Runtime) hasIDE(ctx context.Context, volume string) (bool, error) {
	if volume == "" {
		return true, nil // the image brings the IDE
	}
	return r.filled.Do(ctx, volume, func(ctx context.Context) (bool, error) { return r.isFilled(ctx, volume) })
}

// ensureIDEVolume returns the complete volume with the IDE, and its digest.
func (r *Runtime) ensureIDEVolume(ctx context.Context) (name, digest string, err error) {
	if r.cfg.IDEImage == "" {
		return "", "", &runtime.PullError{Message: "the image brings no IDE, and no image with one is set (CODEHUB_IDE_IMAGE)"}
	}
	extras, broken := r.offered.current(r.cfg.ExtensionsDir)
	r.noExtensions.Set(broken)
	if err := r.stillThere(ctx, &r.ide); err != nil {
		return "", "", err
	}
	found, err := r.images.Choose(ctx, r.cfg.IDEImage, "", runtime.ImageChoice{}, nil)
	if image.PullRefused(err) {
		// No container uses the image, so that a prune removes it. The volume has its content.
		if name, digest := r.ide.known(); name != "" {
			r.engine.Log.Debug("the IDE's image is gone; its volume is used", "image", r.cfg.IDEImage, "err", err)
			return name, digest, nil
		}
	}
	if err != nil {
		err = fmt.Errorf("the IDE's image: %w", err)
		if image.PullRefused(err) {
			r.ide.failed.Set(err)
		}
		return "", "", err
	}
	own := strings.TrimPrefix(found.ID, "sha256:")
	digest = extras.on(own)
	if _, known := r.ide.known(); broken != nil && known != digest {
		extras, digest = extensions{}, own // what a volume would be filled from is not there
	}
	run := helper.Run{Image: found.ID, Args: []string{helper.CmdInstallIDE, ideDir, fillDir, digest, ""}}
	if extras.digest != "" {
		run.Files, run.Args[4] = extras.pack, helper.FilesDir
	}
	name, err = r.fillOnce(ctx, &r.ide, digest, run)
	return name, digest, err
}
