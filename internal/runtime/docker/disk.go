package docker

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
)

// rootKnownFor is how long the engine's folder is believed to be where it said.
const rootKnownFor = 10 * time.Minute

// Disks implements runtime.Runtime: the disk of the data folder and that of
// the engine's, once if they are one. Of an engine on another machine nothing
// can be told.
func (r *Runtime) Disks(ctx context.Context) ([]runtime.Disk, error) {
	var places []place
	if r.cfg.DataDir != "" {
		places = append(places, place{"the data folder", r.cfg.DataDir})
	}
	root, err := r.engineRoot(ctx)
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
			return nil, fmt.Errorf("look how full the disk of %s is: %w", p.name, err)
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

// engineRoot is the engine's folder, if the engine is on this machine: where it
// keeps volumes.
func (r *Runtime) engineRoot(ctx context.Context) (string, error) {
	if !strings.HasPrefix(r.api.DaemonHost(), "unix://") {
		return "", nil
	}
	r.mu.Lock()
	root, at := r.root, r.rootAt
	r.mu.Unlock()
	if root != "" && r.now().Sub(at) < rootKnownFor {
		return root, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := r.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return "", failed(ctx, "ask the engine for its folder", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.root, r.rootAt = res.Info.DockerRootDir, r.now()
	return r.root, nil
}

// diskOf looks at the file system of the path, or of the nearest folder above
// it that can be looked at.
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
			return stat.Dev, runtime.Disk{Free: int64(fsStat.Bavail) * block, Total: int64(fsStat.Blocks) * block}, nil
		}
		missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOTDIR)
		above := filepath.Dir(path)
		if !missing || above == path {
			return 0, runtime.Disk{}, err
		}
		path = above
	}
}
