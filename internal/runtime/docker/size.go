package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/homequota"
	"codehub/internal/workspace"
)

// HomeSizes measures the homes of this installation: the disk space that their files use. It may
// take minutes. Volumes that this process cannot read are measured by Docker, which reads all
// volumes for it and counts sparse files in full, and such folders by the helper. A home that
// cannot be measured is not in the result.
func (r *Runtime) HomeSizes(ctx context.Context) (map[workspace.ID]int64, error) {
	listed, err := r.api.VolumeList(ctx, client.VolumeListOptions{Filters: r.filter(roleHome)})
	if err != nil {
		return nil, wrapError(ctx, "list volumes", err)
	}
	sizes := map[workspace.ID]int64{}
	unread := map[workspace.ID]bool{}
	for _, v := range listed.Items {
		id := workspace.ID(v.Labels[labelWorkspace])
		if v.Name != id.VolumeName() {
			continue
		}
		size, known, err := r.spaceOfVolume(ctx, v.Mountpoint)
		switch {
		case err != nil:
			return nil, err
		case known:
			sizes[id] = size
		default:
			unread[id] = true
		}
	}
	if err := r.measureByDocker(ctx, unread, sizes); err != nil {
		return nil, err
	}
	folders, err := r.folders()
	if err != nil {
		return nil, err
	}
	for _, v := range folders {
		if v.Foreign || v.Claim == "" {
			continue
		}
		size, known, err := r.spaceOfFolder(ctx, v.Workspace)
		if err != nil {
			return nil, err
		}
		if known {
			sizes[v.Workspace] = size
		}
	}
	return sizes, nil
}

// HomeSize measures one home as HomeSizes does. known is false if it cannot be measured.
func (r *Runtime) HomeSize(ctx context.Context, id workspace.ID) (size int64, known bool, err error) {
	v, err := r.api.VolumeInspect(ctx, id.VolumeName(), client.VolumeInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		if r.cfg.DataDir == "" {
			return 0, false, nil
		}
		if side, there, err := r.readFolder(id); err != nil || !there || side.Installation != r.cfg.Installation {
			return 0, false, err
		}
		return r.spaceOfFolder(ctx, id)
	case err != nil:
		return 0, false, wrapError(ctx, "inspect volume", err)
	case !r.owns(v.Volume.Labels, roleHome):
		return 0, false, nil
	}
	if size, known, err = r.spaceOfVolume(ctx, v.Volume.Mountpoint); known || err != nil {
		return size, known, err
	}
	sizes := map[workspace.ID]int64{}
	err = r.measureByDocker(ctx, map[workspace.ID]bool{id: true}, sizes)
	size, known = sizes[id]
	return size, known, err
}

// spaceOfVolume measures a volume that this process can read. The error is that of ctx.
func (r *Runtime) spaceOfVolume(ctx context.Context, mountpoint string) (size int64, known bool, err error) {
	if !r.isLocal(mountpoint) {
		return 0, false, nil
	}
	size, err = spaceOf(ctx, mountpoint)
	if ctx.Err() != nil {
		return 0, false, fmt.Errorf("measure homes: %w", errors.Join(runtime.ErrUnreachable, ctx.Err()))
	}
	return size, err == nil, nil
}

func (r *Runtime) spaceOfFolder(ctx context.Context, id workspace.ID) (size int64, known bool, err error) {
	if size, known := homequota.Used(r.folder(id)); known {
		return size, true, nil
	}
	size, err = spaceOf(ctx, r.homePath(id))
	if errors.Is(err, fs.ErrPermission) {
		size, err = r.spaceByHelper(ctx, id)
	}
	if ctx.Err() != nil {
		return 0, false, fmt.Errorf("measure homes: %w", errors.Join(runtime.ErrUnreachable, ctx.Err()))
	}
	if err != nil {
		r.log.Debug("measure a home failed", "workspace", id, "err", err)
	}
	return size, err == nil, nil
}

// spaceByHelper is spaceOf for a home in a folder with files that this process may not read,
// because they belong to the image's user.
func (r *Runtime) spaceByHelper(ctx context.Context, id workspace.ID) (size int64, err error) {
	printed := errors.New("the helper printed no size")
	home := r.hostHomePath(id)
	err = r.runHelper(ctx, helperRun{
		args: []string{cmdSpace, "/folder/" + filepath.Base(home)}, caps: []string{"DAC_OVERRIDE"},
		// Not the home: a container that mounts that is one of its users.
		mounts: []mount.Mount{{Type: mount.TypeBind, Source: filepath.Dir(home), Target: "/folder", ReadOnly: true}},
		line:   func(line []byte) { size, printed = strconv.ParseInt(string(line), 10, 64) },
	})
	return size, cmp.Or(err, printed)
}

// measureByDocker adds the sizes of these homes as Docker measures them.
func (r *Runtime) measureByDocker(ctx context.Context, homes map[workspace.ID]bool, sizes map[workspace.ID]int64) error {
	if len(homes) == 0 {
		return nil
	}
	used, err := r.api.DiskUsage(ctx, client.DiskUsageOptions{Volumes: true, Verbose: true})
	if err != nil {
		return wrapError(ctx, "measure volumes", err)
	}
	for _, v := range used.Volumes.Items {
		id := workspace.ID(v.Labels[labelWorkspace])
		if homes[id] && v.Name == id.VolumeName() && r.owns(v.Labels, roleHome) && v.UsageData != nil && v.UsageData.Size >= 0 {
			sizes[id] = v.UsageData.Size
		}
	}
	return nil
}

// spaceOf is the disk space of a folder's files; of files with several names once. Files that
// disappear meanwhile do not count.
func spaceOf(ctx context.Context, root string) (int64, error) {
	var n int64
	linked := map[[2]uint64]bool{} // device and inode
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, fs.ErrNotExist) && path != root:
			return nil
		case err != nil:
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) && path != root {
			return nil
		}
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		if st.Nlink > 1 && !d.IsDir() {
			key := [2]uint64{uint64(st.Dev), st.Ino}
			if linked[key] {
				return nil
			}
			linked[key] = true
		}
		n += st.Blocks * 512
		return nil
	})
	return n, err
}
