package docker

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// workspaceUID is the uid of workspaces that run codehub's IDE, and of those whose image
// has its own IDE and no user other than root. Of all images' users it owns the home in
// the default image.
const workspaceUID = 1000

// runAs is what a workspace runs, and as whom. uid 0 of a container is uid 0 of the host, and
// shares the kernel's limits with the host's own programs.
type runAs struct {
	user string // numeric uid, never 0, as in container.Config.User
	// own: the home may belong to another user, because the image's content at HomeDir does.
	own     bool
	command []string // starts the IDE
	missing bool     // there is no such image

	included bool              // the image brings the IDE
	env      map[string]string // defaults that the image's own variables do not replace
	accounts []byte            // what the container needs before its start, as a tar archive; nil: nothing
	zoned    bool              // the image sets TZ

	agent, agentDigest string // the volume with the agent, and its digest
	ide                string // the volume with the IDE; empty if the image brings it
	ulimits            []*container.Ulimit
}

var asWorkspaceUser = fmt.Sprintf("%d:%d", workspaceUID, workspaceUID)

// userOf returns what a workspace of this image runs, and as whom. An image is best named
// by its ID.
func (r *Runtime) userOf(ctx context.Context, image string) (runAs, error) {
	if known, ok := r.runAs.Load(image); ok {
		return known.(runAs), nil
	}
	info, err := r.api.ImageInspect(ctx, image)
	if errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err) {
		// The container cannot be created either, or only if the image appears now.
		return runAs{user: asWorkspaceUser, missing: true}, nil
	}
	if err != nil {
		return runAs{}, wrapError(ctx, "inspect image", err)
	}
	if known, ok := r.runAs.Load(info.ID); ok {
		return known.(runAs), nil
	}
	var cfg imageConfig
	if info.Config != nil {
		cfg = imageConfig{user: info.Config.User, env: info.Config.Env, command: slices.Concat(info.Config.Entrypoint, info.Config.Cmd), included: info.Config.Labels[labelIDE] == ideIncluded}
	}
	var as runAs
	if cfg.included {
		as, err = r.ownIDE(ctx, image, info.ID, cfg)
	} else {
		as, err = r.anyImage(ctx, info.ID, cfg)
	}
	if err != nil {
		return runAs{}, err
	}
	as.included, as.zoned = cfg.included, setsZone(cfg.env)
	r.runAs.Store(info.ID, as)
	return as, nil
}

// imageConfig is what an image says of itself.
type imageConfig struct {
	user     string
	env      []string
	command  []string // ENTRYPOINT and CMD
	included bool     // see labelIDE
}

// ownIDE is what a workspace runs whose image brings the IDE: the image's own command, as the
// image's user, or as the workspace user if that is root.
func (r *Runtime) ownIDE(ctx context.Context, image, id string, cfg imageConfig) (runAs, error) {
	if len(cfg.command) == 0 {
		return runAs{}, fmt.Errorf("the image %.200q has the label %s=%s, but neither ENTRYPOINT nor CMD", image, labelIDE, ideIncluded)
	}
	as, err := resolveUser(cfg.user, func() (string, error) { return r.imageFile(ctx, id, "/etc/passwd") })
	if err != nil {
		return runAs{}, err
	}
	as.command = cfg.command
	if as.own {
		as.env = map[string]string{"HOME": runtime.HomeDir} // root's home is not accessible
	}
	return as, nil
}

// resolveUser decides by the image's user. Names are looked up as Docker does, in
// the image's own list of users; the result is numeric, so that Docker does not
// look them up again.
func resolveUser(user string, passwd func() (string, error)) (runAs, error) {
	name, group, grouped := strings.Cut(user, ":")
	uid, err := strconv.Atoi(name)
	switch {
	case name == "":
		uid = 0
	case err != nil:
		text, err := passwd()
		if err != nil {
			return runAs{}, err
		}
		var found bool
		if uid, found = lookUpUser(text, name); !found {
			return runAs{}, fmt.Errorf("the image's user %.100q is not in its /etc/passwd", name)
		}
	}
	if uid == 0 {
		return runAs{user: asWorkspaceUser, own: true}, nil
	}
	as := runAs{user: strconv.Itoa(uid)}
	if grouped {
		as.user += ":" + group
	}
	return as, nil
}

// lookUpUser returns the uid of the first user of this name. One that is not a
// number is 0, as for Docker.
func lookUpUser(passwd, name string) (uid int, found bool) {
	for line := range strings.Lines(passwd) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if fields[0] != name {
			continue
		}
		if len(fields) > 2 {
			uid, _ = strconv.Atoi(fields[2])
		}
		return uid, true
	}
	return 0, false
}

// maxPasswd is the longest list of users that is read.
const maxPasswd = 1 << 20

// imageFile reads a file of an image.
func (r *Runtime) imageFile(ctx context.Context, image, name string) (text string, err error) {
	err = r.lookInto(ctx, image, func(f imageFiles) error {
		var found bool
		text, found, err = f.read(ctx, name)
		if err == nil && !found {
			err = fmt.Errorf("the image has no %s, in which its user would be", name)
		}
		return err
	})
	return text, err
}

// imageFiles are the files of an image, in a container that is never started.
type imageFiles struct {
	r         *Runtime
	container string
}

