package home

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/homequota"
	"codehub/internal/workspace"
)

// Values of Settings.HomeQuota besides the kinds of package homequota.
const (
	QuotaAuto = "auto"
	QuotaNone = "none"
)

// chooseQuota sets how new homes in folders are limited. If that cannot be done as the
// settings say, a condition lists why, and homes are plain folders.
func (h *Homes) chooseQuota() {
	cfg := h.cfg
	kind := homequota.Kind(cfg.HomeQuota)
	homes := filepath.Join(cfg.DataDir, homesDir) // may be a file system of its own
	if _, err := os.Stat(homes); err != nil {
		homes = cfg.DataDir
	}
	switch {
	case cfg.DataDir == "", cfg.HomeQuota == QuotaNone, cfg.HomeQuota == "":
		return
	case cfg.HomeQuota == QuotaAuto:
		if kind = homequota.Detect(homes); kind == homequota.None {
			return
		}
		h.noQuota = h.newNoQuota()
	default:
		h.noQuota = h.newNoQuota()
		err := homequota.Probe(kind, homes)
		if kind == homequota.Image && cfg.HostDataDir != cfg.DataDir {
			err = errors.New("the server runs in a container, so that Docker does not see the file systems that it mounts")
		}
		if h.noQuota.Set(err); err != nil {
			return
		}
	}
	h.Log.Info("new homes in folders have limits of their file system", "kind", string(kind))
	h.quota = kind
}

// newNoQuota makes the condition that new homes cannot be limited.
func (h *Homes) newNoQuota() *health.Condition {
	return h.Conditions.New(health.Config{
		Name: "home-quota", Failing: "homes in folders cannot be limited as CODEHUB_HOME_QUOTA says; their sizes are measured",
		Resolved: "homes in folders are limited", Level: slog.LevelWarn, Log: h.Log,
	})
}

// makeHome makes the empty directory of a home with its limit, or a plain one if the file system
// does not offer limits any more. The caller holds the lock.
func (h *Homes) makeHome(spec runtime.VolumeSpec, side *sidecar) error {
	folder := h.Folder(spec.Workspace)
	err := homequota.Make(h.quota, folder, spec.Disk)
	if errors.Is(err, homequota.ErrUnavailable) {
		h.noQuota.Set(err)
		err = homequota.Make(homequota.None, folder, spec.Disk)
	} else if err == nil && h.quota != homequota.None {
		h.noQuota.Set(nil)
	}
	if err != nil {
		return fmt.Errorf("make home: %w", err)
	}
	if homequota.Limits(folder) {
		side.Limit = spec.Disk
	}
	return nil
}

// openFolder makes the home usable, after a restart of the machine for example.
func (h *Homes) openFolder(id workspace.ID) error {
	if err := homequota.Open(h.Folder(id)); err != nil {
		return fmt.Errorf("open the home in %s: %w", h.Folder(id), err)
	}
	return nil
}

// closeFolder unmounts the file system of a home that nothing uses.
func (h *Homes) closeFolder(id workspace.ID) error {
	err := homequota.Remove(h.Folder(id))
	if errors.Is(err, unix.EBUSY) {
		return &runtime.BusyError{Reason: "the home's file system is in use by a process"}
	}
	return err
}

// Ready checks that the home of a workspace that is to start is there, opens it and gives it
// the limit of the container's size.
func (h *Homes) Ready(ctx context.Context, spec runtime.ContainerSpec) error {
	if spec.Storage != workspace.StorageLocalDir {
		return nil
	}
	if err := h.verifyFolder(spec.Workspace, spec.VolumeClaim); err != nil {
		return err
	}
	return h.limitFolder(ctx, spec)
}

// limitFolder opens the home and gives it the limit of the container's size.
func (h *Homes) limitFolder(ctx context.Context, spec runtime.ContainerSpec) error {
	if err := h.openFolder(spec.Workspace); err != nil {
		return err
	}
	side, _, err := h.readFolder(spec.Workspace)
	if err != nil || h.limitIs(spec.Workspace, side, spec.Size.Disk) {
		return err
	}
	if own, _ := homequota.OwnDisk(h.Folder(spec.Workspace)); own {
		// The home's file system may have to be unmounted for another limit.
		if err := h.endBackups(ctx, spec.Workspace); err != nil {
			return err
		}
	}
	return h.editFolder(ctx, runtime.VolumeSpec{Workspace: spec.Workspace, Claim: spec.VolumeClaim}, func(side sidecar, there bool) (sidecar, error) {
		if !there {
			return side, fmt.Errorf("folder %s: %w", h.Path(spec.Workspace), runtime.ErrVolumeMismatch)
		}
		return h.limited(spec.Workspace, side, spec.Size.Disk)
	})
}

// limitIs reports whether home.json has the limit, and the home as well if it can have one.
func (h *Homes) limitIs(id workspace.ID, side sidecar, disk int64) bool {
	folder := h.Folder(id)
	if !homequota.Limits(folder) {
		return side.Limit == 0
	}
	return side.Limit == disk && homequota.Holds(folder, disk)
}

// limited opens an existing home and gives it another limit, if it can have one; otherwise the
// home keeps its limit, which is no error. It returns the changed home.json. The caller holds the
// lock.
func (h *Homes) limited(id workspace.ID, side sidecar, disk int64) (sidecar, error) {
	folder := h.Folder(id)
	if h.limitIs(id, side, disk) {
		return side, nil
	}
	if !homequota.Limits(folder) {
		// It was copied into a plain folder, for example, or the quotas of its file system were
		// turned off.
		h.Log.Warn("the home has no limit of its file system any more; its size is measured", "workspace", id, "limit", side.Limit)
		side.Limit = 0
		return side, nil
	}
	if err := h.openFolder(id); err != nil {
		return side, err
	}
	switch err := homequota.Limit(folder, disk); {
	case err == nil:
		side.Limit = disk
		return side, nil
	case errors.Is(err, homequota.ErrKept):
		if side.Limit == 0 {
			side.Limit = homequota.Size(folder)
		}
		h.Log.Info("the home keeps its limit", "workspace", id, "limit", side.Limit, "wanted", disk)
	default:
		// The limit of a project is lost if quotas were made again. Then the home is measured until the
		// next start tries again.
		if !homequota.Holds(folder, side.Limit) {
			side.Limit = 0
		}
		h.Log.Error("limit home failed", "workspace", id, "limit", side.Limit, "wanted", disk, "err", err)
	}
	return side, h.openFolder(id) // it was unmounted in between
}
