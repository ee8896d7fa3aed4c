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

// workspaceUID is the uid of workspaces whose image has no user other than root. It
// owns the home in the default image.
const workspaceUID = 1000

// runAs is what a workspace runs, and as whom. uid 0 of a container is uid 0 of the host, and
// shares the kernel's limits with the host's own programs.
type runAs struct {
	user string // numeric uid, never 0, as in container.Config.User
	// own: the image's user is root, so the home may belong to root.
	own     bool
	command []string // the image's ENTRYPOINT and CMD
	missing bool     // there is no such image
	// agent is the volume with the agent's executable, and agentDigest its digest.
	agent, agentDigest string

	// zoned: the image sets TZ.
	zoned   bool
	ulimits []*container.Ulimit
}

var asWorkspaceUser = fmt.Sprintf("%d:%d", workspaceUID, workspaceUID)

// userOf returns what a workspace of this image runs, and as whom: the image's user,
// or the workspace user if that is root. An image is best named by its ID.
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
	user, zoned := "", false
	var command []string
	if info.Config != nil {
		user, zoned = info.Config.User, setsZone(info.Config.Env)
		command = slices.Concat(info.Config.Entrypoint, info.Config.Cmd)
	}
	if len(command) == 0 {
		return runAs{}, fmt.Errorf("the image %.200q has neither ENTRYPOINT nor CMD", image)
	}
	as, err := resolveUser(user, func() (string, error) { return r.imageFile(ctx, info.ID, "/etc/passwd") })
	if err != nil {
		return runAs{}, err
	}
	as.command, as.zoned = command, zoned
	r.runAs.Store(info.ID, as)
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

// imageFile reads a file of an image, in a container that is never started.
func (r *Runtime) imageFile(ctx context.Context, image, name string) (string, error) {
	made, err := r.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name:       r.names.helper + "-" + randomHex(4),
		Config:     &container.Config{Image: image, Cmd: []string{"never-started"}, Labels: r.labels(roleHelper, "", "")},
		HostConfig: &container.HostConfig{NetworkMode: noNetwork},
	})
	if err != nil {
		return "", wrapError(ctx, "read the image's users", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		if err := r.discard(ctx, made.ID); err != nil {
			r.log.Warn("helper container not removed", "container", made.ID, "err", err)
		}
	}()
	for range 8 { // a chain of links
		header, text, err := r.containerFile(ctx, made.ID, name)
		if err != nil {
			return "", err
		}
		switch header.Typeflag {
		case tar.TypeReg:
			return text, nil
		case tar.TypeSymlink:
			if !path.IsAbs(header.Linkname) {
				header.Linkname = path.Join(path.Dir(name), header.Linkname)
			}
			name = path.Clean(header.Linkname)
		default:
			return "", fmt.Errorf("%s of the image is not a file", name)
		}
	}
	return "", fmt.Errorf("%s of the image is a loop of links", name)
}

func (r *Runtime) containerFile(ctx context.Context, id, name string) (*tar.Header, string, error) {
	res, err := r.api.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: name})
	if errdefs.IsNotFound(err) {
		return nil, "", fmt.Errorf("the image has no %s, in which its user would be", name)
	}
	if err != nil {
		return nil, "", wrapError(ctx, "read the image's users", err)
	}
	defer res.Content.Close()
	tr := tar.NewReader(res.Content)
	header, err := tr.Next()
	if err != nil {
		return nil, "", wrapError(ctx, "read the image's users", err)
	}
	text, err := io.ReadAll(io.LimitReader(tr, maxPasswd))
	if err != nil {
		return nil, "", wrapError(ctx, "read the image's users", err)
	}
	return header, string(text), nil
}

// isRoot reports whether a container that was created with this user may run as uid
// 0: every container of this version has a number.
func isRoot(user string) bool {
	name, _, _ := strings.Cut(user, ":")
	uid, err := strconv.Atoi(name)
	return err != nil || uid == 0
}

// ownHome gives the workspace user what belongs to root in the home. The caller has
// created the workspace's container, which holds the home.
func (r *Runtime) ownHome(ctx context.Context, spec runtime.ContainerSpec) error {
	home := r.volumeMount(spec.Workspace, runtime.JobHomeDir, randomHex(8), false)
	if spec.Storage == workspace.StorageLocalDir {
		home = mount.Mount{Type: mount.TypeBind, Source: r.hostHomePath(spec.Workspace), Target: runtime.JobHomeDir}
	}
	return r.runHelper(ctx, helperRun{
		args: []string{cmdOwnHome, runtime.JobHomeDir}, caps: []string{"CHOWN", "DAC_OVERRIDE"}, mounts: []mount.Mount{home},
	})
}

// ownTree changes uid 0 and gid 0 of all entries to the workspace user's. It leaves
// out what lies deeper than a path can say.
func ownTree(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, syscall.ENAMETOOLONG):
			return fs.SkipDir
		case err != nil:
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, syscall.ENAMETOOLONG) {
			return nil
		}
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || stat.Uid != 0 && stat.Gid != 0 {
			return nil
		}
		uid, gid := -1, -1
		if stat.Uid == 0 {
			uid = workspaceUID
		}
		if stat.Gid == 0 {
			gid = workspaceUID
		}
		return os.Lchown(path, uid, gid)
	})
}
