package home

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
)

// rootMaxAge is how long the path of Docker's data directory is cached.
const rootMaxAge = 10 * time.Minute

// Disks implements runtime.Runtime. It returns the disk of the data directory and
// that of Docker's data directory, once if they are the same. For Docker on another
// machine it returns nothing.
func (h *Homes) Disks(ctx context.Context) ([]runtime.Disk, error) {
	var places []place
	if h.cfg.DataDir != "" {
		places = append(places, place{"the data folder", h.cfg.DataDir})
	}
	root, err := h.dockerRoot(ctx)
	if err != nil {
		return nil, err
	}
	if root != "" {
		places = append(places, place{"Docker's folder", root})
	}
	var out []runtime.Disk
	known := map[uint64]int{} // device → place in out
	for _, p := range places {
		device, disk, err := diskOf(p.path)
		if err != nil {
			return nil, fmt.Errorf("read the free space of %s: %w", p.name, err)
		}
		if i, ok := known[device]; ok {
			out[i].Name += " and " + p.name
			continue
		}
		disk.Name = p.name
		known[device] = len(out)
		out = append(out, disk)
	}
	return out, nil
}

type place struct{ name, path string }

// dockerRoot returns Docker's data directory, where its volumes are, if Docker runs
// on this machine.
func (h *Homes) dockerRoot(ctx context.Context) (string, error) {
	if !strings.HasPrefix(h.API.DaemonHost(), "unix://") {
		return "", nil
	}
	h.mu.Lock()
	root, at := h.root, h.rootAt
	h.mu.Unlock()
	if root != "" && h.Now().Sub(at) < rootMaxAge {
		return root, nil
	}
	ctx, cancel := context.WithTimeout(ctx, engine.AskTimeout)
	defer cancel()
	res, err := h.API.Info(ctx, client.InfoOptions{})
	if err != nil {
		return "", engine.WrapError(ctx, "get Docker's data directory", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.root, h.rootAt = res.Info.DockerRootDir, h.Now()
	return h.root, nil
}

// diskOf returns the file system of the path, or of its nearest accessible parent.
func diskOf(path string) (device uint64, disk runtime.Disk, err error) {
	for {
		var fsStat unix.Statfs_t
		var stat unix.Stat_t
		err := unix.Statfs(path, &fsStat)
		if err == nil {
			err = unix.Stat(path, &stat)
		}
		if err == nil {
			block := int64(fsStat.Frsize)
			return stat.Dev, runtime.Disk{
				Free: int64(fsStat.Bavail) * block, Total: int64(fsStat.Blocks) * block,
				FreeInodes: int64(fsStat.Ffree), Inodes: int64(fsStat.Files),
			}, nil
		}
		missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOTDIR)
		above := filepath.Dir(path)
		if !missing || above == path {
			return 0, runtime.Disk{}, err
		}
		path = above
	}
}
