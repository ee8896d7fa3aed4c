package docker

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
	quotaAuto = "auto"
	quotaNone = "none"
)

// chooseQuota sets how new homes in folders are limited. If that cannot be done as the
// settings say, a condition lists why, and homes are plain folders.
func (r *Runtime) chooseQuota() {
	cfg := r.cfg
	kind := homequota.Kind(cfg.HomeQuota)
	homes := filepath.Join(cfg.DataDir, homesDir) // may be a file system of its own
	if _, err := os.Stat(homes); err != nil {
		homes = cfg.DataDir
	}
	switch {
	case cfg.DataDir == "", cfg.HomeQuota == quotaNone, cfg.HomeQuota == "":
		return
	case cfg.HomeQuota == quotaAuto:
		if kind = homequota.Detect(homes); kind == homequota.None {
			return
		}
		r.noQuota = newNoQuota(cfg)
	default:
		r.noQuota = newNoQuota(cfg)
		err := homequota.Probe(kind, homes)
		if kind == homequota.Image && cfg.HostDataDir != cfg.DataDir {
			err = errors.New("the server runs in a container, so that Docker does not see the file systems that it mounts")
		}
		if r.noQuota.Set(err); err != nil {
			return
		}
	}
	cfg.Log.Info("new homes in folders have limits of their file system", "kind", string(kind))
	r.quota = kind
}

// newNoQuota makes the condition that new homes cannot be limited.
func newNoQuota(cfg Config) *health.Condition {
	return cfg.Conditions.New(health.Config{
		Name: "home-quota", Failing: "homes in folders cannot be limited as CODEHUB_HOME_QUOTA says; their sizes are measured",
		Resolved: "homes in folders are limited", Level: slog.LevelWarn, Log: cfg.Log,
	})
}

// makeHome makes the empty directory of a home with its limit, or a plain one if the file system
// does not offer limits any more. The caller holds the lock.
func (r *Runtime) makeHome(spec runtime.VolumeSpec, side *sidecar) error {
	folder := r.folder(spec.Workspace)
	err := homequota.Make(r.quota, folder, spec.Disk)
	if errors.Is(err, homequota.ErrUnavailable) {
		r.noQuota.Set(err)
		err = homequota.Make(homequota.None, folder, spec.Disk)
	} else if err == nil && r.quota != homequota.None {
		r.noQuota.Set(nil)
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
func (r *Runtime) openFolder(id workspace.ID) error {
	if err := homequota.Open(r.folder(id)); err != nil {
		return fmt.Errorf("open the home in %s: %w", r.folder(id), err)
	}
	return nil
}

// closeFolder unmounts the file system of a home that nothing uses.
func (r *Runtime) closeFolder(id workspace.ID) error {
	err := homequota.Remove(r.folder(id))
	if errors.Is(err, unix.EBUSY) {
		return &runtime.BusyError{Reason: "the home's file system is in use by a process"}
	}
	return err
}

// limitFolder opens the home and gives it the limit of the container's size.
func (r *Runtime) limitFolder(ctx context.Context, spec runtime.ContainerSpec) error {
	if err := r.openFolder(spec.Workspace); err != nil {
		return err
	}
	side, _, err := r.readFolder(spec.Workspace)
	if err != nil || r.limitIs(spec.Workspace, side, spec.Size.Disk) {
		return err
	}
	return r.editFolder(ctx, runtime.VolumeSpec{Workspace: spec.Workspace, Claim: spec.VolumeClaim}, func(side sidecar, there bool) (sidecar, error) {
		if !there {
			return side, fmt.Errorf("folder %s: %w", r.homePath(spec.Workspace), runtime.ErrVolumeMismatch)
		}
		return r.limited(spec.Workspace, side, spec.Size.Disk)
	})
}

// limitIs reports whether home.json has the limit, and the home as well if it can have one.
func (r *Runtime) limitIs(id workspace.ID, side sidecar, disk int64) bool {
	folder := r.folder(id)
	if !homequota.Limits(folder) {
		return side.Limit == 0
	}
	return side.Limit == disk && homequota.Holds(folder, disk)
}

// limited opens an existing home and gives it another limit, if it can have one; otherwise the
// home keeps its limit, which is no error. It returns the changed home.json. The caller holds the
// lock.
func (r *Runtime) limited(id workspace.ID, side sidecar, disk int64) (sidecar, error) {
	folder := r.folder(id)
	if r.limitIs(id, side, disk) {
		return side, nil
	}
	if !homequota.Limits(folder) {
		// It was copied into a plain folder, for example, or the quotas of its file system were
		// turned off.
		r.engine.Log.Warn("the home has no limit of its file system any more; its size is measured", "workspace", id, "limit", side.Limit)
		side.Limit = 0
		return side, nil
	}
	if err := r.openFolder(id); err != nil {
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
		r.engine.Log.Info("the home keeps its limit", "workspace", id, "limit", side.Limit, "wanted", disk)
	default:
		// The limit of a project is lost if quotas were made again. Then the home is measured until the
		// next start tries again.
		if !homequota.Holds(folder, side.Limit) {
			side.Limit = 0
		}
		r.engine.Log.Error("limit home failed", "workspace", id, "limit", side.Limit, "wanted", disk, "err", err)
	}
	return side, r.openFolder(id) // it was unmounted in between
}
