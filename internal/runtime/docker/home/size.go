package home

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/internal/base/treewalk"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/homequota"
	"codehub/internal/workspace"
)

// homeSizeTimeout limits the measurement of one home.
const homeSizeTimeout = 5 * time.Minute

var errHomeSlow = errors.New("the home was not measured within the limit of one home")

// HomeSizes measures the homes of this installation, or only some: the disk space that their files use. It may
// take minutes; at the deadline of ctx it returns what was measured until then. Volumes that this
// process cannot read are measured by Docker, which reads all volumes for it and counts sparse
// files in full, and such folders by the helper. A home that cannot be measured, or not within
// homeSizeTimeout, is not in the result.
func (h *Homes) HomeSizes(ctx context.Context, only ...workspace.ID) (map[workspace.ID]int64, error) {
	sizes := map[workspace.ID]int64{}
	err := h.homeSizes(ctx, sizes, only)
	if err != nil && len(sizes) > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		h.Log.Warn("not all homes were measured in time", "measured", len(sizes), "err", err)
		return sizes, nil
	}
	if err != nil {
		return nil, err
	}
	return sizes, nil
}

// homeSizes adds the sizes of all homes, or of some, in random order: not the same ones are left
// over each time if there is too little time.
func (h *Homes) homeSizes(ctx context.Context, sizes map[workspace.ID]int64, only []workspace.ID) error {
	wanted := func(id workspace.ID) bool { return len(only) == 0 || slices.Contains(only, id) }
	filter := h.Filter(engine.RoleHome)
	if len(only) == 1 {
		filter = filter.Add("label", engine.LabelWorkspace+"="+string(only[0]))
	}
	listed, err := h.API.VolumeList(ctx, client.VolumeListOptions{Filters: filter})
	if err != nil {
		return engine.WrapError(ctx, "list volumes", err)
	}
	unread := map[workspace.ID]bool{}
	shuffle(listed.Items)
	for _, v := range listed.Items {
		id := workspace.ID(v.Labels[engine.LabelWorkspace])
		if v.Name != id.VolumeName() || !wanted(id) {
			continue
		}
		size, known, err := h.spaceOfVolume(ctx, v.Mountpoint)
		switch {
		case errors.Is(err, errHomeSlow): // Docker would take as long
		case err != nil:
			return err
		case known:
			sizes[id] = size
		default:
			unread[id] = true
		}
	}
	if err := h.measureByDocker(ctx, unread, sizes); err != nil {
		return err
	}
	folders, err := h.folders()
	if err != nil {
		return err
	}
	shuffle(folders)
	for _, v := range folders {
		if v.Foreign || v.Claim == "" || !wanted(v.Workspace) {
			continue
		}
		size, known, err := h.spaceOfFolder(ctx, v.Workspace)
		if err != nil {
			return err
		}
		if known {
			sizes[v.Workspace] = size
		}
	}
	return nil
}

