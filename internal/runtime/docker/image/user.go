package image

import (
	"archive/tar"
	"bytes"
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

// RunAs is what a workspace runs, and what its user needs in the container. The user has
// the workspace's uid, whatever users the image has.
type RunAs struct {
	Command []string // starts the IDE
	Missing bool     // there is no such image

	Included bool              // the image brings the IDE
	Env      map[string]string // defaults that the image's own variables do not replace
	accounts account.Accounts
	linked   bool // the image has the lists of users and groups behind links
	trusted  []addedFile
	Zoned    bool // the image sets TZ
}

// RunAs returns what a workspace of this image runs. An image is best named by its ID.
func (i *Images) RunAs(ctx context.Context, image string) (RunAs, error) {
	if known, ok := i.runAs.get(image); ok {
		return known, nil
	}
	info, _, err := i.inspect(ctx, image)
	if errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err) {
		// The container cannot be created either, or only if the image appears now.
		return RunAs{Missing: true}, nil
	}
	if err != nil {
		return RunAs{}, engine.WrapError(ctx, "inspect image", err)
	}
	if known, ok := i.runAs.get(info.ID); ok {
		return known, nil
	}
	var cfg declared
	if info.Config != nil {
		cfg = declared{env: info.Config.Env, command: slices.Concat(info.Config.Entrypoint, info.Config.Cmd), included: info.Config.Labels[account.LabelIDE] == account.IDEIncluded}
	}
	as := RunAs{Command: []string{account.IDEStart}, Included: cfg.included, Zoned: account.SetsZone(cfg.env)}
	if err = i.readAccounts(ctx, info.ID, &as); err != nil {
		return RunAs{}, err
	}
	as.Env = account.Env(cfg.env, as.accounts.Shell)
	if cfg.included {
		if len(cfg.command) == 0 {
			return RunAs{}, fmt.Errorf("the image %.200q has the label %s=%s, but neither ENTRYPOINT nor CMD", image, account.LabelIDE, account.IDEIncluded)
		}
		as.Command = cfg.command
		as.Env = map[string]string{"HOME": runtime.HomeDir} // that of its own user may not be accessible
	}
	if len(as.trusted) > 0 {
		maps.Copy(as.Env, trust.Env(cfg.env))
	}
	i.runAs.put(info.ID, as)
	return as, nil
}

// declared is what an image says of itself.
type declared struct {
	env      []string
	command  []string // ENTRYPOINT and CMD
	included bool     // see account.LabelIDE
}

// maxImageFile is the longest file of an image that is read: a list of users, or of authorities.
const maxImageFile = 1 << 20

// contents are the files of an image, in a container that is never started.
type contents struct {
	i         *Images
	container string
}

// open calls read with the files of an image.
func (i *Images) open(ctx context.Context, image string, read func(contents) error) error {
	made, err := i.API.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name:       i.Names.Helper + "-" + engine.RandomHex(4),
		Config:     &container.Config{Image: image, Cmd: []string{"never-started"}, Labels: i.Labels(engine.RoleHelper, "", "")},
		HostConfig: &container.HostConfig{NetworkMode: engine.NoNetwork},
	})
	if errdefs.IsNotFound(err) {
		return engine.ErrConcurrent("the image is being removed")
	}
	if err != nil {
		return engine.WrapError(ctx, "read the image's users", err)
	}
	defer i.Abandon(ctx, made.ID)
	if err := read(contents{i, made.ID}); err != nil {
		return err
	}
	// Docker says the same of a missing file as of a missing container, which a prune may
	// have removed.
	_, err = i.API.ContainerInspect(ctx, made.ID, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return engine.ErrConcurrent("a container that was just created was removed")
	}
	return engine.WrapError(ctx, "read the image's users", err)
}

// read returns the content of a file, which may be behind links. found is false if there
// is none.
func (f contents) read(ctx context.Context, name string) (text string, found bool, err error) {
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

func (f contents) entry(ctx context.Context, name string) (header *tar.Header, text string, found bool, err error) {
	res, err := f.i.API.CopyFromContainer(ctx, f.container, client.CopyFromContainerOptions{SourcePath: name})
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
func (f contents) has(ctx context.Context, name string) (bool, error) {
	_, err := f.i.API.ContainerStatPath(ctx, f.container, client.ContainerStatPathOptions{Path: name})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, engine.WrapError(ctx, "look for the image's files", err)
}

// UserSpec is the user of a workspace's container, as in container.Config.User.
func UserSpec(uid uint32) string { return fmt.Sprintf("%d:%[1]d", uid) }

// The user of a workspace gets a name, a home and a shell by files that are mounted or copied
// into the container before its start.

func (i *Images) readAccounts(ctx context.Context, image string, as *RunAs) error {
	err := i.open(ctx, image, func(f contents) (err error) {
		a := &as.accounts
		for name, list := range map[string]*string{"/etc/passwd": &a.Passwd, "/etc/group": &a.Group} {
			if *list, _, err = f.read(ctx, name); err != nil {
				return err
			}
			place, found, err := f.place(ctx, name)
			if err != nil {
				return err
			}
			as.linked = as.linked || found && place != name
		}
		if a.Shell, err = account.FindShell(a.Passwd, func(name string) (bool, error) { return f.has(ctx, name) }); err != nil {
			return err
		}
		if a.Tmp, err = f.has(ctx, "/tmp"); err != nil {
			return err
		}
		as.trusted, err = i.trustedFiles(ctx, f)
		return err
	})
	if err != nil {
		return fmt.Errorf("prepare the image for workspaces: %w", err)
	}
	return nil
}

// accountsTar returns the archive with files of /etc, with /tmp, and with other files.
func accountsTar(files map[string]string, tmp bool, others []addedFile) ([]byte, error) {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content := files[name]
		if err := tw.WriteHeader(&tar.Header{Name: "etc/" + name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return nil, err
		}
		if _, err := tw.Write([]byte(content)); err != nil {
			return nil, err
		}
	}
	if tmp {
		if err := tw.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}); err != nil {
			return nil, err
		}
	}
	for _, f := range others {
		header := &tar.Header{Name: f.name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(f.content))}
		if f.content == nil {
			header.Name, header.Typeflag, header.Mode = f.name+"/", tar.TypeDir, 0o755
		}
		if err := tw.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := tw.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := tw.Close()
	return b.Bytes(), err
}

// MakeReady prepares a created container for its start: its user has a name, and /tmp, and its
// programs trust the authorities of the company. mounted says that the container has the mounts of
// MountNames.
func (i *Images) MakeReady(ctx context.Context, as RunAs, uid uint32, id string, mounted bool) error {
	files := map[string]string{}
	if !mounted {
		files = as.accounts.Files(uid)
	}
	if len(files) == 0 && as.accounts.Tmp && len(as.trusted) == 0 {
		return nil
	}
	content, err := accountsTar(files, !as.accounts.Tmp, as.trusted)
	if err != nil {
		return err
	}
	_, err = i.API.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: "/", Content: bytes.NewReader(content)})
	return engine.WrapError(ctx, "put the workspace's files into the container", err)
}
