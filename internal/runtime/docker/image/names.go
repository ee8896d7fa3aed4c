package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime/docker/engine"
)

// A container whose user needs nothing but a name gets its lists of users and groups by mounts
// of files of the data folder, because Docker 20.10 starts a process for each copy into a
// container. A file is named by its content, and never changes.

const (
	namesDir = "names" // in the data folder
	// namesLife is how long a file that no container mounts is kept, longer than a start takes
	// to create its container.
	namesLife = 10 * time.Minute
)

// names are the files with lists of users and groups.
type names struct {
	dir, hostDir string      // hostDir is dir on Docker's host; empty: there are none
	refused      atomic.Bool // Docker could not mount one since the last sweep
}

func newNames(dataDir, hostDataDir string) names {
	if dataDir == "" {
		return names{}
	}
	return names{dir: filepath.Join(dataDir, namesDir), hostDir: filepath.Join(hostDataDir, namesDir)}
}

// put returns the name of the file with a content. The file need not be durable: each use
// compares its content.
func (n *names) put(content string, now time.Time) (string, error) {
	sum := sha256.Sum256([]byte(content))
	name := hex.EncodeToString(sum[:])
	file := filepath.Join(n.dir, name)
	if have, err := os.ReadFile(file); err == nil && string(have) == content {
		return name, os.Chtimes(file, now, now)
	}
	if err := os.Mkdir(n.dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	f, err := os.CreateTemp(n.dir, ".new-*")
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(content)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return name, nil
}

// MountNames returns the mounts by which the user of a container gets a name; nil if MakeReady
// has to copy the lists. It writes the files again that are missing or damaged.
func (i *Images) MountNames(ctx context.Context, as RunAs, uid uint32) []mount.Mount {
	switch {
	case i.names.dir == "", i.names.refused.Load():
		return nil
	case i.cfg.Sudo: // programs that add users replace the lists
		return nil
	case as.linked, !as.accounts.Tmp, len(as.trusted) > 0: // the copy that is needed brings the lists, too
		return nil
	case !i.Features(ctx).MountsFiles:
		return nil
	}
	var mounts []mount.Mount
	files := as.accounts.Files(uid)
	for _, list := range slices.Sorted(maps.Keys(files)) {
		name, err := i.names.put(files[list], i.Now())
		if err != nil {
			i.Log.Warn("write the name of a workspace's user failed; Docker copies it", "err", err)
			return nil
		}
		mounts = append(mounts, mount.Mount{
			Type: mount.TypeBind, Source: filepath.Join(i.names.hostDir, name), Target: "/etc/" + list, ReadOnly: true,
		})
	}
	return mounts
}

// MountsNames reports whether a container has mounts of MountNames, also of a server with
// another data folder.
func MountsNames(mounts []container.MountPoint) bool {
	return slices.ContainsFunc(mounts, func(m container.MountPoint) bool { return path.Dir(m.Destination) == "/etc" })
}

// NamesRefused reports whether Docker refused to create or to start a container because of a
// mount of MountNames: the data folder is not on Docker's host, or not under that path. Until the
// next sweep, MountNames then returns none.
func (i *Images) NamesRefused(refusal error) bool {
	if i.names.dir == "" || !strings.Contains(refusal.Error(), i.names.hostDir+"/") {
		return false
	}
	if !i.names.refused.Swap(true) {
		i.Log.Debug("Docker cannot mount the names of workspaces' users; it copies them", "err", refusal)
	}
	return true
}

// SweepNames removes the lists of users and groups that no container mounts.
func (i *Images) SweepNames(ctx context.Context) error {
	i.names.refused.Store(false)
	if i.names.dir == "" {
		return nil
	}
	list, err := i.API.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: i.Filter(engine.RoleWorkspace)})
	if err != nil {
		return engine.WrapError(ctx, "list containers that mount names", err)
	}
	mounted := map[string]bool{}
	for _, c := range list.Items {
		for _, m := range c.Mounts {
			mounted[m.Source] = true
		}
	}
	return i.names.sweep(mounted, i.Now())
}

// sweep removes the old files whose paths on Docker's host are not mounted.
func (n *names) sweep(mounted map[string]bool, now time.Time) error {
	entries, err := os.ReadDir(n.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if mounted[filepath.Join(n.hostDir, e.Name())] {
			continue
		}
		// A start may have taken the file meanwhile, which has then another time.
		info, err := e.Info()
		if err == nil && now.Sub(info.ModTime()) > namesLife {
			err = os.Remove(filepath.Join(n.dir, e.Name()))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