func shuffle[T any](list []T) {
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

// HomeSize measures one home as HomeSizes does. known is false if it cannot be measured.
func (h *Homes) HomeSize(ctx context.Context, id workspace.ID) (size int64, known bool, err error) {
	sizes, err := h.HomeSizes(ctx, id)
	size, known = sizes[id]
	return size, known, err
}

// spaceOfVolume measures a volume that this process can read. The error is that of ctx, or
// errHomeSlow.
func (h *Homes) spaceOfVolume(ctx context.Context, mountpoint string) (size int64, known bool, err error) {
	if !h.isLocal(mountpoint) {
		return 0, false, nil
	}
	within, cancel := context.WithTimeout(ctx, homeSizeTimeout)
	defer cancel()
	found, err := measureTree(within, mountpoint)
	if ctx.Err() != nil {
		return 0, false, fmt.Errorf("measure homes: %w", errors.Join(runtime.ErrUnreachable, ctx.Err()))
	}
	if within.Err() != nil {
		h.Log.Warn("a home was not measured in time", "path", mountpoint, "limit", homeSizeTimeout)
		return 0, false, errHomeSlow
	}
	return found.space, err == nil, nil
}

func (h *Homes) spaceOfFolder(ctx context.Context, id workspace.ID) (size int64, known bool, err error) {
	if size, known := homequota.Used(h.Folder(id)); known {
		return size, true, nil
	}
	within, cancel := context.WithTimeout(ctx, homeSizeTimeout)
	defer cancel()
	found, err := h.measureFolder(within, id)
	if ctx.Err() != nil {
		return 0, false, fmt.Errorf("measure homes: %w", errors.Join(runtime.ErrUnreachable, ctx.Err()))
	}
	if err != nil {
		h.Log.Debug("measure a home failed", "workspace", id, "err", err)
	}
	return found.space, err == nil, nil
}

// measureFolder measures a home in a folder. Files that this process may not read, because they
// belong to the image's user, are the helper's.
func (h *Homes) measureFolder(ctx context.Context, id workspace.ID) (treeSize, error) {
	size, err := measureTree(ctx, h.Path(id))
	if !errors.Is(err, fs.ErrPermission) {
		return size, err
	}
	home := h.HostPath(id)
	// Not the home: a container that mounts that is one of its users.
	return h.measureByHelper(ctx, "/folder/"+filepath.Base(home),
		mount.Mount{Type: mount.TypeBind, Source: filepath.Dir(home), Target: "/folder", ReadOnly: true})
}

// measureByDocker adds the sizes of these homes as Docker measures them.
func (h *Homes) measureByDocker(ctx context.Context, homes map[workspace.ID]bool, sizes map[workspace.ID]int64) error {
	if len(homes) == 0 {
		return nil
	}
	used, err := h.API.DiskUsage(ctx, client.DiskUsageOptions{Volumes: true, Verbose: true})
	if err != nil {
		return engine.WrapError(ctx, "measure volumes", err)
	}
	for _, v := range used.Volumes.Items {
		id := workspace.ID(v.Labels[engine.LabelWorkspace])
		if homes[id] && v.Name == id.VolumeName() && h.Owns(v.Labels, engine.RoleHome) && v.UsageData != nil && v.UsageData.Size >= 0 {
			sizes[id] = v.UsageData.Size
		}
	}
	return nil
}

// treeSize is what a folder has.
type treeSize struct {
	entries, bytes int64 // of all folders and files, with holes
	space          int64 // on the disk; each name of a file with several names counts its share
}

const countedPrefix = "counted "

func (s treeSize) String() string {
	return fmt.Sprintf("%s%d %d %d", countedPrefix, s.entries, s.bytes, s.space)
}

func parseCounted(line []byte) (s treeSize, ok bool) {
	if !strings.HasPrefix(string(line), countedPrefix) {
		return s, false
	}
	n, err := fmt.Sscanf(string(line), countedPrefix+"%d %d %d", &s.entries, &s.bytes, &s.space)
	return s, err == nil && n == 3
}

// measureTries is how often measureTree starts if folders are moved meanwhile.
const measureTries = 3

// measureTree measures a folder whose content may change. Files that disappear meanwhile do not
// count. It follows no links, and needs few descriptors and little memory for a tree of any shape.
func measureTree(ctx context.Context, root string) (s treeSize, err error) {
	for range measureTries {
		s = treeSize{}
		if err = s.add(ctx, root); !errors.Is(err, treewalk.ErrChanged) {
			break
		}
	}
	return s, err
}

func (s *treeSize) add(ctx context.Context, root string) error {
	top, err := treewalk.Open(unix.AT_FDCWD, root, unix.O_DIRECTORY)
	if err == nil {
		defer unix.Close(top)
		err = treewalk.Visit(ctx, top, s, treewalk.Options{Changing: true})
	}
	if err != nil {
		return fmt.Errorf("measure %s: %w", root, err)
	}
	return nil
}

func (s *treeSize) Folder(_ *treewalk.Walk, _ *treewalk.Dir, st *unix.Stat_t) error {
	s.entries++
	s.space += st.Blocks * 512
	return nil
}

func (s *treeSize) Leaf(_ *treewalk.Walk, dir *treewalk.Dir, e treewalk.Entry) error {
	var st unix.Stat_t
	err := unix.Fstatat(dir.FD, e.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	s.entries++
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		s.bytes += st.Size
	}
	s.space += st.Blocks * 512 / int64(max(st.Nlink, 1))
	return err
}

func (s *treeSize) Leave(*treewalk.Walk, *treewalk.Dir, string) error { return nil }

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
