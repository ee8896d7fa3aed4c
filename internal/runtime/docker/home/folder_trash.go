package home

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/moby/api/types/mount"
	"golang.org/x/sys/unix"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/homequota"
	"codehub/internal/workspace"
)

// lockFolder locks the directory around a home for this process. The error is
// fs.ErrNotExist if there is none.
func (h *Homes) lockFolder(ctx context.Context, id workspace.ID) (unlock func(), err error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		unlock, err := tryLock(h.Folder(id))
		if unlock != nil || err != nil {
			return unlock, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, engine.WrapError(ctx, "wait for another process that changes the home in "+h.Folder(id), ctx.Err())
		}
	}
}

// tryLock returns nil without an error if the lock is held elsewhere or the
// directory was replaced meanwhile.
func tryLock(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock the folder of a home: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
			return nil, nil
		}
		return nil, fmt.Errorf("lock the folder of a home: %w", err)
	}
	locked, err := f.Stat()
	if err == nil {
		var now fs.FileInfo
		now, err = os.Stat(dir)
		if err == nil && os.SameFile(locked, now) {
			return func() { f.Close() }, nil
		}
	}
	f.Close()
	if err != nil {
		return nil, fmt.Errorf("lock the folder of a home: %w", err)
	}
	return nil, nil
}

const trashPrefix = ".removed-"

// trash lists the remains of homes that were removed from a workspace's directory.
func (h *Homes) trash(id workspace.ID) ([]string, error) {
	entries, err := os.ReadDir(h.Folder(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list folder of the home: %w", err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), trashPrefix) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// discardHome renames the home to trash, if it exists. The caller holds the lock.
func (h *Homes) discardHome(id workspace.ID) error {
	err := homequota.Discard(h.Folder(id), trashPrefix+engine.RandomHex(8))
	if errors.Is(err, unix.EBUSY) {
		return &runtime.BusyError{Reason: "the home's file system is in use by a process"}
	}
	if err != nil {
		return fmt.Errorf("move home to trash: %w", err)
	}
	return nil
}

// emptyTrash removes the trash. It uses the helper for files that this process may
// not remove because they belong to the image's user.
func (h *Homes) emptyTrash(ctx context.Context, id workspace.ID, progress func(runtime.Progress)) error {
	left, err := h.trash(id)
	if err != nil {
		return err
	}
	before := int64(0)
	for _, name := range left {
		last := before
		report := func(n int64) {
			last = max(last, before+n)
			if progress != nil {
				progress(runtime.Progress{Step: runtime.StepRemoving, Entries: last})
			}
		}
		if done, err := homequota.Erase(filepath.Join(h.Folder(id), name)); done || err != nil {
			if err != nil {
				return fmt.Errorf("remove home: %w", err)
			}
			continue
		}
		err := removeTree(ctx, filepath.Join(h.Folder(id), name), report)
		before = last
		if errors.Is(err, fs.ErrPermission) {
			err = h.removeTreeByHelper(ctx, id, name, report)
		}
		before = last
		if err != nil {
			return fmt.Errorf("remove home: %w", err)
		}
	}
	return nil
}

func (h *Homes) removeTreeByHelper(ctx context.Context, id workspace.ID, name string, progress func(n int64)) error {
	return h.helper.Run(ctx, helper.Run{
		Line: func(line []byte) {
			if n, ok := parseRemoved(line); ok && progress != nil {
				progress(n)
			}
		},
		Args: []string{helper.CmdRemoveHome, "/folder/" + name},
		Caps: []string{"DAC_OVERRIDE", "FOWNER"},
		Mounts: []mount.Mount{{
			Type: mount.TypeBind, Source: filepath.Dir(h.HostPath(id)), Target: "/folder",
		}},
	})
}
