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

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/homequota"
	"codehub/internal/workspace"
)

// A local-dir home is set aside by renaming {data}/homes/{id} to
// {id}.aside-{time}-{random}; nothing is copied.
const asideInfix = ".aside-"

// setFolderAside renames the directory of a home that does not have the claim.
func (h *Homes) setFolderAside(ctx context.Context, id workspace.ID, claim, found string) (string, error) {
	if h.cfg.DataDir == "" {
		return "", nil
	}
	if _, err := os.Lstat(h.Folder(id)); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	users, err := h.folderUsers(ctx, id)
	if err != nil {
		return "", err
	}
	for _, u := range users {
		if u.Running && !u.Backup() {
			return "", fmt.Errorf("folder %s is in use by container %s; stop the container: %w", h.Path(id), u.Name, runtime.ErrConflict)
		}
	}
	unlock, err := h.lockFolder(ctx, id)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := runtime.Fenced(ctx); err != nil {
		return "", fmt.Errorf("set folder %s aside: %w: %w", h.Folder(id), runtime.ErrUnreachable, err)
	}
	side, there, err := h.readFolder(id)
	damaged := errors.Is(err, errSidecar)
	switch {
	case err != nil && !damaged:
		return "", err
	case !damaged && side.Installation != "" && side.Installation != h.Installation:
		return "", fmt.Errorf("folder %s belongs to installation %s: %w", h.Folder(id), side.Installation, runtime.ErrVolumeMismatch)
	case !damaged && claim != "" && h.ownsFolder(side, claim):
		return "", nil
	case !damaged && !there && (side == sidecar{} || side.State == folderRemoving):
		return "", nil // it contains no home
	case !damaged && side.Claim != found:
		return "", fmt.Errorf("folder %s was replaced: %w", h.Folder(id), runtime.ErrVolumeMismatch)
	}
	if err := h.discardJobs(ctx, users); err != nil {
		return "", err
	}
	if err := h.dismount(ctx, id); err != nil {
		return "", err
	}
	if err := h.removeSnapshots(ctx, id); err != nil {
		return "", err
	}
	if err := homequota.Remove(h.Folder(id)); err != nil {
		return "", fmt.Errorf("set folder aside: %w", err)
	}
	name := h.Folder(id) + asideInfix + h.Now().UTC().Format(asideTime) + "-" + engine.RandomHex(4)
	if err := os.Rename(h.Folder(id), name); err != nil {
		return "", fmt.Errorf("set folder aside: %w", err)
	}
	if err := syncDir(filepath.Dir(name)); err != nil {
		return "", fmt.Errorf("set folder aside: %w", err)
	}
	h.Log.Info("folder set aside", "workspace", id, "folder", name)
	return name, nil
}

func (h *Homes) foldersAside() ([]runtime.Aside, error) {
	if h.cfg.DataDir == "" {
		return nil, nil
	}
	homes := filepath.Join(h.cfg.DataDir, homesDir)
	entries, err := os.ReadDir(homes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list set-aside homes: %w", err)
	}
	var out []runtime.Aside
	for _, e := range entries {
		id, rest, ok := strings.Cut(e.Name(), asideInfix)
		if !ok || !workspace.ValidID(id) {
			continue
		}
		at, _, _ := strings.Cut(rest, "-")
		a := runtime.Aside{Name: filepath.Join(homes, e.Name()), Workspace: workspace.ID(id), Storage: workspace.StorageLocalDir, Complete: true}
		a.Since, _ = time.Parse(asideTime, at) // unknown for a name given by hand
		out = append(out, a)
	}
	return out, nil
}
