package image

import (
	"context"
	"crypto/sha256"
	"path"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/base/trust"
	"codehub/internal/runtime/docker/engine"
)

// With authorities of a company, each container gets files with these and its image's own, also
// in the places of the image's own. A mount there would not let root in a workspace with sudo
// update them.

// addedFile is a file, or a folder if it has no content, that a container gets.
type addedFile struct {
	name    string // without a slash at the beginning
	content []byte
}

// trustedFiles returns the files with the authorities that workspaces of an image trust; none
// without authorities of a company.
func (i *Images) trustedFiles(ctx context.Context, f contents) ([]addedFile, error) {
	if len(i.cfg.Authorities) == 0 {
		return nil, nil
	}
	var image []byte
	var places []string
	for _, name := range trust.Bundles {
		place, found, err := f.place(ctx, name)
		if err != nil {
			return nil, err
		}
		if !found {
			continue
		}
		text, found, err := f.read(ctx, place)
		if err != nil || !found {
			i.Log.Warn("the authorities that an image trusts cannot be read", "file", name, "err", err)
			continue
		}
		if places = append(places, place); image == nil {
			image = []byte(text)
		}
	}
	if places == nil {
		places = trust.Bundles[:1]
	}
	// Images of one distribution have the same.
	key := sha256.Sum256(image)
	all, known := i.trusted.get(key)
	if !known {
		all = trust.Files(image, i.cfg.Authorities)
		i.trusted.put(key, all)
	}

	var files []addedFile
	for _, place := range append(slices.Clone(places), trust.BundlePath) {
		missing, err := f.missingFolders(ctx, place)
		if err != nil {
			return nil, err
		}
		files = append(files, missing...)
		if place != trust.BundlePath {
			files = append(files, addedFile{place[1:], all[path.Base(trust.BundlePath)]})
		}
	}
	for name, content := range all {
		files = append(files, addedFile{path.Join(trust.Dir, name)[1:], content})
	}
	return files, nil
}

// place returns where the file that has this name is, which may be a link.
func (f contents) place(ctx context.Context, name string) (place string, found bool, err error) {
	info, err := f.i.API.ContainerStatPath(ctx, f.container, client.ContainerStatPathOptions{Path: name})
	switch {
	case errdefs.IsNotFound(err):
		return "", false, nil
	case err != nil:
		return "", false, engine.WrapError(ctx, "look for the image's files", err)
	case path.IsAbs(info.Stat.LinkTarget):
		name = path.Clean(info.Stat.LinkTarget)
	}
	return name, true, nil
}

// missingFolders returns the folders above a file that the image does not have. Docker would
// make them so that everybody can write there.
func (f contents) missingFolders(ctx context.Context, name string) ([]addedFile, error) {
	var out []addedFile
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		if has, err := f.has(ctx, dir); err != nil || has {
			return out, err
		}
		out = slices.Insert(out, 0, addedFile{name: dir[1:]})
	}
	return out, nil
}
