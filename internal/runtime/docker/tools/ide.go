package tools

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
// extensions; see volume and extensions.

const ideDir = account.IDEDir

// HasIDE reports whether the volume with the IDE in a container that was created is filled:
// it may have been removed just before, and then Docker has made an empty one. The
// container holds it, so it stays as it is.
func (t *Tools) HasIDE(ctx context.Context, volume string) (bool, error) {
	if volume == "" {
		return true, nil // the image brings the IDE
	}
	return t.filled.Do(ctx, volume, func(ctx context.Context) (bool, error) { return t.isFilled(ctx, volume) })
}

// IDE returns the complete volume with the IDE, and its digest.
func (t *Tools) IDE(ctx context.Context) (name, digest string, err error) {
	if t.cfg.IDEImage == "" {
		return "", "", &runtime.PullError{Message: "the image brings no IDE, and no image with one is set (CODEHUB_IDE_IMAGE)"}
	}
	extras, broken := t.offered.current(t.cfg.ExtensionsDir)
	t.noExtensions.Set(broken)
	if err := t.stillThere(ctx, &t.ide); err != nil {
		return "", "", err
	}
	found, err := t.images.Choose(ctx, t.cfg.IDEImage, "", runtime.ImageChoice{}, nil)
	if image.PullRefused(err) {
		// No container uses the image, so that a prune removes it. The volume has its content.
		if name, digest := t.ide.known(); name != "" {
			t.Log.Debug("the IDE's image is gone; its volume is used", "image", t.cfg.IDEImage, "err", err)
			return name, digest, nil
		}
	}
	if err != nil {
		err = fmt.Errorf("the IDE's image: %w", err)
		if image.PullRefused(err) {
			t.ide.failed.Set(err)
		}
		return "", "", err
	}
	own := strings.TrimPrefix(found.ID, "sha256:")
	digest = extras.on(own)
	if _, known := t.ide.known(); broken != nil && known != digest {
		extras, digest = extensions{}, own // what a volume would be filled from is not there
	}
	run := helper.Run{Image: found.ID, Args: []string{helper.CmdInstallIDE, ideDir, fillDir, digest, ""}}
	if extras.digest != "" {
		run.Files, run.Args[4] = extras.pack, helper.FilesDir
	}
	name, err = t.fillOnce(ctx, &t.ide, digest, run)
	return name, digest, err
}
