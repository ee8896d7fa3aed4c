package home

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/workspace"
)

const (
	countAfter = 3 * time.Second // most seedings finish earlier
	countEvery = 2 * time.Second
	countShare = 4 // counting takes at most 1/countShare of the time
)

// watchSeeding reports the size of a volume while Docker copies the image's content
// to it, because Docker reports no progress. progress is not called after stop has
// returned.
func (h *Homes) watchSeeding(ctx context.Context, spec runtime.VolumeSpec, volume string, progress func(runtime.Progress)) (stop func()) {
	if progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var last treeSize
		for wait := h.CountAfter; ; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			began := time.Now()
			size, err := h.sizeOf(ctx, spec, volume)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				h.Log.Debug("count seeding progress failed", "workspace", spec.Workspace, "err", err)
			case size.bytes > last.bytes || size.entries > last.entries:
				last = treeSize{entries: max(size.entries, last.entries), bytes: max(size.bytes, last.bytes)}
				progress(runtime.Progress{Step: runtime.StepSeeding, Done: last.bytes, Entries: last.entries})
			}
			wait = max(h.CountEvery, (countShare-1)*time.Since(began))
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// sizeOf counts the content of a home that is being seeded.
func (h *Homes) sizeOf(ctx context.Context, spec runtime.VolumeSpec, volume string) (treeSize, error) {
	if spec.Storage == workspace.StorageLocalDir {
		return h.measureFolder(ctx, spec.Workspace)
	}
	v, err := h.API.VolumeInspect(ctx, volume, client.VolumeInspectOptions{})
	if err != nil {
		return treeSize{}, engine.WrapError(ctx, "inspect volume", err)
	}
	if h.isLocal(v.Volume.Mountpoint) {
		size, err := measureTree(ctx, v.Volume.Mountpoint)
		if err == nil || !errors.Is(err, fs.ErrPermission) {
			return size, err
		}
	}
	return h.sizeByHelper(ctx, volume)
}

func (h *Homes) sizeByHelper(ctx context.Context, volume string) (treeSize, error) {
	return h.measureByHelper(ctx, helperVolume, helperMount(volume))
}

// measureByHelper has the helper measure a folder.
func (h *Homes) measureByHelper(ctx context.Context, path string, m mount.Mount) (size treeSize, err error) {
	printed := errors.New("the helper printed no size")
	err = h.helper.Run(ctx, helper.Run{
		Args: []string{helper.CmdCount, path}, Caps: []string{"DAC_OVERRIDE"},
		Mounts: []mount.Mount{m},
		Line: func(line []byte) {
			if s, ok := parseCounted(line); ok {
				size, printed = s, nil
			}
		},
	})
	return size, cmp.Or(err, printed)
}
