package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// HomeSizes measures the homes of this installation: the disk space that their files use. Docker
// reads all volumes for it, and folders are read here, so it may take minutes. A home
// that cannot be read is not in the result.
func (r *Runtime) HomeSizes(ctx context.Context) (map[workspace.ID]int64, error) {
	used, err := r.api.DiskUsage(ctx, client.DiskUsageOptions{Volumes: true, Verbose: true})
	if err != nil {
		return nil, wrapError(ctx, "measure volumes", err)
	}
	sizes := map[workspace.ID]int64{}
	for _, v := range used.Volumes.Items {
		id := workspace.ID(v.Labels[labelWorkspace])
		if v.Labels[labelInstallation] != r.cfg.Installation || v.Labels[labelRole] != roleHome || v.Name != id.VolumeName() {
			continue
		}
		if v.UsageData != nil && v.UsageData.Size >= 0 {
			sizes[id] = v.UsageData.Size
		}
	}
	folders, err := r.folders()
	if err != nil {
		return nil, err
	}
	for _, v := range folders {
		if v.Foreign || v.Storage != workspace.StorageLocalDir {
			continue
		}
		size, err := spaceOf(ctx, r.homePath(v.Workspace))
		if ctx.Err() != nil {
			return nil, fmt.Errorf("measure homes: %w", errors.Join(runtime.ErrUnreachable, ctx.Err()))
		}
		if err != nil {
			r.log.Debug("measure a home failed", "workspace", v.Workspace, "err", err)
			continue
		}
		sizes[v.Workspace] = size
	}
	return sizes, nil
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
