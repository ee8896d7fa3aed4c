package build

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/runtime/docker/engine"
)

// Image is an image that was built, or that a failed build has left.
type Image struct {
	ID      string
	Names   []string // none: a build has left it
	Owner   string   // of the workspace it was built for
	Created time.Time
}

// Has returns the ID of the image with this name; "" if there is none.
func (b *Builder) Has(ctx context.Context, name string) (string, error) {
	found, err := b.images.Here(ctx, name)
	return found.ID, err
}

// Built lists the images that were built for workspaces of this installation.
func (b *Builder) Built(ctx context.Context) ([]Image, error) {
	list, err := b.API.ImageList(ctx, client.ImageListOptions{Filters: b.Filter(engine.RoleBuilt)})
	if err != nil {
		return nil, engine.WrapError(ctx, "list images", err)
	}
	out := make([]Image, 0, len(list.Items))
	for _, i := range list.Items {
		image := Image{ID: i.ID, Owner: i.Labels[engine.LabelOwner], Created: time.Unix(i.Created, 0)}
		for _, name := range i.RepoTags {
			if name != "<none>:<none>" {
				image.Names = append(image.Names, name)
			}
		}
		out = append(out, image)
	}
	return out, nil
}

// RemoveBuilt removes a built image by one of its names, or by its ID. An image that a container
// or another image uses stays; that is no error.
func (b *Builder) RemoveBuilt(ctx context.Context, name string) error {
	_, err := b.API.ImageRemove(ctx, name, client.ImageRemoveOptions{PruneChildren: true})
	if errdefs.IsNotFound(err) || errdefs.IsConflict(err) {
		return nil
	}
	return engine.WrapError(ctx, "remove image", err)
}