// lookInto calls look with the files of an image.
func (r *Runtime) lookInto(ctx context.Context, image string, look func(imageFiles) error) error {
	made, err := r.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name:       r.names.helper + "-" + randomHex(4),
		Config:     &container.Config{Image: image, Cmd: []string{"never-started"}, Labels: r.labels(roleHelper, "", "")},
		HostConfig: &container.HostConfig{NetworkMode: noNetwork},
	})
	if errdefs.IsNotFound(err) {
		return errConcurrent("the image is being removed")
	}
	if err != nil {
		return wrapError(ctx, "read the image's users", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		if err := r.discard(ctx, made.ID); err != nil {
			r.log.Warn("helper container not removed", "container", made.ID, "err", err)
		}
	}()
	if err := look(imageFiles{r, made.ID}); err != nil {
		return err
	}
	// Docker says the same of a missing file as of a missing container, which a prune may
	// have removed.
	_, err = r.api.ContainerInspect(ctx, made.ID, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return errConcurrent("a container that was just created was removed")
	}
	return wrapError(ctx, "read the image's users", err)
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
	res, err := f.r.api.CopyFromContainer(ctx, f.container, client.CopyFromContainerOptions{SourcePath: name})
	if errdefs.IsNotFound(err) {
		return nil, "", false, nil
	}
	if err != nil {
		return nil, "", false, wrapError(ctx, "read the image's users", err)
	}
	defer res.Content.Close()
	tr := tar.NewReader(res.Content)
	if header, err = tr.Next(); err != nil {
		return nil, "", false, wrapError(ctx, "read the image's users", err)
	}
	content, err := io.ReadAll(io.LimitReader(tr, maxPasswd+1))
	if err == nil && len(content) > maxPasswd {
		err = fmt.Errorf("%s of the image is larger than %d bytes", name, maxPasswd)
	}
	if err != nil {
		return nil, "", false, wrapError(ctx, "read the image's users", err)
	}
	return header, string(content), true, nil
}

// has reports whether the image has something with this name.
func (f imageFiles) has(ctx context.Context, name string) (bool, error) {
	_, err := f.r.api.ContainerStatPath(ctx, f.container, client.ContainerStatPathOptions{Path: name})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, wrapError(ctx, "look for the image's files", err)
}

// isRoot reports whether a container that was created with this user may run as uid
// 0: every container of this version has a number.
func isRoot(user string) bool {
	name, _, _ := strings.Cut(user, ":")
	uid, err := strconv.Atoi(name)
	return err != nil || uid == 0
}

// ownHome gives the workspace user what belongs to root, or to the user who owns the home,
// in the home. The caller has created the workspace's container, which holds the home. A
// home for which this process has done so is left alone: without root nothing of root's
// appears in it.
func (r *Runtime) ownHome(ctx context.Context, spec runtime.ContainerSpec) error {
	if known, ok := r.owned.Load(spec.Workspace); ok && known == spec.VolumeClaim {
		return nil
	}
	home := r.volumeMount(spec.Workspace, runtime.JobHomeDir, randomHex(8), false)
	if spec.Storage == workspace.StorageLocalDir {
		home = mount.Mount{Type: mount.TypeBind, Source: r.hostHomePath(spec.Workspace), Target: runtime.JobHomeDir}
	}
	err := r.runHelper(ctx, helperRun{
		args: []string{cmdOwnHome, runtime.JobHomeDir}, caps: []string{"CHOWN", "DAC_OVERRIDE", "FOWNER"}, mounts: []mount.Mount{home}, mappedUsers: true,
	})
	if err == nil {
		r.owned.Store(spec.Workspace, spec.VolumeClaim)
	}
	return err
}

// ownTree gives the workspace user all entries of root, and of the user who owns the
// tree's top folder: an image may have made the home for a user of its own. The top folder
// comes last, so that a call that was interrupted can be repeated. It leaves out what lies
// deeper than a path can say.
func ownTree(root string) error {
	top, err := os.Lstat(root)
	if err != nil {
		return err
	}
	owner := top.Sys().(*syscall.Stat_t)
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, syscall.ENAMETOOLONG):
			return fs.SkipDir
		case err != nil:
			return err
		case path == root:
			return nil
		}
		info, err := entry.Info()
		if errors.Is(err, syscall.ENAMETOOLONG) {
			return nil
		}
		if err != nil {
			return err
		}
		return ownEntry(path, info, owner)
	})
	if err != nil {
		return err
	}
	return ownEntry(root, top, owner)
}

func ownEntry(path string, info fs.FileInfo, owner *syscall.Stat_t) error {
	stat := info.Sys().(*syscall.Stat_t)
	mapped := func(id, of uint32) int {
		if id == workspaceUID || id != 0 && id != of {
			return -1
		}
		return workspaceUID
	}
	uid, gid := mapped(stat.Uid, owner.Uid), mapped(stat.Gid, owner.Gid)
	if uid == -1 && gid == -1 {
		return nil
	}
	if err := os.Lchown(path, uid, gid); err != nil {
		return err
	}
	if info.Mode().IsRegular() && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
		return os.Chmod(path, info.Mode()) // the kernel has removed the bits
	}
	return nil
}
