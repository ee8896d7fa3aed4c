package docker

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/base/trust"
	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/docker/engine"
)

// runAs is what a workspace runs, and what its user needs in the container. The user has
// the workspace's uid, whatever users the image has.
type runAs struct {
	command []string // starts the IDE
	missing bool     // there is no such image

	included bool              // the image brings the IDE
	env      map[string]string // defaults that the image's own variables do not replace
	accounts account.Accounts
	trusted  []addedFile
	zoned    bool // the image sets TZ

	agent, agentDigest string // the volume with the agent, and its digest
	ide                string // the volume with the IDE; empty if the image brings it
	ulimits            []*container.Ulimit
}

// userOf returns what a workspace of this image runs. An image is best named by its ID.
func (r *Runtime) userOf(ctx context.Context, image string) (runAs, error) {
	if known, ok := r.runAs.get(image); ok {
		return known, nil
	}
	info, err := r.engine.API.ImageInspect(ctx, image)
	if errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err) {
		// The container cannot be created either, or only if the image appears now.
		return runAs{missing: true}, nil
	}
	if err != nil {
		return runAs{}, engine.WrapError(ctx, "inspect image", err)
	}
	if known, ok := r.runAs.get(info.ID); ok {
		return known, nil
	}
	var cfg imageConfig
	if info.Config != nil {
		cfg = imageConfig{env: info.Config.Env, command: slices.Concat(info.Config.Entrypoint, info.Config.Cmd), included: info.Config.Labels[account.LabelIDE] == account.IDEIncluded}
	}
	as := runAs{command: []string{account.IDEStart}, included: cfg.included, zoned: account.SetsZone(cfg.env)}
	if as.accounts, as.trusted, err = r.readAccounts(ctx, info.ID); err != nil {
		return runAs{}, err
	}
	as.env = account.Env(cfg.env, as.accounts.Shell)
	if cfg.included {
		if len(cfg.command) == 0 {
			return runAs{}, fmt.Errorf("the image %.200q has the label %s=%s, but neither ENTRYPOINT nor CMD", image, account.LabelIDE, account.IDEIncluded)
		}
		as.command = cfg.command
		as.env = map[string]string{"HOME": runtime.HomeDir} // that of its own user may not be accessible
	}
	if len(as.trusted) > 0 {
		maps.Copy(as.env, trust.Env(cfg.env))
	}
	r.runAs.put(info.ID, as)
	return as, nil
}

// imageConfig is what an image says of itself.
type imageConfig struct {
	env      []string
	command  []string // ENTRYPOINT and CMD
	included bool     // see account.LabelIDE
}

// maxImageFile is the longest file of an image that is read: a list of users, or of authorities.
const maxImageFile = 1 << 20

// imageFiles are the files of an image, in a container that is never started.
type imageFiles struct {
	r         *Runtime
	container string
}

// withImageFiles calls read with the files of an image.
func (r *Runtime) withImageFiles(ctx context.Context, image string, read func(imageFiles) error) error {
	made, err := r.engine.API.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name:       r.engine.Names.Helper + "-" + engine.RandomHex(4),
		Config:     &container.Config{Image: image, Cmd: []string{"never-started"}, Labels: r.engine.Labels(engine.RoleHelper, "", "")},
		HostConfig: &container.HostConfig{NetworkMode: engine.NoNetwork},
	})
	if errdefs.IsNotFound(err) {
		return engine.ErrConcurrent("the image is being removed")
	}
	if err != nil {
		return engine.WrapError(ctx, "read the image's users", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), engine.AskTimeout)
		defer cancel()
		if err := r.engine.Discard(ctx, made.ID); err != nil {
			r.engine.Log.Warn("helper container not removed", "container", made.ID, "err", err)
		}
	}()
	if err := read(imageFiles{r, made.ID}); err != nil {
		return err
	}
	// Docker says the same of a missing file as of a missing container, which a prune may
	// have removed.
	_, err = r.engine.API.ContainerInspect(ctx, made.ID, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return engine.ErrConcurrent("a container that was just created was removed")
	}
	return engine.WrapError(ctx, "read the image's users", err)
}

// read returns the content of a file, which may be behind links. found is false if there
// is none.
func (f imageFiles) read(ctx context.Context, name string) (text string, found bool, err error) {
	at := name
	for range 8 { // a chain of links
		header, text, found, err := f.entry(ctx, at)
		if err != nil || !found {
			return "", false, err
		}
		switch header.Typeflag {
		case tar.TypeReg:
			return text, true, nil
		case tar.TypeSymlink:
			if !path.IsAbs(header.Linkname) {
				header.Linkname = path.Join(path.Dir(at), header.Linkname)
			}
			at = path.Clean(header.Linkname)
		default:
			return "", false, fmt.Errorf("%s of the image is not a file", name)
		}
	}
	return "", false, fmt.Errorf("%s of the image is a loop of links", name)
}

func (f imageFiles) entry(ctx context.Context, name string) (header *tar.Header, text string, found bool, err error) {
	res, err := f.r.engine.API.CopyFromContainer(ctx, f.container, client.CopyFromContainerOptions{SourcePath: name})
	if errdefs.IsNotFound(err) {
		return nil, "", false, nil
	}
	if err != nil {
		return nil, "", false, engine.WrapError(ctx, "read the image's users", err)
	}
	defer res.Content.Close()
	tr := tar.NewReader(res.Content)
	if header, err = tr.Next(); err != nil {
		return nil, "", false, engine.WrapError(ctx, "read the image's users", err)
	}
	content, err := io.ReadAll(io.LimitReader(tr, maxImageFile+1))
	if err == nil && len(content) > maxImageFile {
		err = fmt.Errorf("%s of the image is larger than %d bytes", name, maxImageFile)
	}
	if err != nil {
		return nil, "", false, engine.WrapError(ctx, "read the image's users", err)
	}
	return header, string(content), true, nil
}

// has reports whether the image has something with this name.
func (f imageFiles) has(ctx context.Context, name string) (bool, error) {
	_, err := f.r.engine.API.ContainerStatPath(ctx, f.container, client.ContainerStatPathOptions{Path: name})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, engine.WrapError(ctx, "look for the image's files", err)
}

// userSpec is the user of a workspace's container, as in container.Config.User.
func userSpec(uid uint32) string { return fmt.Sprintf("%d:%[1]d", uid) }
