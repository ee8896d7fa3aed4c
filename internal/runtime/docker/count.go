package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// treeSize is the number of entries and bytes in a directory.
type treeSize struct{ entries, bytes int64 }

const countedPrefix = "counted "

func (s treeSize) String() string { return fmt.Sprintf("%s%d %d", countedPrefix, s.entries, s.bytes) }

func parseCounted(line []byte) (s treeSize, ok bool) {
	rest, ok := strings.CutPrefix(string(line), countedPrefix)
	entries, bytes, two := strings.Cut(rest, " ")
	if !ok || !two {
		return s, false
	}
	var err [2]error
	s.entries, err[0] = strconv.ParseInt(entries, 10, 64)
	s.bytes, err[1] = strconv.ParseInt(bytes, 10, 64)
	return s, errors.Join(err[0], err[1]) == nil
}

// countTree counts the content of a directory that is being written to. It skips
// what it cannot read or what disappears.
func countTree(ctx context.Context, path string) (treeSize, error) {
	var size treeSize
	err := filepath.WalkDir(path, func(at string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			if at == path {
				return err
			}
			return nil
		}
		size.entries++
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			size.bytes += info.Size()
		}
		return nil
	})
	return size, err
}

const (
	countAfter = 3 * time.Second // most seedings finish earlier
	countEvery = 2 * time.Second
	countShare = 4 // counting takes at most 1/countShare of the time
)

// watchSeeding reports the size of a volume while Docker copies the image's content
// to it, because Docker reports no progress. progress is not called after stop has
// returned.
func (r *Runtime) watchSeeding(ctx context.Context, spec runtime.VolumeSpec, volume string, progress func(runtime.Progress)) (stop func()) {
	if progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var last treeSize
		for wait := r.countAfter; ; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			began := time.Now()
			size, err := r.sizeOf(ctx, spec, volume)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				r.log.Debug("count seeding progress failed", "workspace", spec.Workspace, "err", err)
			case size.bytes > last.bytes || size.entries > last.entries:
				last = treeSize{max(size.entries, last.entries), max(size.bytes, last.bytes)}
				progress(runtime.Progress{Step: runtime.StepSeeding, Done: last.bytes, Entries: last.entries})
			}
			wait = max(r.countEvery, (countShare-1)*time.Since(began))
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// sizeOf counts the content of a home that is being seeded.
func (r *Runtime) sizeOf(ctx context.Context, spec runtime.VolumeSpec, volume string) (treeSize, error) {
	if spec.Storage == workspace.StorageLocalDir {
		return countTree(ctx, r.homePath(spec.Workspace))
	}
	v, err := r.api.VolumeInspect(ctx, volume, client.VolumeInspectOptions{})
	if err != nil {
		return treeSize{}, wrapError(ctx, "inspect volume", err)
	}
	if r.isLocal(v.Volume.Mountpoint) {
		size, err := countTree(ctx, v.Volume.Mountpoint)
		if err == nil || !errors.Is(err, fs.ErrPermission) {
			return size, err
		}
	}
	return r.sizeByHelper(ctx, volume)
}

func (r *Runtime) sizeByHelper(ctx context.Context, volume string) (treeSize, error) {
	var size treeSize
	err := r.runHelper(ctx, helperRun{
		args: []string{cmdCount, helperVolume}, caps: []string{"DAC_OVERRIDE"},
		mounts: []mount.Mount{helperMount(volume)},
		line: func(line []byte) {
			if s, ok := parseCounted(line); ok {
				size = s
			}
		},
	})
	return size, err
}
